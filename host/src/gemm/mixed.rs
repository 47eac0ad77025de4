//! Mixed products: several of different sizes in one launch.

use fp4_formats::Divisor;
use fp4_formats::gemm::Epilogue;
use fp4_formats::gemm::mixed::{BLOCK_ALIGN, Mixed};
use fp4_formats::params::bytes;

use super::described::{self, Planned};
use super::family::{Launch, LaunchShape};
use super::product::check_kind;
use super::{
    ActivationBuffers, ActivationKind, DeviceWeights, Gemm, GemmOptions, GemmPlan, ResultBuffers,
    Vectors, Workspace,
};
use crate::buffer::{ALIGNMENT, DeviceBuffer};
use crate::device::{AtOnce, Device, FoundKernel, Kernels, LaunchSpec};
use crate::error::{Error, Result};

/// One product of a [`MixedGemm`]: `out = activations weights^T`.
#[derive(Clone, Copy, Debug)]
pub struct MixedProduct<'a> {
    /// Rows of the activations and of the result, M; 0 for a product that is left out, whose buffers
    /// are not looked at.
    pub tokens: usize,
    /// Activations `[M, K]`.
    pub activations: ActivationBuffers<'a>,
    /// Weights, one matrix.
    pub weights: &'a DeviceWeights,
    /// Result `[M, N]`.
    pub out: ResultBuffers<'a>,
    /// Row factors, column factors and biases on the device.
    pub vectors: Vectors<'a>,
    /// Alphas, scale of the activations, activation and type of the result, which may differ between
    /// products. Vectors are the ones above; of the overrides, only the common ones.
    pub options: &'a GemmOptions,
}

/// Several products in one launch: a grouped GEMM whose M, N and K all differ, which the host knows.
///
/// ```
/// use std::path::Path;
///
/// use fp4_formats::{HalfType, ScaleLayout};
/// use nvfp4::buffer::DeviceBuffer;
/// use nvfp4::device::{Device, DeviceRequest};
/// use nvfp4::gemm::{
///     ActivationBuffers, ActivationKind, GemmOptions, HalfMatrix, MixedGemm, MixedProduct, Repacked,
///     ResultBuffers, Vectors,
/// };
/// use nvfp4::quantize::{TensorScale, quantize};
/// use nvfp4::tensor::Dims;
///
/// # fn main() -> nvfp4::error::Result<()> {
/// let device = Device::open(&"emu:h200".parse::<DeviceRequest>()?)?;
/// let kernels = device.kernels(Some(Path::new("../target/kernels")))?;
/// let kind = ActivationKind::Halves(HalfType::F16);
///
/// // M, N and K of each.
/// let sizes = [[3, 40, 64], [5, 16, 128]];
/// let mut operands = Vec::new();
/// for [m, n, k] in sizes {
///     // Exact in NVFP4: six times a block scale of a quarter.
///     let (values, dims) = (vec![1.5; n * k], Dims::new(1, n, k)?);
///     let weight = quantize("w", &values, dims, TensorScale::Given(1.0), ScaleLayout::Linear)?;
///     let weight = Repacked::for_device(&device, &weight, kind)?.upload(&device)?;
///     let x = HalfMatrix::round("x", Dims::new(1, m, k)?, HalfType::F16, &vec![1.0; m * k])?;
///     let x = DeviceBuffer::upload(&device, "x", x.bytes())?;
///     operands.push((m, x, weight, DeviceBuffer::poisoned(&device, "c", m * n * 2)?));
/// }
/// let options = GemmOptions::default();
/// let products: Vec<_> = operands
///     .iter()
///     .map(|(tokens, x, weights, out)| MixedProduct {
///         tokens: *tokens,
///         activations: ActivationBuffers::Halves(x),
///         weights,
///         out: ResultBuffers::Floats(out),
///         vectors: Vectors::default(),
///         options: &options,
///     })
///     .collect();
/// let product = MixedGemm::new(&kernels, &products, kind)?;
/// product.launch()?;
/// for ([_, _, k], (.., out)) in sizes.into_iter().zip(&operands) {
///     let bytes = out.read()?;
///     let halves = bytes.chunks_exact(2).map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32());
///     assert!(halves.into_iter().all(|value| value == 1.5 * k as f32));
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct MixedGemm<'a> {
    kernels: Kernels,
    /// The parts in the order of the caller; none for those without tokens.
    parts: Vec<Option<PlannedProduct<'a>>>,
    /// First tiles and parameter blocks, and the kernel's parameters; none without tokens.
    placed: Option<Placed>,
    /// Laid out or decoded activations.
    workspace: Option<Workspace>,
}

/// One product with tokens.
#[derive(Debug)]
struct PlannedProduct<'a> {
    product: MixedProduct<'a>,
    gemm: Gemm,
    epilogue: Epilogue,
    /// Offset in the workspace.
    at: usize,
}

impl PlannedProduct<'_> {
    /// The arguments of its part of the launch; the workspaces of all products are behind `base`.
    fn launch(&self, base: u64) -> Result<Launch<'_>> {
        let MixedProduct { activations, weights, .. } = self.product;
        self.gemm.checked(activations, weights, self.epilogue, base + self.at as u64, None)
    }
}

/// The launch, and its data in device memory.
#[derive(Debug)]
struct Placed {
    params: Mixed,
    shape: LaunchShape,
    kernel: FoundKernel,
    /// The table that `params` points to.
    _table: DeviceBuffer,
}

impl<'a> MixedGemm<'a> {
    /// Checks and plans the products, and copies their parameter blocks to the device. All have
    /// activations of `kind` and weights in one format; sizes, factors, activations, results and
    /// gates may differ.
    ///
    /// # Errors
    /// The errors of [`Gemm::new`] and [`Gemm::launch`], for each product; [`Error::Shape`] for no
    /// products, more than 1024 or weights of several matrices, and for more tiles than can be
    /// numbered; [`DeviceError`](crate::device::DeviceError).
    pub fn new(
        kernels: &Kernels,
        products: &[MixedProduct<'a>],
        kind: ActivationKind,
    ) -> Result<Self> {
        let device = kernels.device();
        let mut parts = plan(kernels, products, kind)?;
        let mut bytes = 0usize;
        for part in parts.iter_mut().flatten() {
            part.at = bytes;
            let end = bytes.checked_add(part.gemm.workspace_bytes());
            let end = end.and_then(|end| end.checked_next_multiple_of(ALIGNMENT as usize));
            bytes = end.ok_or_else(|| Error::Overflow {
                what: "workspace".into(),
                detail: format!("{} products", products.len()),
            })?;
        }
        let workspace = (bytes > 0).then(|| Workspace::new(device, bytes)).transpose()?;
        let base = address(workspace.as_ref(), device)?;
        let placed = place(kernels, &parts, base)?;
        if let Some(placed) = &placed {
            for part in parts.iter_mut().flatten() {
                part.gemm.plan.grid[0] = placed.shape.ctas as u32;
            }
        }
        Ok(Self { kernels: kernels.clone(), parts, placed, workspace })
    }

    /// Returns the plans of all products, in their order: all run on the same CTAs. None for
    /// products without tokens.
    pub fn plans(&self) -> impl Iterator<Item = Option<&GemmPlan>> {
        self.parts.iter().map(|part| part.as_ref().map(|part| part.gemm.plan()))
    }

    /// Queues all products on the kernels' stream without waiting for them, also while a CUDA graph is
    /// recorded, on the buffers that they were planned with: one launch, behind one or two small ones for
    /// each product whose block-scaled activations must be decoded or laid out. Allocates nothing. Queues
    /// nothing without tokens.
    ///
    /// On a GPU this value and all buffers must live until the products are done, and the ones that
    /// a recorded graph uses as long as it is replayed. Launches of one value run one after the
    /// other: they share a workspace.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn launch(&self) -> Result<()> {
        let Some(Placed { params, shape, kernel, .. }) = &self.placed else {
            return Ok(());
        };
        let base = address(self.workspace.as_ref(), self.kernels.device())?;
        for part in self.parts.iter().flatten() {
            part.gemm.kernel().prepare(&part.launch(base)?, &mut AtOnce)?;
        }
        let spec = LaunchSpec {
            entry: kernel.name(),
            grid: [shape.ctas as u32, 1, 1],
            block: [shape.threads, 1, 1],
            cluster: None,
            dynamic_shared: shape.dynamic_shared,
            overlaps: true,
            params: bytes(params),
        };
        // SAFETY: the blocks name buffers of this device, whose sizes were checked when they were
        // made, and which the borrows of the products keep alive; so does this value what it owns.
        // Freeing device memory waits for launches.
        unsafe { self.kernels.launch_found(kernel, &spec) }
    }
}

/// Returns the address of a workspace, which becomes the device's stream's; 0 without one.
///
/// # Errors
/// [`Error::Shape`] if it is another stream's.
fn address(workspace: Option<&Workspace>, device: &Device) -> Result<u64> {
    let bytes = workspace.map_or(0, Workspace::len);
    Workspace::place(workspace, bytes, device)
}

/// Checks and plans the products that have tokens.
fn plan<'a>(
    kernels: &Kernels,
    products: &[MixedProduct<'a>],
    kind: ActivationKind,
) -> Result<Vec<Option<PlannedProduct<'a>>>> {
    for product in products {
        check_kind(product.weights, kind)?;
    }
    let described: Vec<_> = products
        .iter()
        .map(|product| (product.weights.sizes(), product.tokens, product.options))
        .collect();
    let planned = described::mixed(&kernels.into(), &described, kind)?;
    let part = |(planned, product): (Option<Planned>, &MixedProduct<'a>)| {
        let Some(planned) = planned else { return Ok(None) };
        let MixedProduct { weights, out, vectors, .. } = *product;
        let gemm = Gemm::planned(kernels, weights, planned)?;
        let epilogue = gemm.epilogue(weights, out, vectors, None)?;
        Ok(Some(PlannedProduct { product: *product, gemm, epilogue, at: 0 }))
    };
    planned.into_iter().zip(products).map(part).collect()
}

/// Makes the table of the products with tokens, whose workspaces are behind `base`, and copies it to the
/// device.
fn place(
    kernels: &Kernels,
    parts: &[Option<PlannedProduct<'_>>],
    base: u64,
) -> Result<Option<Placed>> {
    let mut parts: Vec<&PlannedProduct<'_>> = parts.iter().flatten().collect();
    let Some(first) = parts.first() else { return Ok(None) };
    let (mut shape, kernel) = (first.gemm.kernel().shape(), first.gemm.found.clone());
    // The products with the longest tiles have the highest numbers and are begun first.
    parts.sort_by_key(|part| part.gemm.plan.problem().k);
    let clusters = shape.ctas / u64::from(shape.cluster);
    let (mut tiles, mut firsts, mut blocks) = (0u64, Vec::new(), Vec::new());
    for part in &parts {
        firsts.extend((tiles as u32).to_le_bytes());
        tiles = tiles.saturating_add(part.gemm.kernel().tiles());
        blocks.extend(part.gemm.kernel().block(&part.launch(base)?)?);
        blocks.resize(blocks.len().next_multiple_of(BLOCK_ALIGN), 0);
    }
    // So many can be numbered: they were counted when the products were planned.
    let clusters = clusters.min(tiles);
    shape.ctas = clusters * u64::from(shape.cluster);
    let firsts_at = blocks.len() as u64;
    blocks.extend(firsts);
    let table = DeviceBuffer::upload(kernels.device(), "table of products", &blocks)?;
    let params = Mixed {
        blocks: table.address(),
        firsts: table.address() + firsts_at,
        products: parts.len() as u32,
        tiles: tiles as u32,
        ctas: Divisor::nearest(clusters as u32),
        reserved: 0,
    };
    Ok(Some(Placed { params, shape, kernel, _table: table }))
}
