//! A kernel of sm_100a for one problem, and which operand is where in its tiles.

use fp4_formats::TensorFamily;
use fp4_formats::gemm::blackwell::choose::{self, Estimate, Limit};
use fp4_formats::gemm::{Problem, ResultType};
use ptx_emu::LaunchReport;

use super::launch;
use super::prepare::Preparation;
use crate::error::{Error, Result};
use crate::gemm::family::{Kernel, Launch, LaunchShape};
use crate::gemm::plan::{Candidate, Reads};
use crate::gemm::strides::Entries;
use crate::gemm::{ActivationKind, Gemm, WeightForm};
use crate::quantize::device::Step;

/// A kernel of sm_100a for one problem.
#[derive(Debug)]
pub(super) struct BlackwellKernel {
    pub problem: Problem,
    pub choice: Estimate,
}

impl Kernel for BlackwellKernel {
    fn candidate(&self) -> Candidate {
        let Estimate { config, dynamic, clusters, resident, count, clocks, limit, .. } =
            self.choice;
        let resident = if dynamic { resident } else { clusters };
        Candidate {
            kernel: config.name,
            split: config.split,
            ctas: u64::from(clusters) * u64::from(config.cluster()),
            waves: u64::from(count.div_ceil(resident.max(1))),
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

    /// Rows of `X` once per cluster, of `Y` once per tile.
    fn reads(&self) -> Reads {
        let Estimate { config, tiles, count, .. } = &self.choice;
        let activation_passes = tiles.row_tiles().into();
        let weight_passes = tiles.token_tiles().into();
        let copying = u64::from(config.cta_group * config.multicast);
        let steps = u64::from(*count) * u64::from(config.steps(self.problem.k));
        let bytes = steps * copying * u64::from(config.read_bytes());
        Reads { activation_passes, weight_passes, bytes }
    }

    /// The order of sums within the tensor core is not specified.
    fn additions(&self) -> u32 {
        self.problem.k
    }

    fn weight_form(&self) -> WeightForm {
        let Problem { n, k, .. } = self.problem;
        let (tensor, format) = (TensorFamily::Tcgen05, self.choice.config.format);
        WeightForm { tensor, format, activations: None, rows: n, columns: k, gated: None }
    }

    fn decoded_scale(&self, _: ActivationKind) -> f32 {
        1.0
    }

    fn workspace_bytes(&self, kind: ActivationKind) -> Result<usize> {
        let preparation = Preparation::of(&self.problem, kind, Entries::Dense);
        let bytes = preparation.map_or(0, |preparation| preparation.bytes);
        usize::try_from(bytes).map_err(|_| Error::Overflow {
            what: "workspace".into(),
            detail: format!("{bytes} bytes"),
        })
    }

    fn before(&self, kind: ActivationKind, entries: Entries) -> Result<Vec<Step>> {
        let preparation = Preparation::of(&self.problem, kind, entries);
        Ok(preparation.map_or(Vec::new(), |preparation| preparation.steps()))
    }

    fn store_cycles(&self, result: ResultType) -> u64 {
        choose::store_clocks(self.choice.config, self.choice.swapped, result)
    }

    fn why(&self, chosen: &str, kind: ActivationKind) -> Vec<String> {
        let Estimate { config, swapped, dynamic, count, limit, .. } = &self.choice;
        let weights = if *swapped { "rows" } else { "columns" };
        let order = if *dynamic { "by cluster launch control" } else { "one after the other" };
        let mut why = vec![
            format!("{chosen}: {count} tiles {order}, bound by {}", limit.name()),
            format!("weights are the {weights} of the tensor core's tiles"),
        ];
        if config.activations.is_some() {
            why.push("weights are decoded to the activations' type, exactly".into());
        }
        let Some(preparation) = Preparation::of(&self.problem, kind, Entries::Dense) else {
            return why;
        };
        if preparation.codes.is_some() {
            why.push("rows of activations are not multiples of 16 bytes: padded before".into());
        }
        if preparation.scales.is_some() {
            why.push("scales of activations are laid out in whole 128x4 tiles before".into());
        }
        if preparation.bytes > 0 {
            why.push("the product begins to copy weights while that is done".into());
        }
        why
    }

    fn store_path(&self, gemm: &Gemm) -> Option<&'static str> {
        Some(launch::store_path(gemm, &self.choice))
    }

    fn launch(&self, launch: Launch<'_>) -> Result<Vec<LaunchReport>> {
        launch::queue(&self.choice, launch)
    }
}
