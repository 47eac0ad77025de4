//! `ptx-emu replay --on cuda:0`: a bundle on a GPU.
//!
//! Its memory is mapped at the bundle's own addresses, so that pointers in parameters and in memory
//! are right. The values of the parameters are those of the bundle's block; where the driver has
//! them differs between GPUs.

use super::replay::ReplayArgs;
use super::{console, report};
use ptx_emu::bundle::{Bundle, BundleError, OutputReport};
use ptx_emu::readable_name;
use serde_json::json;

/// Parses `cuda:N`.
pub(super) fn ordinal(text: &str) -> Result<u32, String> {
    let number = text.strip_prefix("cuda:").and_then(|digits| digits.parse().ok());
    number.ok_or_else(|| "required cuda:N, N being the driver's number of the GPU".to_owned())
}

/// The reason why a bundle did not run on a GPU.
#[derive(Debug, thiserror::Error)]
enum HardwareError {
    /// The bundle does not fit.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// This program cannot use GPUs.
    #[cfg(not(feature = "cuda"))]
    #[error("--on: this program was built without the feature `cuda`")]
    NotBuilt,
    /// There is no such GPU, or the driver refuses something.
    #[cfg(feature = "cuda")]
    #[error("--on cuda:{ordinal}: {source}")]
    Cuda { ordinal: u32, source: nvfp4_cuda::CudaError },
}

impl HardwareError {
    /// 1 for a kernel that went wrong on the GPU, 2 for what did not run.
    fn exit_code(&self) -> u8 {
        match self {
            #[cfg(feature = "cuda")]
            Self::Cuda { source: nvfp4_cuda::CudaError::Call { code, .. }, .. }
                if code.is_sticky() =>
            {
                1
            }
            #[cfg(feature = "cuda")]
            Self::Cuda { .. } => 2,
            #[cfg(not(feature = "cuda"))]
            Self::NotBuilt => 2,
            Self::Bundle(_) => 2,
        }
    }
}

/// Runs the command: what to print on standard output, and the exit code.
pub(super) fn run(args: &ReplayArgs, ordinal: u32) -> (Option<String>, u8) {
    match replay(args, ordinal) {
        Ok((name, bundle, outputs)) => {
            let right = outputs.iter().all(|output| output.mismatches == 0);
            let show = if args.json { as_json } else { as_text };
            (Some(show(args, ordinal, &name, &bundle, &outputs)), u8::from(!right))
        }
        Err(error) => {
            console::complain(&error);
            let code = error.exit_code();
            let status = if code == 1 { "failed" } else { "bad input" };
            let json = || json!({ "status": status, "error": error.to_string() }).to_string();
            (args.json.then(json), code)
        }
    }
}

/// The GPU's name, the bundle, and how its outputs compare.
type Ran = (String, Bundle, Vec<OutputReport>);

fn replay(args: &ReplayArgs, ordinal: u32) -> Result<Ran, HardwareError> {
    let bundle = args.outputs.read(&args.bundle)?;
    let (name, left) = launch(&bundle, ordinal)?;
    if let Some(folder) = &args.outputs.out {
        left.write(folder)?;
    }
    let outputs = bundle.compare(&left);
    Ok((name, bundle, outputs))
}

#[cfg(not(feature = "cuda"))]
fn launch(_: &Bundle, _: u32) -> Result<(String, Bundle), HardwareError> {
    Err(HardwareError::NotBuilt)
}

/// Launches on the GPU: its name, and the bundle with what the launch left as its outputs.
#[cfg(feature = "cuda")]
fn launch(bundle: &Bundle, ordinal: u32) -> Result<(String, Bundle), HardwareError> {
    cuda::launch(bundle, ordinal).map_err(|error| match error {
        cuda::Failure::Bundle(error) => HardwareError::Bundle(error),
        cuda::Failure::Cuda(source) => HardwareError::Cuda { ordinal, source },
    })
}

fn as_json(
    args: &ReplayArgs,
    ordinal: u32,
    name: &str,
    bundle: &Bundle,
    outputs: &[OutputReport],
) -> String {
    let right = outputs.iter().all(|output| output.mismatches == 0);
    json!({
        "status": if right { "done" } else { "different" },
        "bundle": args.bundle.display().to_string(),
        "kernel": bundle.entry,
        "gpu": name,
        "device": format!("cuda:{ordinal}"),
        "emulated": false,
        "grid": bundle.grid,
        "block": bundle.block,
        "outputs": outputs.iter().map(report::output).collect::<Vec<_>>(),
    })
    .to_string()
}

fn as_text(
    _: &ReplayArgs,
    ordinal: u32,
    name: &str,
    bundle: &Bundle,
    outputs: &[OutputReport],
) -> String {
    let mut text = format!("`{}` ran on cuda:{ordinal} ({name})", readable_name(&bundle.entry));
    if outputs.is_empty() {
        text.push_str("\nthe bundle expects no outputs: nothing was compared");
    }
    outputs.iter().for_each(|output| report::comparison(&mut text, output));
    text
}

#[cfg(feature = "cuda")]
mod cuda {
    use crate::cli::device;
    use nvfp4_cuda::{CudaDevice, CudaError, PtxBuffer, PtxLaunch, TensorMapArguments};
    use ptx_emu::bundle::{Bundle, BundleError, MapPlace};
    use ptx_emu::tensor_map::TensorMap;
    use ptx_emu::{Gpu, LoadError, examine};

    /// The byte of memory that nobody wrote, as on the emulator.
    const UNWRITTEN: u8 = 0xcb;

    #[derive(Debug, thiserror::Error)]
    pub(super) enum Failure {
        #[error(transparent)]
        Bundle(#[from] BundleError),
        #[error(transparent)]
        Cuda(#[from] CudaError),
    }

    fn field(field: impl Into<String>, required: impl Into<String>, actual: String) -> Failure {
        let (field, required) = (field.into(), required.into());
        Failure::Bundle(BundleError::Field { field, required, actual })
    }

    fn encode(device: &CudaDevice, map: &TensorMap) -> Result<[u8; 128], CudaError> {
        device.encode_tensor_map(&TensorMapArguments {
            element: map.element.number(),
            address: map.address,
            dims: &map.dims,
            strides: &map.strides,
            box_dims: &map.box_dims,
            element_strides: &map.element_strides,
            interleave: map.interleave.number(),
            swizzle: map.swizzle.number(),
            l2_promotion: map.l2_promotion.number(),
            fill: map.fill.number(),
        })
    }

    /// The bytes of memory and parameters that a range has in one of `all`: addresses and contents.
    fn within<'a>(
        all: impl IntoIterator<Item = (u64, &'a mut Vec<u8>)>,
        addr: u64,
        size: usize,
    ) -> Option<&'a mut [u8]> {
        all.into_iter().find_map(|(start, bytes)| {
            let at = usize::try_from(addr.checked_sub(start)?).ok()?;
            bytes.get_mut(at..at.checked_add(size)?)
        })
    }

    /// The values of the parameters in a bundle's block.
    fn values(bundle: &Bundle, block: &[u8]) -> Result<Vec<Vec<u8>>, Failure> {
        let refused = |source: LoadError| {
            Failure::Bundle(BundleError::Load { path: "module.ptx".into(), source })
        };
        // Instructions that the emulator does not model do not matter here.
        let gpu = Gpu::for_module(&bundle.ptx);
        let found = examine(&bundle.ptx, &gpu, Some(&bundle.entry)).map_err(refused)?;
        let outcome = found.entries.into_iter().next().map(|entry| entry.outcome);
        let Some((kernel, _)) = outcome.transpose().map_err(refused)? else {
            return Err(field("entry", "a kernel of the module", bundle.entry.clone()));
        };
        let values = kernel.params.iter().map(|param| {
            let end = param.offset as usize + param.size as usize;
            block.get(param.offset as usize..end).map(<[u8]>::to_vec).ok_or_else(|| {
                field("params", format!("{} bytes", kernel.param_bytes), block.len().to_string())
            })
        });
        values.collect()
    }

    /// Launches as [`super::launch`] does.
    pub(super) fn launch(bundle: &Bundle, ordinal: u32) -> Result<(String, Bundle), Failure> {
        let device = CudaDevice::open(ordinal)?;
        let mut params = bundle.params.clone();
        let contents = |(size, contents): (u64, &Option<Vec<u8>>)| match contents {
            Some(contents) => contents.clone(),
            None => vec![UNWRITTEN; size as usize],
        };
        let mut memory: Vec<Vec<u8>> =
            bundle.memory.iter().map(|one| contents((one.size, &one.contents))).collect();
        for (index, placed) in bundle.tensor_maps.iter().enumerate() {
            let bytes = encode(&device, &placed.map)?;
            let starts = bundle.memory.iter().map(|one| one.addr);
            let (at, room) = match placed.place {
                MapPlace::Global(at) => (at, within(starts.zip(&mut memory), at, bytes.len())),
                MapPlace::Param(at) => (at, within([(0, &mut params)], at, bytes.len())),
            };
            let Some(room) = room else {
                let required = format!("{} bytes within params or memory", bytes.len());
                return Err(field(format!("tensor_maps[{index}].at"), required, at.to_string()));
            };
            room.copy_from_slice(&bytes);
        }
        let values = values(bundle, &params)?;
        let launch = PtxLaunch {
            entry: &bundle.entry,
            grid: bundle.grid,
            block: bundle.block,
            cluster: bundle.cluster,
            dynamic_shared: bundle.dynamic_shared,
            cooperative: bundle.cooperative,
            overlaps: bundle.programmatic,
        };
        let placed = bundle.memory.iter().zip(&memory);
        let buffers: Vec<PtxBuffer<'_>> =
            placed.map(|(one, bytes)| PtxBuffer { bytes, address: Some(one.addr) }).collect();
        let params = |_: &[u64]| Ok::<_, Failure>(values);
        let mut after = device::run(&device, &bundle.ptx, &launch, &buffers, params)?;

        let mut left = bundle.clone();
        for (name, output) in &mut left.expected {
            let starts = bundle.memory.iter().map(|one| one.addr);
            let (addr, size) = (output.addr, output.bytes.len());
            let Some(bytes) = within(starts.zip(&mut after), addr, size) else {
                let name = format!("expected.{name}");
                return Err(field(name, "a range in `memory`", format!("{addr:#x}")));
            };
            output.bytes = bytes.to_vec();
        }
        left.expect_changes(|addr, _| {
            let found = bundle.memory.iter().zip(&mut after).find(|(one, _)| one.addr == addr);
            let parts = found.map(|(_, bytes)| (addr, std::mem::take(bytes)));
            let written = |bytes: &[u8]| bytes.iter().any(|byte| *byte != UNWRITTEN);
            Ok::<_, Failure>(parts.into_iter().filter(|(_, bytes)| written(bytes)).collect())
        })?;
        Ok((device.info().name.clone(), left))
    }
}
