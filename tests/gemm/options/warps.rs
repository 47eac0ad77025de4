//! The options with every configuration for `mma.sync`: sm_80's kernels, and sm_120f's own.

use fp4_formats::TensorFamily;
use fp4_formats::gemm::table::{Kernel, kernels};
use fp4_formats::gemm::{Problems, Split};
use nvfp4::device::Kernels;
use nvfp4::gemm::GemmOverrides;
use nvfp4_tests::gemm::grouped::GroupedCase;
use nvfp4_tests::gemm::mixed::check_mixed;
use nvfp4_tests::gemm::{ActivationType, BLOCKED, Case, LINEAR};
use ptx_emu::Gpu;

use super::{combinations, grouped, small, stores, sums, varied};

/// The targets' machines and the kernels that are theirs alone.
fn targets() -> [(Gpu, Vec<&'static Kernel>); 2] {
    let sm80 = kernels(TensorFamily::MmaSync);
    let is_own = |kernel: &&Kernel| sm80.iter().all(|other| other.name != kernel.name);
    let sm120 = kernels(TensorFamily::MmaSyncScaled).iter().filter(is_own);
    [(Gpu::rtx4090(), sm80.iter().collect()), (Gpu::rtx5090(), sm120.collect())]
}

/// The kernels for these problems, counted.
fn of(all: &[&'static Kernel], problems: Problems) -> Vec<(usize, &'static Kernel)> {
    all.iter().copied().filter(|kernel| kernel.problems == problems).enumerate().collect()
}

/// Activations that a kernel multiplies, or that become it; `index` chooses.
fn activations(kernel: &Kernel, index: usize) -> ActivationType {
    let operands = kernel.operands;
    match operands.activations {
        Some(operand) => ActivationType::of_operand(operands.weights, operand, index),
        None => [LINEAR, BLOCKED][index / 4 % 2],
    }
}

/// Floats, rows that are not aligned and all that becomes of values: fewer tokens than a tile has and
/// more, K whole and divided.
#[test]
fn with_every_configuration() {
    for (gpu, all) in targets() {
        let machines = small(gpu, 4);
        for (at, kernel) in of(&all, Problems::Uniform) {
            let [rows, tokens] = kernel.tile.map(|size| size as usize);
            let stores = [stores(at), combinations(at), sums()].concat();
            for (i, store) in stores.into_iter().enumerate() {
                let index = 5 * at + i;
                let m = tokens - 1 + if index % 8 == 3 { 4 } else { 0 };
                let (k, split) =
                    [(96, Split::None), (160, Split::None), (288, Split::StreamK)][index % 3];
                let n = rows + if index % 8 == 5 { 40 } else { 0 };
                let case = varied([m, n, k, 1], store, index)
                    .format(kernel.operands.weights)
                    .activations(activations(kernel, index))
                    .kernel(kernel.name, split);
                case.check(&machines[(index + at) % 5]);
            }
        }
    }
}

/// K of more steps than there are stages for, whole and divided; several tiles per CTA; more tiles in
/// a row than are walked together.
#[test]
fn long_k_with_every_configuration() {
    for (gpu, all) in targets() {
        let machines = small(gpu, 5);
        for (at, kernel) in of(&all, Problems::Uniform) {
            let [rows, tokens] = kernel.tile.map(|size| size as usize);
            let long = [Split::None, Split::StreamK].into_iter().enumerate();
            let long = long.map(|(i, split)| ([(i + 1) * tokens + 3, 2 * rows + 40, 1312], split));
            let wide = [[17 * tokens - 3, rows, 32], [tokens, 17 * rows - 8, 32]];
            let wide = wide.into_iter().map(|shape| (shape, Split::None));
            for (i, ([m, n, k], split)) in long.chain(wide).enumerate() {
                let case = Case::new([m, n, k, 1])
                    .format(kernel.operands.weights)
                    .activations(activations(kernel, at + i))
                    .kernel(kernel.name, split);
                case.check(&machines[(at + i) % 5]);
            }
        }
    }
}

/// Grouped products: tiles that are not full, K of many steps, and many groups of which few have tokens.
#[test]
fn with_every_grouped_configuration() {
    for (gpu, all) in targets() {
        let machines = small(gpu, 3);
        for (at, kernel) in of(&all, Problems::Grouped) {
            let [rows, tokens] = kernel.tile.map(|size| size as usize);
            let check = |mut case: GroupedCase, index: usize| {
                case.format = kernel.operands.weights;
                case.activations = activations(kernel, index);
                case.overrides = GemmOverrides::new().kernel(kernel.name.to_string()).split(None);
                case.check(&machines[(index + at) % 5]);
            };
            let stores = [stores(at), combinations(at), sums()].concat();
            for (i, &store) in stores.iter().enumerate() {
                let index = 5 * at + i;
                let counts = [[tokens - 1, 0, 1], [0, tokens / 2 + 1, 0]][index % 2];
                check(grouped(&counts, [rows, [96, 160, 288][index % 3]], store, index), index);
            }
            let most = [tokens + 3, 0, 2 * tokens, 1];
            check(grouped(&most, [2 * rows, 1312], stores[at % 13], at), at);
            let few = |at: usize| if at % 37 == 5 { at % 5 + 1 } else { 0 };
            let many: Vec<usize> = (0..300).map(few).collect();
            check(GroupedCase::new(&many, [40, 32]), at + 1);
        }
    }
}

/// Mixed products: all ways to store, those of floats in one launch and those of blocks in another.
#[test]
fn with_every_mixed_configuration() {
    for (gpu, all) in targets() {
        let machines = small(gpu, 3);
        for (at, kernel) in of(&all, Problems::Mixed) {
            let [rows, tokens] = kernel.tile.map(|size| size as usize);
            let stores = [stores(at), combinations(at), sums()].concat();
            let activations = match kernel.operands.activations {
                Some(operand) => ActivationType::as_they_are(operand),
                None => [LINEAR, BLOCKED][at % 2],
            };
            let cases = stores.iter().enumerate().map(|(i, &store)| {
                let m = [tokens - 1, 5, tokens + 3][i % 3];
                let k = if i % 10 == 7 { 1312 } else { [96, 160, 288][i % 3] };
                let case = varied([m, rows + 40, k, 1], store, at + i);
                case.format(kernel.operands.weights).activations(activations)
            });
            let machine: &Kernels = &machines[1 + at % 4];
            let is_blocks = |case: &Case| case.result.block() > 1;
            let (blocks, floats): (Vec<Case>, Vec<Case>) = cases.partition(is_blocks);
            for result in [floats, blocks].iter().flat_map(|cases| check_mixed(machine, cases)) {
                assert_eq!(result.plan.kernel, kernel.name);
            }
        }
    }
}
