//! A mixture of experts: from activations, and the experts that each token chose, to the layer's
//! result.
//!
//! | step | what | alone |
//! | --- | --- | --- |
//! | route | orders the tokens' choices by expert | [`Routing::route`] |
//! | gather | copies each choice's token to the choice's row | [`Routing::gather`] |
//! | first product | grouped and gated, `act(x gate^T) * (x up^T)` | [`Gemm::grouped`] |
//! | second product | grouped, back to the hidden size | [`Gemm::grouped`] |
//! | combine | adds up each token's rows times their weights, in the order of its choices | [`Routing::combine`] |
//!
//! [`MoeLayer`] does all of them. Everything depends on the device's memory alone: a launch reads
//! nothing back and allocates nothing, and may be recorded in a graph. Experts that are on other
//! devices add nothing, so that the results of all devices add up to the layer's. Weights are applied
//! behind the second product, where they cost no precision, and in a fixed order, so that results
//! do not depend on timing.

use fp4_formats::gemm::groups::MAX_PROBLEMS;
use fp4_formats::moe::{
    self as contract, COMBINE_COLUMNS, CombineParams, GATHER_BYTES, GatherParams, MAX_TOP_K,
    ROUTE_THREADS, RouteParams,
};
use fp4_formats::{Divisor, FloatType, HalfType};
use ptx_emu::LaunchReport;

use crate::buffer::DeviceBuffer;
use crate::device::{Kernels, LaunchSpec};
use crate::error::{Error, Result};
use crate::gemm::{
    ActivationBuffers, ActivationKind, DeviceWeights, Gemm, GemmOptions, GroupBuffers, Grouping,
    ResultBuffers, Vectors, Workspace,
};

/// Bytes of an index, a weight and the status word.
const WORD: usize = size_of::<u32>();
/// The most tokens times choices: offsets are i32.
const MAX_SLOTS: usize = i32::MAX as usize / 2;
/// CTAs of the kernels that copy and add up rows, for each SM.
const CTAS_PER_SM: u32 = 8;

/// Sizes of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoeShape {
    /// Tokens.
    pub tokens: usize,
    /// Experts that each token chooses.
    pub top_k: usize,
    /// Experts of all devices: ids are below it.
    pub experts: usize,
    /// First expert of this device.
    pub first: usize,
    /// Experts of this device.
    pub count: usize,
}

/// Who goes where: what [`Routing::route`] writes.
#[derive(Debug)]
pub struct Routes {
    /// i32 `[count + 1]`: the first row of each expert, then the number of rows.
    pub offsets: DeviceBuffer,
    /// u32 `[tokens, top_k]`: the row of each choice.
    pub positions: DeviceBuffer,
    /// u32 `[tokens * top_k]`: the choice of each row.
    pub sources: DeviceBuffer,
    /// u32: not 0 once something was wrong with a launch's ids or weights. It stays so until
    /// [`clear_status`](Self::clear_status).
    pub status: DeviceBuffer,
}

impl Routes {
    /// What was wrong so far, if anything was; waits for the device.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn problem(&self) -> Result<Option<MoeProblem>> {
        let bytes = self.status.read()?;
        let (words, _) = bytes.as_chunks();
        Ok(match words.first().map(|word| u32::from_le_bytes(*word)) {
            None | Some(0) => None,
            Some(contract::STATUS_BAD_ID) => Some(MoeProblem::BadId),
            Some(contract::STATUS_NAN_WEIGHT) => Some(MoeProblem::NanWeight),
            Some(_) => Some(MoeProblem::BadCounts),
        })
    }

    /// Queues setting the status word to 0.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn clear_status(&self) -> Result<()> {
        self.status.fill(0)
    }
}

/// What a device found wrong with a launch's operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoeProblem {
    /// An id was negative, or not below the number of experts: its token became NaN.
    BadId,
    /// A weight was NaN: its token became NaN.
    NanWeight,
    /// Token counts were bad: all results became NaN.
    BadCounts,
}

/// The steps around the grouped products, for one shape.
#[derive(Clone, Debug)]
pub struct Routing {
    kernels: Kernels,
    shape: MoeShape,
}

impl Routing {
    /// Checks the shape and loads the kernels.
    ///
    /// # Errors
    /// [`Error::Shape`] for sizes of 0 or beyond their limits, and for experts of this device that
    /// are not among all.
    pub fn new(kernels: &Kernels, shape: MoeShape) -> Result<Self> {
        let MoeShape { tokens, top_k, experts, first, count } = shape;
        for (field, value, most) in [
            ("tokens", tokens, MAX_SLOTS),
            ("experts of a token", top_k, MAX_TOP_K as usize),
            ("experts", experts, i32::MAX as usize),
            ("experts of this device", count, MAX_PROBLEMS as usize),
        ] {
            if !(1..=most).contains(&value) {
                return Err(Error::shape(field, format!("from 1 to {most}"), value));
            }
        }
        if tokens.saturating_mul(top_k) > MAX_SLOTS {
            let required = format!("at most {MAX_SLOTS}");
            return Err(Error::shape("tokens times their experts", required, tokens * top_k));
        }
        if first.saturating_add(count) > experts {
            let required = format!("within {experts}");
            let found = format!("{count} from {first} on");
            return Err(Error::shape("experts of this device", required, found));
        }
        kernels.load(contract::NAMES)?;
        Ok(Self { kernels: kernels.clone(), shape })
    }

    /// The shape.
    #[must_use]
    pub fn shape(&self) -> MoeShape {
        self.shape
    }

    /// Tokens times the experts of each: rows of the products at most.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.shape.tokens * self.shape.top_k
    }

    /// Allocates what [`route`](Self::route) writes.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn routes(&self) -> Result<Routes> {
        let device = self.kernels.device();
        let slots = self.slots() * WORD;
        Ok(Routes {
            offsets: DeviceBuffer::poisoned(device, "offsets", (self.shape.count + 1) * WORD)?,
            positions: DeviceBuffer::poisoned(device, "positions", slots)?,
            sources: DeviceBuffer::poisoned(device, "sources", slots)?,
            status: DeviceBuffer::zeroed(device, "status", WORD)?,
        })
    }

    /// Queues routing: `ids` are i32 `[tokens, top_k]`. Choices of one expert keep their order. Ids
    /// outside this device's range have no row; ids that are no expert's make their token NaN and
    /// the status word [`MoeProblem::BadId`].
    ///
    /// # Errors
    /// [`Error::Shape`] for buffers of other sizes or elsewhere,
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn route(&self, ids: &DeviceBuffer, routes: &Routes) -> Result<Option<LaunchReport>> {
        let MoeShape { experts, first, count, .. } = self.shape;
        let slots = self.slots();
        let places = self.place(routes)?;
        let params = RouteParams {
            ids: ids.checked("the ids", slots * WORD, self.kernels.device())?,
            offsets: places.offsets,
            positions: places.positions,
            sources: places.sources,
            status: places.status,
            slots: slots as u32,
            experts: experts as u32,
            first: first as u32,
            count: count as u32,
        };
        let shared = RouteParams::shared_bytes(params.count);
        self.launch(contract::ROUTE, [1, ROUTE_THREADS], shared, &params.to_bytes())
    }

    /// Queues gathering `from`, `[tokens, columns]` of 16 bits, to `to`, `[tokens * top_k, columns]`
    /// in the order of experts. Rows behind the last choice become 0.
    ///
    /// # Errors
    /// As [`route`](Self::route), and for columns that are no multiple of 8.
    pub fn gather(
        &self,
        from: &DeviceBuffer,
        routes: &Routes,
        to: &DeviceBuffer,
        columns: usize,
    ) -> Result<Option<LaunchReport>> {
        let device = self.kernels.device();
        let row = columns.saturating_mul(HALF_BYTES);
        if columns == 0 || !row.is_multiple_of(GATHER_BYTES as usize) || row > MAX_SLOTS {
            let required = format!("a multiple of {}", GATHER_BYTES as usize / HALF_BYTES);
            return Err(Error::shape("columns to gather", required, columns));
        }
        let MoeShape { tokens, top_k, .. } = self.shape;
        let bytes = |rows: usize| {
            rows.checked_mul(row).ok_or_else(|| Error::Overflow {
                what: "activations".into(),
                detail: format!("{rows} rows of {row} bytes"),
            })
        };
        let params = GatherParams {
            from: from.checked("the activations", bytes(tokens)?, device)?,
            sources: self.place(routes)?.sources,
            to: to.checked("the gathered activations", bytes(self.slots())?, device)?,
            rows: self.slots() as u32,
            row_bytes: row as u32,
            top_k: Divisor::nearest(top_k as u32),
            reserved: 0,
        };
        let grid = self.grid(self.slots());
        self.launch(contract::GATHER, [grid, contract::THREADS], 0, &params.to_bytes())
    }

    /// Queues combining `from`, rows of `columns` elements of the first of `types`, with `weights`,
    /// f32 `[tokens, top_k]`, to `out`, `[tokens, columns]` of the second of `types`. `shared`, of the
    /// size and type of `out`, is added, a shared expert's result for example; it may be `out`
    /// itself.
    ///
    /// # Errors
    /// As [`route`](Self::route), and for columns that are no multiple of 8.
    pub fn combine(
        &self,
        from: &DeviceBuffer,
        routes: &Routes,
        weights: &DeviceBuffer,
        shared: Option<&DeviceBuffer>,
        out: &DeviceBuffer,
        (columns, [from_type, out_type]): (usize, [FloatType; 2]),
    ) -> Result<Option<LaunchReport>> {
        let device = self.kernels.device();
        if columns == 0 || !columns.is_multiple_of(COMBINE_COLUMNS as usize) || columns > MAX_SLOTS
        {
            let required = format!("a multiple of {COMBINE_COLUMNS}");
            return Err(Error::shape("columns to combine", required, columns));
        }
        let bytes = |rows: usize, of: FloatType| {
            let elements = rows.checked_mul(columns);
            elements.and_then(|count| count.checked_mul(of.bytes() as usize)).ok_or_else(|| {
                Error::Overflow {
                    what: "rows to combine".into(),
                    detail: format!("{rows} rows of {columns} elements"),
                }
            })
        };
        let MoeShape { tokens, top_k, .. } = self.shape;
        let places = self.place(routes)?;
        let result = bytes(tokens, out_type)?;
        let params = CombineParams {
            from: from.checked("the rows to combine", bytes(self.slots(), from_type)?, device)?,
            positions: places.positions,
            weights: weights.checked("the weights", self.slots() * WORD, device)?,
            shared: shared.map_or(Ok(0), |shared| {
                shared.checked("the shared experts' result", result, device)
            })?,
            out: out.checked("the result", result, device)?,
            status: places.status,
            tokens: tokens as u32,
            columns: columns as u32,
            top_k: top_k as u32,
            from_type: from_type as u32,
            out_type: out_type as u32,
            reserved: 0,
        };
        let grid = self.grid(tokens);
        self.launch(contract::COMBINE, [grid, contract::THREADS], 0, &params.to_bytes())
    }

    /// Addresses of what is routed.
    fn place(&self, routes: &Routes) -> Result<Places> {
        let device = self.kernels.device();
        let slots = self.slots() * WORD;
        let Routes { offsets, positions, sources, status } = routes;
        Ok(Places {
            offsets: offsets.checked("the offsets", (self.shape.count + 1) * WORD, device)?,
            positions: positions.checked("the positions", slots, device)?,
            sources: sources.checked("the sources", slots, device)?,
            status: status.checked("the status word", WORD, device)?,
        })
    }

    /// CTAs that take `rows` rows in turn.
    fn grid(&self, rows: usize) -> u32 {
        let most = self.kernels.device().properties().sms.max(1) * CTAS_PER_SM;
        rows.min(most as usize) as u32
    }

    fn launch(
        &self,
        entry: &str,
        [ctas, threads]: [u32; 2],
        dynamic_shared: u32,
        params: &[u8],
    ) -> Result<Option<LaunchReport>> {
        let spec = LaunchSpec {
            entry,
            grid: [ctas, 1, 1],
            block: [threads, 1, 1],
            cluster: None,
            dynamic_shared,
            overlaps: true,
            params,
        };
        // SAFETY: all buffers are of this device, alive, and have the sizes that the parameters
        // state, as checked by the callers. Freeing device memory waits for launches.
        unsafe { self.kernels.launch(&spec) }
    }
}

/// Bytes of a 16-bit element.
const HALF_BYTES: usize = FloatType::F16.bytes() as usize;

/// Addresses of [`Routes`].
struct Places {
    offsets: u64,
    positions: u64,
    sources: u64,
    status: u64,
}

/// A whole layer, planned once and launched any number of times.
///
/// ```
/// use std::path::Path;
///
/// use fp4_formats::{FloatType, HalfType, ScaleLayout};
/// use nvfp4::buffer::DeviceBuffer;
/// use nvfp4::device::{Device, DeviceRequest};
/// use nvfp4::gemm::{Activation, ActivationKind, GatedWeights, HalfMatrix, Repacked};
/// use nvfp4::moe::{MoeInputs, MoeLayer, MoeOptions, MoeShape};
/// use nvfp4::quantize::{TensorScale, quantize};
/// use nvfp4::tensor::Dims;
///
/// # fn main() -> nvfp4::error::Result<()> {
/// let device = Device::open(&"emu:h200".parse::<DeviceRequest>()?)?;
/// let kernels = device.kernels(Some(Path::new("../target/kernels")))?;
/// let (kind, linear) = (ActivationKind::Halves(HalfType::Bf16), ScaleLayout::Linear);
///
/// // Two experts of 32 hidden and 16 intermediate columns, each a tensor with a scale of its own.
/// let (mut first, mut second) = (Vec::new(), Vec::new());
/// for value in [0.5, 1.0] {
///     let tensor = |name, rows, columns| {
///         let dims = Dims::new(1, rows, columns)?;
///         quantize(name, &vec![value; rows * columns], dims, TensorScale::FromAmax, linear)
///     };
///     let (gate, up, down) = (tensor("gate", 16, 32)?, tensor("up", 16, 32)?, tensor("down", 32, 16)?);
///     first.push(Repacked::gated(&device, &GatedWeights::pair(&gate, &up)?, kind)?);
///     second.push(Repacked::for_device(&device, &down, kind)?);
/// }
/// let first = Repacked::stack(&first)?.upload(&device)?;
/// let second = Repacked::stack(&second)?.upload(&device)?;
///
/// // Three tokens choose one expert each.
/// let shape = MoeShape { tokens: 3, top_k: 1, experts: 2, first: 0, count: 2 };
/// let options = MoeOptions { activation: Activation::Silu, ..MoeOptions::default() };
/// let layer = MoeLayer::new(&kernels, shape, &first, &second, HalfType::Bf16, &options)?;
/// let memory = layer.memory()?;
/// let words = |words: [u32; 3]| words.map(u32::to_le_bytes).concat();
/// let ids = DeviceBuffer::upload(&device, "ids", &words([1, 0, 1]))?;
/// let weights = DeviceBuffer::upload(&device, "weights", &words([1f32.to_bits(); 3]))?;
/// let x = HalfMatrix::round("x", Dims::new(1, 3, 32)?, HalfType::Bf16, &[0.125; 3 * 32])?;
/// let x = DeviceBuffer::upload(&device, "x", x.bytes())?;
/// let out = DeviceBuffer::poisoned(&device, "out", 3 * 32 * 4)?;
/// let inputs = MoeInputs { activations: &x, ids: &ids, weights: &weights, shared: None };
/// layer.launch(&inputs, [&first, &second], &memory, &out, Default::default())?;
/// assert_eq!(memory.routes.problem()?, None);
///
/// let bytes = out.read()?;
/// let values: Vec<f32> =
///     bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
/// // silu(2) * 2 * 8 and silu(4) * 4 * 16.
/// for (token, right) in [(0, 251.4), (1, 28.19), (2, 251.4)] {
///     assert!((values[token * 32] / right - 1.0).abs() < 0.01, "{}", values[token * 32]);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct MoeLayer {
    routing: Routing,
    first: Gemm,
    second: Gemm,
    hidden: usize,
    /// Types of the rows that are combined, and of the result.
    types: [FloatType; 2],
}

/// Choices of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct MoeOptions {
    /// What becomes of the gate.
    pub activation: crate::gemm::Activation,
    /// Type of the result.
    pub output: FloatType,
    /// Type of the second product's rows, which are added up in f32.
    pub rows: FloatType,
}

impl Default for MoeOptions {
    fn default() -> Self {
        let activation = crate::gemm::Activation::Silu;
        Self { activation, output: FloatType::F32, rows: FloatType::F32 }
    }
}

/// What a launch of a layer reads besides weights.
#[derive(Clone, Copy, Debug)]
pub struct MoeInputs<'a> {
    /// `[tokens, H]` of the layer's 16-bit type.
    pub activations: &'a DeviceBuffer,
    /// i32 `[tokens, top_k]`: each token's experts.
    pub ids: &'a DeviceBuffer,
    /// f32 `[tokens, top_k]`: their weights.
    pub weights: &'a DeviceBuffer,
    /// What is added to the result, of its size and type: a shared expert's result.
    pub shared: Option<&'a DeviceBuffer>,
}

/// Biases of a layer's experts on a device, f32.
#[derive(Clone, Copy, Debug, Default)]
pub struct MoeBiases<'a> {
    /// Of the gates, `[count, I]`.
    pub gate: Option<&'a DeviceBuffer>,
    /// Of the other halves, `[count, I]`.
    pub up: Option<&'a DeviceBuffer>,
    /// Of the second products, `[count, H]`; times the weights, as the rows.
    pub down: Option<&'a DeviceBuffer>,
}

/// Device memory of a layer, for one stream.
#[derive(Debug)]
pub struct MoeMemory {
    /// Who goes where, with the status word.
    pub routes: Routes,
    gathered: DeviceBuffer,
    between: DeviceBuffer,
    rows: DeviceBuffer,
    workspace: Workspace,
}

impl MoeLayer {
    /// Plans a layer of the gated weights `first`, `[count, I, H]` twice, and `second`,
    /// `[count, H, I]`, for activations of `half`. A token's result is the sum over its choices of
    /// weight times `second(act(gate x) * (up x))`.
    ///
    /// # Errors
    /// As [`Routing::new`] and [`Gemm::grouped`]; [`Error::Shape`] for weights that do not fit each
    /// other or the shape.
    pub fn new(
        kernels: &Kernels,
        shape: MoeShape,
        first: &DeviceWeights,
        second: &DeviceWeights,
        half: HalfType,
        options: &MoeOptions,
    ) -> Result<Self> {
        let routing = Routing::new(kernels, shape)?;
        let (a, b) = (first.form(), second.form());
        let (hidden, between) = (a.columns, a.result_columns());
        for (what, found, required) in [
            ("experts in the first weights", first.batch(), shape.count),
            ("experts in the second weights", second.batch(), shape.count),
            ("K of the second weights", b.columns as usize, between as usize),
            ("N of the second weights", b.result_columns() as usize, hidden as usize),
        ] {
            if found != required {
                return Err(Error::shape(what, required.to_string(), found));
            }
        }
        let kind = ActivationKind::Halves(half);
        let between_type = match half {
            HalfType::F16 => FloatType::F16,
            HalfType::Bf16 => FloatType::Bf16,
        };
        let grouping = Grouping::Contiguous { bound: routing.slots() };
        let up = Some(crate::gemm::UpOptions::default());
        let of_first = GemmOptions {
            activation: options.activation,
            output: between_type.into(),
            up,
            ..GemmOptions::default()
        };
        let of_second = GemmOptions { output: options.rows.into(), ..GemmOptions::default() };
        Ok(Self {
            first: Gemm::grouped(kernels, first, grouping, kind, 1.0, &of_first)?,
            second: Gemm::grouped(kernels, second, grouping, kind, 1.0, &of_second)?,
            routing,
            hidden: hidden as usize,
            types: [options.rows, options.output],
        })
    }

    /// The products, in order.
    #[must_use]
    pub fn products(&self) -> [&Gemm; 2] {
        [&self.first, &self.second]
    }

    /// Bytes of the result.
    #[must_use]
    pub fn out_bytes(&self) -> usize {
        self.routing.shape.tokens * self.hidden * self.types[1].bytes() as usize
    }

    /// Allocates what launches need besides weights, inputs and result.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn memory(&self) -> Result<MoeMemory> {
        let device = self.routing.kernels.device();
        let buffer = |name: &str, bytes: usize| DeviceBuffer::poisoned(device, name, bytes);
        let bytes = self.first.workspace_bytes().max(self.second.workspace_bytes());
        Ok(MoeMemory {
            routes: self.routing.routes()?,
            gathered: buffer("gathered", self.routing.slots() * self.hidden * HALF_BYTES)?,
            // Copies of the second product reach over rows that no expert has; what they bring is not
            // used, but the emulator asks that it was written.
            between: DeviceBuffer::zeroed(device, "between", self.first.out_bytes()?[0])?,
            rows: buffer("rows", self.second.out_bytes()?[0])?,
            workspace: Workspace::new(device, bytes)?,
        })
    }

    /// Queues the layer: `out` becomes `[tokens, H]`. `weights` are the first and the second product's.
    ///
    /// # Errors
    /// As the steps'.
    pub fn launch(
        &self,
        inputs: &MoeInputs<'_>,
        [first, second]: [&DeviceWeights; 2],
        memory: &MoeMemory,
        out: &DeviceBuffer,
        biases: MoeBiases<'_>,
    ) -> Result<Vec<LaunchReport>> {
        let MoeInputs { activations, ids, weights, shared } = *inputs;
        let MoeMemory { routes, gathered, between, rows, workspace } = memory;
        let mut reports = Vec::new();
        reports.extend(self.routing.route(ids, routes)?);
        reports.extend(self.routing.gather(activations, routes, gathered, self.hidden)?);
        let groups = GroupBuffers {
            status: Some(&routes.status),
            own_vectors: true,
            ..GroupBuffers::of(&routes.offsets)
        };
        let vectors = Vectors { bias: biases.gate, up_bias: biases.up, ..Vectors::default() };
        reports.extend(self.first.launch_grouped(
            groups,
            ActivationBuffers::Halves(gathered),
            first,
            ResultBuffers::Floats(between),
            Some(workspace),
            vectors,
        )?);
        reports.extend(self.second.launch_grouped(
            groups,
            ActivationBuffers::Halves(between),
            second,
            ResultBuffers::Floats(rows),
            Some(workspace),
            Vectors { bias: biases.down, ..Vectors::default() },
        )?);
        let columns = (self.hidden, self.types);
        reports.extend(self.routing.combine(rows, routes, weights, shared, out, columns)?);
        Ok(reports)
    }
}
