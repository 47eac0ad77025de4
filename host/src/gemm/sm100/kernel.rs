//! A kernel of sm_100a for one problem, and which operand is where in its tiles.

use fp4_formats::gemm::sm100::config::Products;
use fp4_formats::gemm::sm100::prepare;
use fp4_formats::gemm::{Problem, ResultType, Split};
use fp4_formats::params::bytes;
use fp4_formats::{Operand, TensorFamily};

use super::launch;
use super::prepare::Preparation;
use super::workspace::Sm100Workspace;
use crate::buffer::ALIGNMENT;
use crate::device::Queue;
use crate::error::{Error, Result};
use crate::gemm::family::{Kernel, Launch, LaunchShape, Stored};
use crate::gemm::fp8;
use crate::gemm::groups::GroupRequest;
use crate::gemm::strides::Entries;
use crate::gemm::{ActivationKind, Candidate, Reads, WeightForm};
use crate::plan::sm100::{self as estimate, Estimate, Limit};
use crate::quantize::device::PlannedKernel;

/// A kernel of sm_100a for one problem.
#[derive(Debug)]
pub(super) struct Sm100Kernel {
    /// Sizes; of a grouped product, those of its matrices.
    pub problem: Problem,
    /// The groups of a grouped product.
    pub groups: Option<GroupRequest>,
    /// Whether it is one of several products of sizes of their own.
    pub mixed: bool,
    /// Streaming multiprocessors that the choice was made for.
    pub sms: u32,
    /// The estimate of a grouped product, for the tokens that are expected.
    pub choice: Estimate,
}

impl Sm100Kernel {
    /// Returns the part of the activations that is laid out before the product; none for 16-bit
    /// ones.
    pub fn preparation(&self, kind: ActivationKind, entries: Entries) -> Option<Preparation> {
        let groups = self.groups.map(|groups| groups.memory(&self.problem));
        Preparation::of(self.choice.config, &self.problem, kind, entries, groups)
    }

    /// Returns the layout of the workspace.
    pub const fn workspace(&self) -> Sm100Workspace {
        Sm100Workspace::new(self.sms, &self.choice)
    }

    /// Offsets behind [`Sm100Workspace::activations`] of activations that become e4m3 and of their
    /// tokens' scales, and their bytes; none beyond what memory can hold.
    pub fn made(&self) -> Option<([usize; 2], usize)> {
        let [elements, scales] = fp8::made_bytes(&self.problem)?;
        let at = elements.checked_next_multiple_of(ALIGNMENT as usize)?;
        Some(([0, at], at.checked_add(scales)?))
    }
}

impl Kernel for Sm100Kernel {
    fn candidate(&self) -> Candidate {
        let Estimate { config, split, dynamic, clusters, resident, count, clocks, limit, .. } =
            self.choice;
        let waves = match split {
            Split::StreamK => 1,
            Split::None | Split::Cluster(_) => {
                let at_a_time = if dynamic { resident } else { clusters };
                count.div_ceil(at_a_time.max(1))
            }
        };
        Candidate {
            kernel: config.name,
            split,
            ctas: u64::from(clusters) * u64::from(config.cluster()),
            waves: u64::from(waves),
            cycles: clocks,
            bound: match limit {
                Limit::Dram => "DRAM",
                Limit::L2 => "L2",
                Limit::Copies => "copies into shared memory",
                Limit::Products => "tensor cores",
                Limit::Decode => "decoding of weights",
                Limit::Results => "quantising of results",
            },
        }
    }

    fn problem(&self) -> &Problem {
        &self.problem
    }

    fn shape(&self) -> LaunchShape {
        let Estimate { config, swapped, clusters, .. } = self.choice;
        let (x, y) = (config.rows(), config.columns);
        LaunchShape {
            ctas: u64::from(clusters) * u64::from(config.cluster()),
            cluster: config.cluster(),
            threads: config.threads(),
            dynamic_shared: config.shared_bytes(),
            stages: config.stages(),
            tile: if swapped { [x, y] } else { [y, x] },
        }
    }

    /// Rows of `X` once per cluster, of `Y` once per tile; codes that a warp loads are not copied.
    fn reads(&self) -> Reads {
        let Estimate { config, tiles, count, .. } = &self.choice;
        let activation_passes = tiles.row_tiles().into();
        let weight_passes = tiles.token_tiles().into();
        let copying = u64::from(config.cta_group * config.multicast);
        let steps = u64::from(*count) * u64::from(config.steps(self.problem.k));
        let loads_codes = config.loads_tokens() && prepare::codes_need_it(self.problem.k);
        let loaded = if loads_codes { config.y_bytes() } else { 0 };
        let bytes = steps * copying * u64::from(config.read_bytes() - loaded);
        Reads { activation_passes, weight_passes, bytes }
    }

    /// The order of sums within the tensor core is not specified. The factors of a problem, which are
    /// multiplied on the device, count like additions.
    fn additions(&self) -> u32 {
        const FACTORS: u32 = 4;
        self.problem.k + if self.groups.is_some() { FACTORS } else { 0 }
    }

    fn weight_form(&self) -> WeightForm {
        let Problem { n, k, .. } = self.problem;
        let (tensor, config) = (TensorFamily::Tcgen05, self.choice.config);
        let activations = config.takes_bytes().then_some(Operand::E4m3);
        let format = config.format;
        WeightForm { tensor, format, activations, rows: n, columns: k, gated: None }
    }

    fn decoded_scale(&self, _: ActivationKind) -> f32 {
        1.0
    }

    fn workspace_bytes(&self, kind: ActivationKind) -> Result<usize> {
        let made = match kind {
            ActivationKind::Blocks { .. } => Some(
                self.preparation(kind, Entries::Dense).map_or(0, |preparation| preparation.bytes),
            ),
            ActivationKind::Halves(_) | ActivationKind::Fp8(None) => Some(0),
            ActivationKind::Fp8(Some(_)) => self.made().map(|(_, bytes)| bytes as u64),
        };
        made.and_then(|made| self.workspace().bytes(made)).ok_or_else(|| Error::Overflow {
            what: "workspace".into(),
            detail: format!("activations of {:?}", self.problem),
        })
    }

    fn before(&self, kind: ActivationKind, entries: Entries) -> Result<Vec<PlannedKernel>> {
        if let ActivationKind::Fp8(Some(input)) = kind {
            return fp8::steps(&self.problem, input, entries);
        }
        let preparation = self.preparation(kind, entries);
        Ok(preparation.map_or(Vec::new(), |preparation| preparation.steps()))
    }

    fn store_cycles(&self, result: ResultType) -> u64 {
        estimate::store_clocks(self.choice.config, self.choice.swapped, result)
    }

    fn why(&self, chosen: &str, kind: ActivationKind) -> Vec<String> {
        let Estimate { config, swapped, schedule, dynamic, count, limit, .. } = &self.choice;
        let weights = if *swapped { "rows" } else { "columns" };
        let order = if *dynamic {
            "by cluster launch control"
        } else if schedule.has_fix_up() {
            "in even runs of their K steps"
        } else {
            "one after the other"
        };
        let first = match &self.groups {
            Some(GroupRequest { expected: [groups, tokens], .. }) => format!(
                "{chosen} for {tokens} tokens of each of {groups} groups: {count} tiles {order}, \
                 bound by {}; the kernel finds out how many there are",
                limit.name()
            ),
            None if self.mixed => format!(
                "{count} tiles beside those of other products, {order}, the longest first; bound by {}",
                limit.name()
            ),
            None => format!("{chosen}: {count} tiles {order}, bound by {}", limit.name()),
        };
        let mut why = vec![first, format!("weights are the {weights} of the tensor core's tiles")];
        if schedule.has_fix_up() {
            why.push(format!(
                "up to {} clusters split the K of a tile; their partial sums meet in the workspace",
                schedule.parts()
            ));
        }
        why.extend(match config.products() {
            Products::Blocks => None,
            Products::Halves(_) => {
                Some("weights are decoded to the activations' type, exactly".into())
            }
            Products::Bytes => Some("weights are multiplied with their scales, exactly".into()),
            Products::Folded => Some(
                "weights are folded with their block scales to e4m3, rounded to a mantissa of 3 bits"
                    .into(),
            ),
        });
        if let ActivationKind::Fp8(Some(input)) = kind {
            why.push(fp8::why(input));
        }
        let Some(preparation) = self.preparation(kind, Entries::Dense) else {
            return why;
        };
        if config.loads_tokens() {
            why.push("the product loads scales of activations as they are in memory".into());
        }
        if preparation.codes.is_some() {
            why.push("rows of activations are not multiples of 16 bytes: padded before".into());
        }
        if self.groups.is_some() {
            why.push(
                "scales of each group's activations are laid out in tiles of their own".into(),
            );
        } else if preparation.scales.is_some() {
            why.push("scales of activations are laid out in whole 128x4 tiles before".into());
        }
        if preparation.bytes > 0 && self.groups.is_none() {
            why.push("the product begins to copy weights while that is done".into());
        }
        why
    }

    fn store_path(&self, stored: Stored) -> Option<&'static str> {
        Some(launch::store_path(self, stored))
    }

    fn tiles(&self) -> u64 {
        self.choice.count.into()
    }

    fn launch<'k>(&self, launch: &Launch<'k>, queue: &mut dyn Queue<'k>) -> Result<()> {
        launch::give(self, launch, queue)
    }

    fn prepare<'k>(&self, launch: &Launch<'k>, queue: &mut dyn Queue<'k>) -> Result<()> {
        launch::lay_out(self, launch, queue)
    }

    fn block(&self, launch: &Launch<'_>) -> Result<Vec<u8>> {
        Ok(bytes(&launch::params(self, launch)?).to_vec())
    }
}
