//! Invalid grouped products are an error before any launch, with the field, the required and the actual value.

use fp4_formats::ScaleLayout::Linear;
use fp4_formats::{HalfType, Mxfp4, Nvfp4};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::error::{Error, ErrorKind, Result};
use nvfp4::gemm::{
    ActivationBuffers, ActivationKind, Activations, DeviceWeights, Gemm, GemmOptions, GroupBuffers,
    GroupedRun, Grouping, HalfMatrix, Repacked, ResultBuffers, UpOptions, Vectors, Workspace,
    group_offsets,
};
use nvfp4::tensor::Dims;
use nvfp4_lab::generate::Generator;
use nvfp4_lab::rng::SplitMix64;
use nvfp4_tests::gemm::blocks;
use nvfp4_tests::refusals::Watched;
use nvfp4_tests::{DEVICES, SCHEDULES, emulated};

const HALVES: ActivationKind = ActivationKind::Halves(HalfType::F16);
const LONGEST: &str = "from 1 to 2147483647";
const ABSENT: &str = "absent, as the product is not gated";
/// Groups, the tokens of all of them, N and K.
const G: usize = 3;
const M: usize = 6;
const N: usize = 40;
const K: usize = 64;

fn halves([batch, rows, k]: [usize; 3]) -> HalfMatrix {
    let dims = Dims::new(batch, rows, k).expect("dims");
    HalfMatrix::new("x", dims, HalfType::F16, vec![0; 2 * batch * rows * k]).expect("zeros")
}

fn gated_options() -> GemmOptions {
    GemmOptions::new().up(UpOptions::default())
}

/// More groups than kernels number, no tokens, more tokens than kernels number, and weights that are gated where
/// options are not.
#[test]
fn plans() {
    for machine in DEVICES.map(Watched::new) {
        let plan = |weights: &DeviceWeights, grouping, options: &GemmOptions| {
            Gemm::grouped(&machine.kernels, weights, grouping, HALVES, options)
        };
        let plain = GemmOptions::default();
        let contiguous = |bound| Grouping::Contiguous { bound };
        let slots = |tokens| Grouping::Slots { tokens };
        let [most, many] =
            [1024, 1025].map(|groups| machine.weights::<Nvfp4>([groups, 8, 16], false, HALVES));
        for grouping in [contiguous(1), slots(1)] {
            plan(&most, grouping, &plain).expect("as many as there may be");
            let error = ["groups", "from 1 to 1024", "1025"];
            machine.refused(plan(&many, grouping, &plain), error, &[]);
        }
        let three = machine.weights::<Nvfp4>([G, N, K], false, HALVES);
        for (grouping, found) in [
            (contiguous(0), "0"),
            (slots(0), "0"),
            (contiguous(1 << 31), "2147483648"),
            (contiguous(usize::MAX), "18446744073709551615"),
            (slots(1 << 30), "3221225472"),
            (slots(usize::MAX), "18446744073709551615"),
        ] {
            machine.refused(plan(&three, grouping, &plain), ["tokens", LONGEST, found], &[]);
        }
        let pairs = machine.weights::<Nvfp4>([G, N, K], true, HALVES);
        let error = ["options for up", "there for gated weights", "absent"];
        machine.refused(plan(&pairs, contiguous(M), &plain), error, &[]);
        let error = ["weights", "gated, as there are options for up", "not gated"];
        machine.refused(plan(&three, contiguous(M), &gated_options()), error, &[]);
        plan(&three, contiguous(M), &plain).expect("as it must be");
        plan(&pairs, contiguous(M), &gated_options()).expect("as it must be");
    }
}

/// Offsets are i32, also where their sum is beyond the host's integers.
#[test]
fn offsets_beyond_integers() {
    let most = i32::MAX as usize;
    assert_eq!(
        group_offsets(&[most - 1, 0, 1]).expect("fit"),
        [0, i32::MAX - 1, i32::MAX - 1, i32::MAX]
    );
    for (counts, found) in [
        (&[most, 1][..], "2147483648 tokens in i32"),
        (&[1, most, 5], "2147483648 tokens in i32"),
        (&[usize::MAX], "18446744073709551615 tokens in i32"),
        (&[1, usize::MAX, usize::MAX], "18446744073709551615 tokens in i32"),
    ] {
        let error = group_offsets(counts).expect_err(found);
        assert_eq!((error.kind(), error.exit_code()), (ErrorKind::Overflow, 2));
        let Error::Overflow { what, detail } = error else { panic!("{error}") };
        assert_eq!((what.as_str(), detail.as_str()), ("offsets of groups", found));
    }
}

/// Operands of a run that do not fit each other.
#[test]
fn runs() {
    for machine in DEVICES.map(Watched::new) {
        let plain = GemmOptions::default();
        let weights = machine.repacked::<Nvfp4>([G, N, K], false, HALVES);
        let run =
            |sizes: [usize; 3], weights: &Repacked, counts: &[usize], options: &GemmOptions| {
                let a = halves(sizes);
                let a = Activations::<Nvfp4>::Halves(&a);
                GroupedRun::new(&machine.kernels, &a, weights, counts, options)
            };
        let refused = |sizes, weights: &Repacked, counts: &[usize], error| {
            machine.refused(run(sizes, weights, counts, &plain), error, &[]);
        };
        let (counts, rows) = ([1, 2, 3], "rows of `x`");
        let required = "1 x 6, as the groups' tokens";
        refused([1, M + 1, K], &weights, &counts, [rows, required, "1 x 7"]);
        refused([1, M - 1, K], &weights, &counts, [rows, required, "1 x 5"]);
        refused([2, 3, K], &weights, &counts, [rows, required, "2 x 3"]);
        let all = "1 x 18446744073709551615, as the groups' tokens";
        refused([1, M, K], &weights, &[usize::MAX, 1, 2], [rows, all, "1 x 6"]);
        let matrices = "matrices of weights";
        refused([1, 3, K], &weights, &[1, 2], [matrices, "2, one for each group", "3"]);
        let error = [matrices, "4, one for each group", "3"];
        refused([1, M, K], &weights, &[1, 2, 3, 0], error);
        refused([1, M, 80], &weights, &counts, ["K of `x`", "64, the weights' K", "80"]);
        let many = machine.repacked::<Nvfp4>([1025, 8, 16], false, HALVES);
        refused([1, 1025, 16], &many, &[1; 1025], ["groups", "from 1 to 1024", "1025"]);

        let with = |weights, options: &GemmOptions, error| {
            machine.refused(run([1, M, K], weights, &counts, options), error, &[]);
        };
        let floats = |len: usize| Some(vec![1.0; len]);
        let options = plain.clone().row_factors(floats(5));
        with(&weights, &options, ["length of the row factors", "M = 6", "5"]);
        let options = plain.clone().column_factors(floats(41));
        with(&weights, &options, ["length of the column factors", "N = 40", "41"]);
        let options = plain.clone().bias(floats(80));
        with(&weights, &options, ["length of the bias", "N = 40", "80"]);
        // If one vector is each group's own, the others may be, or be shared, but are nothing else.
        let options = plain.clone().column_factors(floats(120)).bias(floats(80));
        with(&weights, &options, ["length of the bias", "N = 120", "80"]);
        let pairs = machine.repacked::<Nvfp4>([G, N, K], true, HALVES);
        let up = UpOptions::new().column_factors(floats(41));
        let error = ["length of the column factors of up", "N = 40", "41"];
        with(&pairs, &plain.clone().up(up), error);
        let up = UpOptions::new().bias(floats(39));
        with(&pairs, &plain.clone().up(up), ["length of the bias of up", "N = 40", "39"]);
        with(&pairs, &plain, ["options for up", "there for gated weights", "absent"]);
        let error = ["weights", "gated, as there are options for up", "not gated"];
        with(&weights, &gated_options(), error);

        let of_mxfp4 =
            blocks::<Mxfp4>(Generator::Exact, [1, M, K], Linear, 1.0, &mut SplitMix64::new(1));
        let of_mxfp4 = Activations::Blocks(&of_mxfp4);
        let made = GroupedRun::new(&machine.kernels, &of_mxfp4, &weights, &counts, &plain);
        machine.refused(made, ["format of activations", "nvfp4, as the weights", "mxfp4"], &[]);

        let right = run([1, M, K], &weights, &counts, &plain).expect("as it must be");
        machine.launched(right.launch());
    }
}

/// A grouped product with its operands.
struct Planned<'a> {
    machine: &'a Watched,
    product: Gemm,
    weights: DeviceWeights,
    x: DeviceBuffer,
    counts: DeviceBuffer,
    status: DeviceBuffer,
    out: DeviceBuffer,
    workspace: Workspace,
}

impl<'a> Planned<'a> {
    fn new(machine: &'a Watched, grouping: Grouping, gated: bool) -> Self {
        let options = if gated { gated_options() } else { GemmOptions::default() };
        let (kernels, weights) =
            (&machine.kernels, machine.weights::<Nvfp4>([G, N, K], gated, HALVES));
        let product = Gemm::grouped(kernels, &weights, grouping, HALVES, &options);
        let product = product.expect("planned");
        let counts: &[i32] = match grouping {
            Grouping::Contiguous { .. } => &[0, 1, 3, 6],
            Grouping::Slots { .. } | Grouping::Chosen(_) => &[2, 0, 1],
        };
        let counts: Vec<u8> = counts.iter().flat_map(|count| count.to_le_bytes()).collect();
        let workspace = Workspace::new(kernels.device(), product.workspace_bytes());
        Self {
            x: machine.upload(halves([1, M, K]).bytes()),
            counts: machine.upload(&counts),
            status: machine.poisoned(4),
            out: machine.poisoned(product.out_bytes().expect("few")[0]),
            workspace: workspace.expect("memory"),
            machine,
            product,
            weights,
        }
    }

    fn groups(&self) -> GroupBuffers<'_> {
        GroupBuffers { status: Some(&self.status), ..GroupBuffers::of(&self.counts) }
    }

    fn launch(&self, groups: GroupBuffers<'_>, vectors: Vectors<'_>) -> Result<()> {
        let (a, out) = (ActivationBuffers::Halves(&self.x), ResultBuffers::Floats(&self.out));
        let workspace = Some(&self.workspace);
        self.product.launch_grouped(groups, a, &self.weights, out, workspace, vectors)
    }

    /// The memory that no refused launch writes.
    fn kept(&self) -> [&DeviceBuffer; 2] {
        [&self.out, &self.status]
    }

    fn refused(&self, groups: GroupBuffers<'_>, error: [&str; 3]) {
        let launched = self.launch(groups, Vectors::default());
        self.machine.refused(launched, error, &self.kept());
    }

    fn refused_vectors(&self, own_vectors: bool, vectors: Vectors<'_>, error: [&str; 3]) {
        let groups = GroupBuffers { own_vectors, ..self.groups() };
        self.machine.refused(self.launch(groups, vectors), error, &self.kept());
    }
}

/// Counts, status words and factors of other lengths or devices, and factors of a half that there is not.
#[test]
fn buffers_of_groups() {
    for device in DEVICES {
        let (machine, other) = (Watched::new(device), emulated(device, SCHEDULES[0]));
        let contiguous = Planned::new(&machine, Grouping::Contiguous { bound: M }, false);
        let slots = Planned::new(&machine, Grouping::Slots { tokens: 2 }, false);
        let gated = Planned::new(&machine, Grouping::Contiguous { bound: M }, true);
        let elsewhere = |bytes| DeviceBuffer::zeroed(other.device(), "x", bytes).expect("memory");
        for (planned, bytes) in [(&contiguous, 16), (&slots, 12), (&gated, 16)] {
            for found in [bytes - 4, bytes + 4] {
                let counts = machine.poisoned(found);
                let error = ["bytes of the token counts", &bytes.to_string(), &found.to_string()];
                planned.refused(GroupBuffers { counts: &counts, ..planned.groups() }, error);
            }
            for found in [3, 8] {
                let status = Some(&machine.poisoned(found));
                let error = ["bytes of the status word", "4", &found.to_string()];
                planned.refused(GroupBuffers { status, ..planned.groups() }, error);
            }
            for found in [8, 16] {
                let factors = Some(&machine.poisoned(found));
                let error = ["bytes of the factors of the groups", "12", &found.to_string()];
                planned.refused(GroupBuffers { factors, ..planned.groups() }, error);
            }
            let theirs = [bytes, 4, 12].map(elsewhere);
            let groups = planned.groups();
            for (what, groups) in [
                ("the token counts", GroupBuffers { counts: &theirs[0], ..groups }),
                ("the status word", GroupBuffers { status: Some(&theirs[1]), ..groups }),
                ("the factors of the groups", GroupBuffers { factors: Some(&theirs[2]), ..groups }),
            ] {
                let launched = planned.launch(groups, Vectors::default());
                machine.refused_elsewhere(launched, what, &planned.kept());
            }
        }
        let factors = machine.poisoned(12);
        let what = "the factors of the groups' other half";
        for planned in [&contiguous, &slots] {
            let groups = GroupBuffers { up_factors: Some(&factors), ..planned.groups() };
            planned.refused(groups, [what, ABSENT, "12"]);
        }
        let up_factors = Some(&contiguous.counts);
        let error = ["bytes of the factors of the groups' other half", "12", "16"];
        gated.refused(GroupBuffers { up_factors, ..gated.groups() }, error);
        let up_factors = elsewhere(12);
        let groups = GroupBuffers { up_factors: Some(&up_factors), ..gated.groups() };
        machine.refused_elsewhere(gated.launch(groups, Vectors::default()), what, &gated.kept());
        for planned in [&contiguous, &slots, &gated] {
            machine.launched(planned.launch(planned.groups(), Vectors::default()));
        }
    }
}

/// Vectors that are not those of all tokens, or of all groups.
#[test]
fn vectors() {
    for machine in DEVICES.map(Watched::new) {
        let planned = Planned::new(&machine, Grouping::Contiguous { bound: M }, false);
        let gated = Planned::new(&machine, Grouping::Contiguous { bound: M }, true);
        let slots = Planned::new(&machine, Grouping::Slots { tokens: 2 }, false);
        let none = Vectors::default();
        let [shared, own, tokens] = [N, G * N, M - 1].map(|count| machine.poisoned(4 * count));
        let error = ["bytes of the row factors", "24", "20"];
        let vectors = Vectors { row_factors: Some(&tokens), ..none };
        planned.refused_vectors(false, vectors, error);
        slots.refused_vectors(false, vectors, error);
        for (own_vectors, given, [required, found]) in
            [(true, &shared, ["480", "160"]), (false, &own, ["160", "480"])]
        {
            let bias = Vectors { bias: Some(given), ..none };
            let columns = Vectors { column_factors: Some(given), ..none };
            for (what, vectors) in [("bias", bias), ("column factors", columns)] {
                let error = [&format!("bytes of the {what}"), required, found];
                planned.refused_vectors(own_vectors, vectors, error);
                slots.refused_vectors(own_vectors, vectors, error);
            }
            let bias = Vectors { up_bias: Some(given), ..none };
            let columns = Vectors { up_column_factors: Some(given), ..none };
            for (what, vectors) in [("bias of up", bias), ("column factors of up", columns)] {
                let error = [&format!("bytes of the {what}"), required, found];
                gated.refused_vectors(own_vectors, vectors, error);
                planned.refused_vectors(
                    own_vectors,
                    vectors,
                    [&format!("the {what}"), ABSENT, "there"],
                );
            }
        }
    }
}

/// A grouped product is launched with groups and no other is, with weights for all groups and tokens for all rows.
#[test]
fn launches() {
    for machine in DEVICES.map(Watched::new) {
        let kernels = &machine.kernels;
        let grouped = Planned::new(&machine, Grouping::Contiguous { bound: M }, false);
        let Planned { product, weights: three, x, out, workspace, .. } = &grouped;
        let one = machine.weights::<Nvfp4>([1, N, K], false, HALVES);
        let dense = Gemm::new(kernels, &one, [1, M], HALVES, &GemmOptions::default());
        let dense = dense.expect("planned");
        let (a, c, none) =
            (ActivationBuffers::Halves(x), ResultBuffers::Floats(out), Vectors::default());
        let workspace = Some(workspace);
        let kept = grouped.kept();
        let launched = product.launch(a, three, c, workspace, none);
        machine.refused(launched, ["product", "not grouped", "grouped"], &kept);
        let launched = dense.launch_grouped(grouped.groups(), a, &one, c, workspace, none);
        machine.refused(launched, ["product", "grouped", "not grouped"], &kept);

        let launch = |weights, x, out| {
            let (a, c) = (ActivationBuffers::Halves(x), ResultBuffers::Floats(out));
            product.launch_grouped(grouped.groups(), a, weights, c, workspace, none)
        };
        let error = ["matrices of weights", "3, as planned", "1"];
        machine.refused(launch(&one, x, out), error, &kept);
        let four = machine.weights::<Nvfp4>([4, N, K], false, HALVES);
        let error = ["matrices of weights", "3, as planned", "4"];
        machine.refused(launch(&four, x, out), error, &kept);
        let pairs = machine.weights::<Nvfp4>([G, N, K], true, HALVES);
        let error = ["weights", "not gated, as planned", "gated"];
        machine.refused(launch(&pairs, x, out), error, &kept);
        let [short, long] = [M - 1, M + 1].map(|tokens| machine.poisoned(2 * tokens * K));
        for (wrong, found) in [(&short, "640"), (&long, "896")] {
            let error = ["bytes of the activations", "768", found];
            machine.refused(launch(three, wrong, out), error, &kept);
            let error = ["bytes of the result", "480", found];
            machine.refused(launch(three, x, wrong), error, &[wrong]);
        }
        machine.launched(launch(three, x, out));
    }
}
