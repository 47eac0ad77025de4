//! The engine that computes: the reference on the CPU, the emulator, or a GPU.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use candle_core::{DType, Device, Result, Tensor};
use nvfp4::device::{Backend, Kernels};
use nvfp4::gemm::{ActivationKind, Adding, Workspace};
use nvfp4::{FloatType, HalfType};

use crate::error::shape;
#[cfg(feature = "cuda")]
use crate::error::wrap;
use crate::memory::Memory;

/// An engine that layers compute on. Layers of a model share one.
///
/// | engine | tensors | what computes |
/// | --- | --- | --- |
/// | [`reference`](Self::reference) | on the CPU | products of the dequantised weights in f32 |
/// | [`emulated`](Self::emulated) | on the CPU | the kernels, on the emulator |
/// | [`for_device`](Self::for_device) of a GPU | on the GPU | the kernels, on the stream of candle's device |
///
/// Kernels take 16-bit activations, of the type that the engine is made with; others are converted. The
/// reference takes activations as they are. Layers whose products are of e4m3 have an engine
/// [with such activations](Self::with_activations).
pub struct Engine {
    place: Computer,
    half: HalfType,
    activations: Activations,
    pub(crate) adding: Adding,
    device: Device,
    pub(crate) memory: Memory,
}

/// The form that 16-bit activations are given before a product.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activations {
    /// Their own (W4A16).
    #[default]
    Halves,
    /// e4m3 with a scale for each row (W4A8): less accurate, and faster from some hundred rows on
    /// (`docs/experiments/w4a8.md`). NVFP4 weights are rounded, and MXFP4 weights that e4m3 does not hold are refused.
    Fp8,
}

/// The place where products are made.
#[derive(Clone)]
pub(crate) enum Computer {
    Reference,
    Kernels(Box<Kernels>),
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Computer::Reference => f.write_str("Engine(reference)"),
            Computer::Kernels(kernels) => write!(f, "Engine({})", kernels.device().choice()),
        }
    }
}

impl Engine {
    fn new(place: Computer, half: HalfType, device: Device) -> Arc<Self> {
        let (activations, adding) = (Activations::default(), Adding::default());
        Arc::new(Self { place, half, activations, adding, device, memory: Memory::default() })
    }

    /// Returns an engine on the same device for layers with other activations. The reference does not tell them apart.
    #[must_use]
    pub fn with_activations(&self, activations: Activations) -> Arc<Self> {
        Arc::new(Self { activations, ..self.apart() })
    }

    /// An engine alike, with memory of its own.
    fn apart(&self) -> Self {
        let Self { place, half, activations, adding, device, memory } = self;
        let memory = memory.apart();
        let (place, device) = (place.clone(), device.clone());
        Self { place, half: *half, activations: *activations, adding: *adding, device, memory }
    }

    /// An engine alike, whose launches may be recorded into graphs.
    ///
    /// # Safety
    /// While a graph may be replayed, the owner keeps a [`lease`](Memory::lease) of the engine's memory, its layers, and the tensors that
    /// they were given while it was recorded.
    #[cfg(feature = "models")]
    pub(crate) unsafe fn recordable(&self) -> Arc<Self> {
        let place = match &self.place {
            Computer::Reference => Computer::Reference,
            Computer::Kernels(kernels) => {
                // SAFETY: passed on to the caller.
                Computer::Kernels(Box::new(unsafe { kernels.recordable() }))
            }
        };
        Arc::new(Self { place, ..self.apart() })
    }

    /// Returns an engine on the same device whose products of activations in e4m3 may be added
    /// [so](Adding). Engines add with promotions otherwise.
    #[must_use]
    pub fn with_adding(&self, adding: Adding) -> Arc<Self> {
        Arc::new(Self { adding, ..self.apart() })
    }

    /// The reference: weights are dequantised when a layer is made, which takes eight times their
    /// memory.
    #[must_use]
    pub fn reference() -> Arc<Self> {
        Self::new(Computer::Reference, HalfType::F16, Device::Cpu)
    }

    /// Kernels on the emulator, for tensors on the CPU and 16-bit activations of type `half`.
    ///
    /// # Errors
    /// For kernels of a GPU.
    pub fn emulated(kernels: Kernels, half: HalfType) -> Result<Arc<Self>> {
        match kernels.device().backend() {
            Backend::Emulator(_) => {
                Ok(Self::new(Computer::Kernels(Box::new(kernels)), half, Device::Cpu))
            }
            Backend::Cuda(_) => Err(shape(
                "the kernels",
                "on an emulated device",
                &kernels.device().choice().device,
            )),
        }
    }

    /// Chooses the engine for tensors on `device`: the [reference](Self::reference) for the CPU; for a
    /// GPU the kernels in the program or beside it ([`nvfp4::device::Device::kernels`]), queued on the
    /// stream of `device`.
    ///
    /// # Errors
    /// For a GPU without kernels, and for devices of other makers.
    pub fn for_device(device: &Device, half: HalfType) -> Result<Arc<Self>> {
        match device {
            Device::Cpu => Ok(Self::new(Computer::Reference, half, Device::Cpu)),
            #[cfg(feature = "cuda")]
            Device::Cuda(gpu) => {
                let kernels = on_gpu(gpu)?;
                Ok(Self::new(Computer::Kernels(Box::new(kernels)), half, device.clone()))
            }
            other => {
                Err(shape("the device", "the CPU, or with feature `cuda` a GPU", other.location()))
            }
        }
    }

    /// [`for_device`](Self::for_device) of a GPU whose stream may be recorded into a graph meanwhile.
    /// Without it, launches are refused then. A layer is to have run before with the same number of tokens
    /// on the same thread, so that nothing is allocated in the recording.
    ///
    /// # Errors
    /// The same as there.
    ///
    /// # Safety
    /// The engine, its layers, and the tensors that they are given while the stream is being recorded are
    /// kept as long as the graph may be replayed. The engine keeps what layers allocate.
    #[cfg(feature = "cuda")]
    pub unsafe fn for_recorded_device(device: &Device, half: HalfType) -> Result<Arc<Self>> {
        let Device::Cuda(gpu) = device else {
            return Err(shape("the device", "a GPU", device.location()));
        };
        // SAFETY: passed on to the caller.
        let kernels = unsafe { on_gpu(gpu)?.recordable() };
        let engine = Self::new(Computer::Kernels(Box::new(kernels)), half, device.clone());
        let memory = Memory::new(true);
        Ok(Arc::new(Self { memory, ..engine.apart() }))
    }

    /// The device of the tensors.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Type of the activations that kernels take.
    #[must_use]
    pub fn half(&self) -> HalfType {
        self.half
    }

    pub(crate) fn place(&self) -> &Computer {
        &self.place
    }

    /// Refuses tensors on the CPU where weights are on a GPU.
    pub(crate) fn require_cpu(&self) -> Result<()> {
        match &self.device {
            Device::Cpu => Ok(()),
            other => {
                Err(shape("place of the activations", format!("{:?}", other.location()), "Cpu"))
            }
        }
    }

    /// The form that activations are given before a product.
    #[must_use]
    pub fn activations(&self) -> Activations {
        self.activations
    }

    pub(crate) fn kind(&self) -> ActivationKind {
        match self.activations {
            Activations::Halves => ActivationKind::Halves(self.half),
            Activations::Fp8 => ActivationKind::Fp8(Some(self.half)),
        }
    }

    /// Lends this thread's workspace, with room for `bytes`.
    pub(crate) fn with_workspace<R>(
        &self,
        kernels: &Kernels,
        bytes: usize,
        launch: impl FnOnce(Option<&Workspace>) -> nvfp4::Result<R>,
    ) -> nvfp4::Result<R> {
        if bytes == 0 {
            return launch(None);
        }
        let mut workspaces = lock(&self.memory.workspaces);
        let thread = thread::current().id();
        let mut own = match workspaces.remove(&thread) {
            Some(workspace) if workspace.len() >= bytes => workspace,
            smaller => {
                if let Some(smaller) = smaller {
                    self.memory.retire(smaller);
                }
                Workspace::new(kernels.device(), bytes.next_power_of_two())?
            }
        };
        let result = launch(Some(&own));
        if result.is_err() && own.reset().is_err() {
            let other = Workspace::new(kernels.device(), bytes.next_power_of_two())?;
            self.memory.retire(std::mem::replace(&mut own, other));
        }
        workspaces.insert(thread, own);
        result
    }
}

/// The kernels in the program or beside it, on the stream of a GPU.
#[cfg(feature = "cuda")]
fn on_gpu(gpu: &candle_core::CudaDevice) -> Result<Kernels> {
    let device = nvfp4::device::Device::from_cudarc(&gpu.cuda_stream());
    device.and_then(|device| device.kernels(None)).map_err(wrap)
}

/// Locks a mutex, whether or not a thread that held it has panicked.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps a result until the recording that it is made in, if there is one, is over.
pub(crate) fn kept(result: Tensor) -> Tensor {
    #[cfg(feature = "cuda")]
    crate::results::keep(&result);
    result
}

/// The type of elements.
pub(crate) fn float_type(dtype: DType, what: &str) -> Result<FloatType> {
    match dtype {
        DType::F32 => Ok(FloatType::F32),
        DType::F16 => Ok(FloatType::F16),
        DType::BF16 => Ok(FloatType::Bf16),
        other => Err(shape(format!("type of {what}"), "f32, f16 or bf16", other.as_str())),
    }
}

/// Candle's type of floats.
pub(crate) fn dtype(float: FloatType) -> DType {
    match float {
        FloatType::F32 => DType::F32,
        FloatType::F16 => DType::F16,
        FloatType::Bf16 => DType::BF16,
    }
}
