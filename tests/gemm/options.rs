//! Every option of a product with every configuration, against the f64 oracle: what a configuration's
//! kernel has its own code for. The coverage of the kernels (`cargo xtask test --coverage`) rests on
//! this.
//!
//! A configuration meets each way of storing ([`Store`]) in each orientation, and each value of every
//! other option. The other options change from case to case with their own periods, and begin
//! elsewhere for each configuration, so that over all configurations they meet each other. Shapes are
//! those of one or two tiles that are not full.

mod fragments;

use fp4_formats::gemm::sm100;
use fp4_formats::{FloatType, Operand, ScaleLayout};
use nvfp4::device::Kernels;
use nvfp4::gemm::{Activation, GemmOverrides};
use nvfp4::tune::ResultKind;
use nvfp4_lab::generate::Generator;
use nvfp4_tests::gemm::grouped::GroupedCase;
use nvfp4_tests::gemm::mixed::check_mixed;
use nvfp4_tests::gemm::tcgen05::Product;
use nvfp4_tests::gemm::{
    ActivationType, BLOCKED, Case, FLOATS, GatedForm, LINEAR, Placement, RESULTS, ResidualAt,
};
use nvfp4_tests::{DEVICES, SCHEDULES, b200, emulated, emulated_on};
use ptx_emu::Gpu;

/// A way to store a result, and what is stored.
#[derive(Debug, Clone, Copy)]
struct Store {
    /// The type of the result.
    result: ResultKind,
    /// Columns of the result beyond a multiple of 32.
    ragged: usize,
    /// The activation function, and whether the product is gated; `None` if results are sums times
    /// factors of rows.
    combined: Option<(Activation, bool)>,
    /// The type of the residual that is added, if one is.
    residual: Option<FloatType>,
}

/// Columns of rows some of which begin at multiples of 16 bytes, and some not.
fn ragged(result: ResultKind) -> usize {
    if result == ResultKind::Floats(FloatType::F32) { 2 } else { 4 }
}

/// All ways: floats in rows that begin at multiples of 16 bytes, as sums and as more than that, and
/// in rows some of which do not; blocks. `index` chooses what becomes of values.
fn stores(index: usize) -> Vec<Store> {
    let combined = |at: usize| {
        let at = index + at;
        Some((Activation::ALL[at % 6], (at + at / 6) % 2 == 1))
    };
    let floats = FLOATS.into_iter().map(ResultKind::Floats).enumerate().flat_map(|(at, result)| {
        [
            Store { result, ragged: 16, combined: None, residual: None },
            Store { result, ragged: 24, combined: combined(2 * at), residual: None },
            Store {
                result,
                ragged: ragged(result),
                combined: combined(2 * at + 1),
                residual: None,
            },
        ]
    });
    let blocks = RESULTS[FLOATS.len()..].iter().enumerate();
    let blocks = blocks.map(|(at, &result)| Store {
        result,
        ragged: 0,
        combined: combined(at),
        residual: None,
    });
    floats.chain(blocks).collect()
}

/// Sums times factors of rows once more, where [`stores`] has no factors or has them, and as blocks.
fn sums() -> Vec<Store> {
    let all = FLOATS.map(ResultKind::Floats).into_iter().chain([RESULTS[3], RESULTS[6]]);
    let store = |result: ResultKind| {
        let ragged = if result.block() == 1 { 16 } else { 0 };
        Store { result, ragged, combined: None, residual: None }
    };
    all.map(store).collect()
}

/// Values that are gated and otherwise left alone, which [`stores`] need not have.
fn gated_alone() -> Store {
    let combined = Some((Activation::Identity, true));
    Store { result: FloatType::F16.into(), ragged: 24, combined, residual: None }
}

/// Everything that becomes of values, in rows of both kinds and as blocks.
fn combinations(index: usize) -> Vec<Store> {
    let all = [false, true].into_iter().flat_map(|gated| {
        Activation::ALL.into_iter().map(move |activation| Some((activation, gated)))
    });
    let all = all.enumerate().flat_map(|(at, combined)| {
        let floats = |at: usize| ResultKind::Floats(FLOATS[(index + at) % 3]);
        let (in_rows, whole) = (floats(at), floats(at + 1));
        let blocks = RESULTS[FLOATS.len() + (index + at) % (RESULTS.len() - FLOATS.len())];
        [
            Store { result: in_rows, ragged: ragged(in_rows), combined, residual: None },
            Store { result: whole, ragged: 8, combined, residual: None },
            Store { result: blocks, ragged: 0, combined, residual: None },
        ]
    });
    all.collect()
}

/// Residuals of every type, in rows that begin at multiples of 16 bytes and in others, and below blocks; `index` chooses
/// the types of results.
fn residuals(index: usize) -> Vec<Store> {
    let all = FLOATS.into_iter().enumerate().flat_map(|(at, residual)| {
        let residual = Some(residual);
        let [result, other] =
            [0, 1].map(|more| ResultKind::Floats(FLOATS[(index + at + more) % 3]));
        let combined = Some((Activation::ALL[(index + at) % 6], (index + at).is_multiple_of(2)));
        let blocks = RESULTS[FLOATS.len() + (index + at) % (RESULTS.len() - FLOATS.len())];
        [
            Store { result, ragged: 16, combined: None, residual },
            Store { result: other, ragged: ragged(other), combined, residual },
            Store { result: blocks, ragged: 0, combined: None, residual },
        ]
    });
    all.collect()
}

/// Row factors, column factors and a bias, in turn with and without.
fn vectors(store: Store, index: usize) -> [bool; 3] {
    match store.combined {
        Some(_) => [index % 4 < 2, index.is_multiple_of(3), index % 4 > 1],
        None => [index.is_multiple_of(2), false, false],
    }
}

/// Whether the largest magnitude is asked for.
fn magnitude(store: Store, index: usize) -> bool {
    store.combined.is_some() && index % 3 != 1
}

/// A case with everything that differs between cases, but the kernel and the types of operands, chosen
/// by `index`. About `n` columns of weights.
fn varied([m, n, k, l]: [usize; 4], store: Store, index: usize) -> Case {
    let (activation, gated) = store.combined.unwrap_or((Activation::Identity, false));
    let n = n / if gated { 64 } else { 32 } * 32 + store.ragged;
    let mut case = Case::new([m, n, k, l]).result(store.result).activation(activation);
    case.generator = Generator::FullRange;
    case.seed = index as u64;
    case.layout = ScaleLayout::ALL[index / 2 % 2];
    case.alpha = [4.0, -0.75, 16.0][index % 3];
    case.vectors = vectors(store, index);
    case.magnitude = magnitude(store, index);
    case.residual = store.residual.map(ResidualAt::dense);
    match gated {
        true => case
            .gated_as(GatedForm::ALL[index / 2 % 3])
            .up([1.0, -2.5][index / 4 % 2], [!index.is_multiple_of(3), index % 8 < 4]),
        false => case,
    }
}

/// The same of groups with these numbers of tokens.
fn grouped(counts: &[usize], [n, k]: [usize; 2], store: Store, index: usize) -> GroupedCase {
    let (activation, gated) = store.combined.unwrap_or((Activation::Identity, false));
    let n = n / if gated { 64 } else { 32 } * 32 + store.ragged;
    let mut case = GroupedCase::new(counts, [n, k]);
    case.generator = Generator::FullRange;
    case.seed = index as u64;
    case.result = store.result;
    case.alpha = [4.0, -0.75, 16.0][index % 3];
    case.factors = index / 2 % 2 == 1;
    case.vectors = vectors(store, index);
    case.own_vectors = index / 3 % 2 == 1;
    case.magnitude = magnitude(store, index);
    case.residual = store.residual.map(ResidualAt::dense);
    (case.activation, case.gated) = (activation, gated);
    case.next = index % 2 == 1;
    (case.spare, case.slot) = match index % 4 {
        3 => (0, counts.iter().max().map(|most| most + 2)),
        spare => (spare, None),
    };
    case
}

/// Machines with so few SMs that CTAs have several tiles, under all schedules.
fn small(gpu: Gpu, sms: u32) -> [Kernels; 5] {
    SCHEDULES.map(|schedule| emulated_on(Gpu { sms, ..gpu.clone() }, schedule))
}

/// Options of sm_100a: few tokens and few columns, so that the plan has both orientations; weights
/// of each batch entry and of all.
#[test]
fn with_every_configuration_of_sm_100a() {
    let machines = SCHEDULES.map(|schedule| emulated(DEVICES[1], schedule));
    for (at, config) in sm100::CONFIGS.iter().enumerate() {
        let rows = config.rows() as usize;
        for (turn, [m, n]) in [[9, rows - 24], [rows - 23, 64]].into_iter().enumerate() {
            // Some have one orientation.
            if config.only_swapped() && turn != at % 2 {
                continue;
            }
            let all = [stores(at + turn), vec![gated_alone()], residuals(at + turn)].concat();
            for (i, store) in all.into_iter().enumerate() {
                let index = 3 * at + i + 7 * turn;
                let k = (config.step() * config.k_parts()) as usize + 32;
                let mut case = varied([m, n, k, 1 + index % 2], store, index).format(config.format);
                case.activations = match config.activations {
                    Some(operand) => ActivationType::as_they_are(operand),
                    None => [LINEAR, BLOCKED][index / 4 % 2],
                };
                case.shared_weights = index % 4 == 3;
                case.kernel(config.name, config.split).check(&machines[(index + at) % 5]);
            }
        }
    }
}

/// Options of sm_100a: activations that all batch entries share, in both orientations, more
/// tiles in a row than are walked together, asked for and not, and tiles that many CTAs divide.
#[test]
fn walks_of_every_configuration_of_sm_100a() {
    let machines = SCHEDULES.map(|schedule| emulated(DEVICES[1], schedule));
    let divided = small(b200(), 12);
    for (at, config) in sm100::CONFIGS.iter().enumerate() {
        let rows = config.rows() as usize;
        if config.k_parts() == 1 {
            let mut case = Case::new([9, rows - 24, 12 * config.step() as usize, 1]);
            case = case.format(config.format);
            case.activations = match config.activations {
                Some(operand) => ActivationType::as_they_are(operand),
                None => [LINEAR, BLOCKED][at % 2],
            };
            case.kernel(config.name, config.split).check(&divided[at % 5]);
        }
        for [m, n] in [[9, rows - 24], [rows - 23, 64]] {
            let k = (config.step() * config.k_parts()) as usize + 32;
            let mut case = Case::new([m, n, k, 2]).format(config.format);
            case.activations = match config.activations {
                Some(operand) => ActivationType::as_they_are(operand),
                None => [LINEAR, BLOCKED][at % 2],
            };
            let scales = match config.activations {
                Some(Operand::Half(_)) => Placement::Dense,
                Some(Operand::E4m3) | None => Placement::Shared,
            };
            let case = case.activations_at([Placement::Shared, scales]);
            case.kernel(config.name, config.split).check(&machines[at % 5]);
        }
        let k = config.step() * (config.k_parts() - 1) + 32;
        for (i, sizes) in [
            [config.rows() - 3, 9 * config.cluster_columns() - 8],
            [9 * config.rows() - 5, (config.cluster_columns() - 8).max(5)],
        ]
        .into_iter()
        .enumerate()
        {
            let [m, n] = if config.only_swapped() { [sizes[1], sizes[0]] } else { sizes };
            let mut product = Product::new(config, [m, n, k, 1]);
            product.schedule = SCHEDULES[(at + i) % 5];
            product.dynamic = (at + i).is_multiple_of(2);
            product.check();
        }
    }
}

/// Options of sm_100a's grouped products, in both orientations.
#[test]
fn with_every_grouped_configuration_of_sm_100a() {
    let machines = small(b200(), 4);
    for (at, config) in sm100::GROUPED.iter().enumerate() {
        let [rows, columns] = [config.rows(), config.columns].map(|size| size as usize);
        for (turn, [tokens, n]) in [[columns / 2, rows], [rows, 64]].into_iter().enumerate() {
            if config.activations.is_some() && turn != 0 {
                continue;
            }
            let all = [stores(at + turn), vec![gated_alone()], residuals(at + turn)].concat();
            for (i, store) in all.into_iter().enumerate() {
                let index = 3 * at + i + 7 * turn;
                let counts = [[tokens - 1, 0, 1], [0, tokens, 0]][index % 2];
                let mut case = grouped(&counts, [n, [96, 160, 288][index % 3]], store, index);
                case.format = config.format;
                case.activations = match config.activations {
                    Some(operand) => ActivationType::as_they_are(operand),
                    None => [LINEAR, BLOCKED][index / 4 % 2],
                };
                case.overrides = GemmOverrides::new().kernel(config.name.to_string()).split(None);
                case.check(&machines[(index + at) % 5]);
            }
        }
    }
}

/// Many groups, few of which have tokens: a table in shared memory is made for them in several rounds.
#[test]
fn many_groups_with_every_grouped_configuration_of_sm_100a() {
    let few = |at: usize| if at % 37 == 5 { at % 5 + 1 } else { 0 };
    let counts: Vec<usize> = (0..300).map(few).collect();
    let machines = small(b200(), 4);
    for (at, config) in sm100::GROUPED.iter().enumerate() {
        let mut case = GroupedCase::new(&counts, [40, 32]);
        case.format = config.format;
        case.activations = match config.activations {
            Some(operand) => ActivationType::as_they_are(operand),
            None => [LINEAR, BLOCKED][at % 2],
        };
        case.overrides = GemmOverrides::new().kernel(config.name.to_string()).split(None);
        case.check(&machines[at % 5]);
    }
}

/// Mixed products: all ways to store, those of floats in one launch and those of blocks in another, on
/// machines with so few SMs that CTAs go from product to product.
#[test]
fn with_every_mixed_configuration_of_sm_100a() {
    let machines = small(b200(), 4);
    for (at, config) in sm100::MIXED.iter().enumerate() {
        let [rows, columns] = [config.rows(), config.columns].map(|size| size as usize);
        for (turn, [m, n]) in [[columns / 2, rows], [rows, 64]].into_iter().enumerate() {
            let stores = [stores(at), combinations(at), sums(), residuals(at)].concat();
            let cases = stores.iter().enumerate().map(|(i, &store)| {
                let case = varied([m - i % 3, n, [96, 160, 288][i % 3], 1], store, at + i);
                case.format(config.format).activations(match config.activations {
                    Some(operand) => ActivationType::as_they_are(operand),
                    None => [LINEAR, BLOCKED][at % 2],
                })
            });
            let is_floats = |case: &Case| matches!(case.result, ResultKind::Floats(_));
            let (floats, blocks): (Vec<Case>, Vec<Case>) = cases.partition(is_floats);
            let machine = &machines[1 + (at + turn) % 4];
            for result in [floats, blocks].iter().flat_map(|cases| check_mixed(machine, cases)) {
                assert_eq!(result.plan.kernel, config.name);
            }
        }
    }
}
