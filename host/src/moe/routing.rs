//! The steps around the grouped products.

use std::sync::Arc;

use fp4_formats::gemm::groups::MAX_PROBLEMS;
use fp4_formats::moe::{
    self as contract, COMBINE_COLUMNS, Chosen, CombineParams, Experts, GATHER_BYTES, GATHERED,
    GatherParams, MAX_TOP_K, PackParams, RouteParams,
};
use fp4_formats::pack::packed_len;
use fp4_formats::params;
use fp4_formats::quantize::Format;
use fp4_formats::{Divisor, FloatType};

use super::{ExpertMap, HALF_BYTES, WORD};
use crate::buffer::DeviceBuffer;
use crate::device::{AtOnce, FoundKernel, Kernels, LaunchSpec, Queue};
use crate::error::{Error, Result};

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
    /// First expert of this device; 0 beside a [map](ExpertMap).
    pub first: usize,
    /// Experts of this device.
    pub count: usize,
}

impl MoeShape {
    /// Checks the sizes.
    ///
    /// # Errors
    /// [`Error::Shape`] for sizes of 0 or beyond their limits, and for experts of this device that
    /// are not among all.
    pub fn check(self) -> Result<()> {
        let MoeShape { tokens, top_k, experts, first, count } = self;
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
        Ok(())
    }
}

/// Checks the columns of 16-bit tokens that are gathered.
///
/// # Errors
/// [`Error::Shape`].
pub(super) fn check_gathered(columns: usize) -> Result<()> {
    let row = columns.saturating_mul(HALF_BYTES);
    if row.is_multiple_of(GATHER_BYTES as usize) {
        return Ok(());
    }
    let required = format!("a multiple of {}", GATHER_BYTES as usize / HALF_BYTES);
    Err(Error::shape("columns to gather", required, columns))
}

/// The routes of the tokens, as [`Routing::route`] writes them.
#[derive(Debug)]
pub struct Routes {
    /// i32 `[count + 1]`: the first row of each expert, then the number of rows.
    pub offsets: DeviceBuffer,
    /// u32 `[tokens, top_k]`: the row of each choice.
    pub positions: DeviceBuffer,
    /// u32 `[tokens * top_k]`, or with a capacity as many as all experts' rows: the choice of each row.
    pub sources: DeviceBuffer,
    /// u32: not 0 once something was wrong with a launch's ids or weights. It stays so until
    /// [`clear_status`](Self::clear_status).
    pub status: DeviceBuffer,
    /// u32 `[count]`: the most choices that each expert has had since the status was cleared; with a
    /// [capacity](Routing::with_capacity) alone.
    pub most: Option<DeviceBuffer>,
}

impl Routes {
    /// Returns [`most`](Self::most); waits for the device.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError).
    pub(crate) fn most_choices(&self) -> Result<Option<Vec<u32>>> {
        let read = |most: &DeviceBuffer| {
            let bytes = most.read()?;
            Ok(bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect())
        };
        self.most.as_ref().map(read).transpose()
    }

    /// Returns the fault so far, if there was one; waits for the device.
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
            Some(contract::STATUS_OVER_CAPACITY) => Some(MoeProblem::OverCapacity),
            Some(_) => Some(MoeProblem::BadCounts),
        })
    }

    /// Queues setting the status word to 0, and [`most`](Self::most).
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn clear_status(&self) -> Result<()> {
        self.most.as_ref().map_or(Ok(()), |most| most.fill(0))?;
        self.status.fill(0)
    }
}

/// A fault that a device found with a launch's operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoeProblem {
    /// An id was below -1, or not below the number of experts: its token became NaN.
    BadId,
    /// An expert had more choices than the [capacity](Routing::with_capacity): tokens beyond it became NaN.
    OverCapacity,
    /// A weight was NaN: its token became NaN.
    NanWeight,
    /// Token counts were bad: all results became NaN.
    BadCounts,
    /// An activation that is quantised was infinite or NaN: results of its token are wrong.
    NotFinite,
}

/// The steps around the grouped products, for one shape.
#[derive(Clone, Debug)]
pub struct Routing {
    kernels: Kernels,
    shape: MoeShape,
    map: Option<Arc<DeviceBuffer>>,
    /// Rows of each expert, if their number is fixed.
    capacity: Option<usize>,
    route: FoundKernel,
    gather: FoundKernel,
    combine: FoundKernel,
}

impl Routing {
    /// Checks the shape and loads the kernels.
    ///
    /// # Errors
    /// The same as [`MoeShape::check`].
    pub fn new(kernels: &Kernels, shape: MoeShape) -> Result<Self> {
        shape.check()?;
        let [route, gather, combine] =
            [contract::ROUTE, contract::GATHER, contract::COMBINE].map(|name| kernels.find(name));
        let (route, gather, combine) = (route?, gather?, combine?);
        let (map, capacity) = (None, None);
        Ok(Self { kernels: kernels.clone(), shape, map, capacity, route, gather, combine })
    }

    /// [`new`](Self::new) for the experts that a map has, in place of a range.
    ///
    /// # Errors
    /// The same, [`Error::Shape`] for a map of other sizes, [`DeviceError`](crate::device::DeviceError).
    pub fn mapped(kernels: &Kernels, shape: MoeShape, map: &ExpertMap) -> Result<Self> {
        map.check(shape)?;
        let map = DeviceBuffer::upload(kernels.device(), "map of experts", &map.bytes())?;
        Ok(Self { map: Some(Arc::new(map)), ..Self::new(kernels, shape)? })
    }

    /// The same with a fixed number of rows for each expert: expert `e` has the rows from `e * capacity` on, of which
    /// its choices fill the first ones. Rows without a choice are left alone. A token with a choice beyond the capacity
    /// becomes NaN, and the status word [`MoeProblem::OverCapacity`].
    ///
    /// # Errors
    /// [`Error::Shape`] for a capacity of 0, or too many rows.
    pub fn with_capacity(self, capacity: usize) -> Result<Self> {
        let most = MAX_SLOTS / self.shape.count;
        if !(1..=most).contains(&capacity) {
            return Err(Error::shape("rows of each expert", format!("from 1 to {most}"), capacity));
        }
        Ok(Self { capacity: Some(capacity), ..self })
    }

    /// The kernels.
    pub(crate) fn kernels(&self) -> &Kernels {
        &self.kernels
    }

    /// The shape.
    #[must_use]
    pub fn shape(&self) -> MoeShape {
        self.shape
    }

    /// Tokens times the experts of each.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.shape.tokens * self.shape.top_k
    }

    /// Rows of the products at most: [`slots`](Self::slots), or the rows of all experts with a capacity.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.capacity.map_or(self.slots(), |capacity| capacity * self.shape.count)
    }

    /// The experts as kernels take them.
    fn experts(&self) -> Experts {
        let MoeShape { experts, first, count, .. } = self.shape;
        Experts { all: experts as u32, first: first as u32, count: count as u32 }
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
            sources: DeviceBuffer::poisoned(device, "sources", self.rows() * WORD)?,
            status: DeviceBuffer::zeroed(device, "status", WORD)?,
            most: match self.capacity {
                Some(_) => Some(DeviceBuffer::zeroed(device, "most", self.shape.count * WORD)?),
                None => None,
            },
        })
    }

    /// Queues routing: `ids` are i32 `[tokens, top_k]`. Choices of one expert keep their order. Ids of other devices'
    /// experts and ids of -1 have no row; other ids that are no expert's make their token NaN and the status word
    /// [`MoeProblem::BadId`].
    ///
    /// # Errors
    /// [`Error::Shape`] for buffers of other sizes or elsewhere,
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn route(&self, ids: &DeviceBuffer, routes: &Routes) -> Result<()> {
        self.give_route(&mut AtOnce, self.dense(ids), routes)
    }

    /// Ids that follow each other.
    pub(crate) fn dense<'a>(&self, buffer: &'a DeviceBuffer) -> Ids<'a> {
        Ids { buffer, bytes: self.slots() * WORD, first: 0, stride: WORD }
    }

    /// Checks the arguments of [`route`](Self::route) and gives its launch to a queue.
    pub(crate) fn give_route<'k>(
        &'k self,
        queue: &mut dyn Queue<'k>,
        ids: Ids<'_>,
        routes: &Routes,
    ) -> Result<()> {
        let (slots, device) = (self.slots(), self.kernels.device());
        let RouteAddresses { offsets, positions, sources, status, most } = self.place(routes)?;
        let Ids { buffer, bytes, first, stride } = ids;
        let map_bytes = self.shape.experts * WORD;
        let params = RouteParams {
            ids: buffer.checked("the ids", bytes, device)? + first as u64,
            map: self
                .map
                .as_ref()
                .map_or(Ok(0), |map| map.checked("the map", map_bytes, device))?,
            offsets,
            positions,
            sources,
            most,
            status,
            slots: slots as u32,
            id_stride: stride as u32,
            capacity: self.capacity.unwrap_or(0) as u32,
            experts: self.experts(),
        };
        let (threads, shared) = (params.threads(), params.shared_bytes());
        self.launch(queue, &self.route, [1, 1], [threads, shared], params::bytes(&params))
    }

    /// Queues gathering `from`, `[tokens, columns]` of 16 bits, to `to`, `[tokens * top_k, columns]` in
    /// the order of experts. Rows behind the last choice become 0. Launches queued next may begin while
    /// tokens are gathered, but not before all work queued earlier is complete: so the offsets are
    /// [settled](crate::gemm::SettledCounts) then.
    ///
    /// # Errors
    /// The same as [`route`](Self::route), and for columns that are no multiple of 8.
    pub fn gather(
        &self,
        from: &DeviceBuffer,
        routes: &Routes,
        to: &DeviceBuffer,
        columns: usize,
    ) -> Result<()> {
        self.give_gather(&mut AtOnce, from, routes, to, columns)
    }

    /// Checks the arguments of [`gather`](Self::gather) and gives its launch to a queue.
    pub(super) fn give_gather<'k>(
        &'k self,
        queue: &mut dyn Queue<'k>,
        from: &DeviceBuffer,
        routes: &Routes,
        to: &DeviceBuffer,
        columns: usize,
    ) -> Result<()> {
        check_gathered(columns)?;
        let row = columns.saturating_mul(HALF_BYTES);
        self.gather_rows(queue, [(from, to, row)], routes, columns)
    }

    /// Queues gathering tokens in blocks of `format`: `codes`, `[tokens, columns / 2]`, and `scales`,
    /// a byte for each block in the linear layout, each from the first buffer to the second, whose
    /// rows are in the order of experts. Rows behind the last choice become 0.
    ///
    /// # Errors
    /// The same as [`route`](Self::route), and for columns that are not whole blocks.
    pub fn gather_blocks(
        &self,
        format: Format,
        codes: [&DeviceBuffer; 2],
        scales: [&DeviceBuffer; 2],
        routes: &Routes,
        columns: usize,
    ) -> Result<()> {
        self.give_gather_blocks(&mut AtOnce, format, codes, scales, routes, columns)
    }

    /// Checks the arguments of [`gather_blocks`](Self::gather_blocks) and gives its launch to a queue.
    pub(super) fn give_gather_blocks<'k>(
        &'k self,
        queue: &mut dyn Queue<'k>,
        format: Format,
        codes: [&DeviceBuffer; 2],
        scales: [&DeviceBuffer; 2],
        routes: &Routes,
        columns: usize,
    ) -> Result<()> {
        let block = format.block() as usize;
        if !columns.is_multiple_of(block) {
            let required = format!("a multiple of {block}");
            return Err(Error::shape("columns to gather", required, columns));
        }
        let matrices =
            [(codes[0], codes[1], packed_len(columns)), (scales[0], scales[1], columns / block)];
        self.gather_rows(queue, matrices, routes, columns)
    }

    /// Gathers matrices whose rows have as many bytes as stand behind them.
    fn gather_rows<'k, const N: usize>(
        &'k self,
        queue: &mut dyn Queue<'k>,
        matrices: [(&DeviceBuffer, &DeviceBuffer, usize); N],
        routes: &Routes,
        columns: usize,
    ) -> Result<()> {
        if columns == 0 || columns > MAX_SLOTS / HALF_BYTES {
            let required = format!("from 1 to {}", MAX_SLOTS / HALF_BYTES);
            return Err(Error::shape("columns to gather", required, columns));
        }
        let MoeShape { tokens, top_k, .. } = self.shape;
        let sources = self.place(routes)?.sources;
        let parts = matrices.map(|(from, to, bytes)| Part {
            from: Rows::dense(from, bytes),
            to: Rows::dense(to, bytes),
            bytes,
        });
        let params = self.gather_params(&parts, [tokens, self.rows()], (sources, top_k), false)?;
        self.launch_gather(queue, &params)
    }

    /// Checks matrices whose rows are gathered, and fills a parameter block.
    ///
    /// # Errors
    /// [`Error::Shape`] for buffers that are too small or elsewhere, [`Error::Overflow`].
    pub(crate) fn gather_params(
        &self,
        parts: &[Part<'_>],
        [from_rows, rows]: [usize; 2],
        (sources, divisor): (u64, usize),
        keeps: bool,
    ) -> Result<GatherParams> {
        let device = self.kernels.device();
        let mut params = GatherParams {
            from: [0; GATHERED],
            to: [0; GATHERED],
            sources,
            rows: rows as u32,
            row_bytes: [0; GATHERED],
            from_stride: [0; GATHERED],
            to_stride: [0; GATHERED],
            top_k: Divisor::nearest(divisor as u32),
            keeps: keeps.into(),
        };
        if parts.len() > GATHERED {
            return Err(Error::shape(
                "matrices to gather",
                format!("at most {GATHERED}"),
                parts.len(),
            ));
        }
        for (index, &Part { from, to, bytes }) in parts.iter().enumerate() {
            let place = |what: &str, of: Rows<'_>, rows: usize| {
                let all = rows.checked_mul(of.stride).ok_or_else(|| Error::Overflow {
                    what: "activations".into(),
                    detail: format!("{rows} rows of {} bytes", of.stride),
                })?;
                Ok::<_, Error>(of.buffer.checked(what, all, device)? + of.first as u64)
            };
            params.from[index] = place("the activations", from, from_rows)?;
            params.to[index] = place("the gathered activations", to, rows)?;
            params.row_bytes[index] = bytes as u32;
            params.from_stride[index] = from.stride as u32;
            params.to_stride[index] = to.stride as u32;
        }
        Ok(params)
    }

    /// Gives a queue the kernel that gathers.
    fn launch_gather<'k>(&'k self, queue: &mut dyn Queue<'k>, params: &GatherParams) -> Result<()> {
        let grid = [self.grid(params.rows as usize), 1];
        self.launch(queue, &self.gather, grid, [contract::THREADS, 0], params::bytes(params))
    }

    /// Gathers parts of records, which are this layer's tokens, by the routes of their experts.
    pub(super) fn give_unpack<'k>(
        &'k self,
        queue: &mut dyn Queue<'k>,
        parts: &[Part<'_>],
        routes: &Routes,
    ) -> Result<()> {
        let sources = self.place(routes)?.sources;
        let rows = [self.shape.tokens, self.rows()];
        let params = self.gather_params(parts, rows, (sources, self.shape.top_k), false)?;
        self.launch_gather(queue, &params)
    }

    /// Queues bringing rows in the order of experts back to the order of choices: row `positions[s]` of `from` to row
    /// `s` of `to`, each of `row_bytes` bytes. Rows of choices that are nobody's here keep what they are.
    ///
    /// # Errors
    /// The same as [`route`](Self::route).
    pub fn scatter(
        &self,
        from: &DeviceBuffer,
        routes: &Routes,
        to: &DeviceBuffer,
        row_bytes: usize,
    ) -> Result<()> {
        self.give_scatter(&mut AtOnce, from, routes, to, row_bytes)
    }

    /// Checks the arguments of [`scatter`](Self::scatter) and gives its launch to a queue.
    pub(super) fn give_scatter<'k>(
        &'k self,
        queue: &mut dyn Queue<'k>,
        from: &DeviceBuffer,
        routes: &Routes,
        to: &DeviceBuffer,
        row_bytes: usize,
    ) -> Result<()> {
        if row_bytes == 0 || row_bytes > MAX_SLOTS {
            return Err(Error::shape(
                "bytes of a row",
                format!("from 1 to {MAX_SLOTS}"),
                row_bytes,
            ));
        }
        let [from, to] = [from, to].map(|buffer| Rows::dense(buffer, row_bytes));
        let part = Part { from, to, bytes: row_bytes };
        let sources = self.place(routes)?.positions;
        let params =
            self.gather_params(&[part], [self.rows(), self.slots()], (sources, 1), true)?;
        self.launch_gather(queue, &params)
    }

    /// Queues combining `from`, rows of `columns` elements, with `weights`, f32 `[tokens, top_k]`, to `out`,
    /// `[tokens, columns]`. `shared`, of the size of `out`, is added in f32, a shared expert's result for
    /// example; where it has the type of `out`, it may be `out` itself.
    ///
    /// # Errors
    /// The same as [`route`](Self::route), and for columns that are no multiple of 8.
    pub fn combine(
        &self,
        from: &DeviceBuffer,
        routes: &Routes,
        weights: &DeviceBuffer,
        shared: Option<&DeviceBuffer>,
        out: &DeviceBuffer,
        (columns, types): (usize, CombineTypes),
    ) -> Result<()> {
        let operands = CombineOperands { from, routes, ids: None, weights, shared, out };
        self.give_combine(&mut AtOnce, operands, (columns, types), false)
    }

    /// [`combine`](Self::combine) of rows in the order of choices, not of experts, as a product of rows that
    /// [choose](crate::gemm::Grouping::Chosen) makes them: by `ids`, as [`route`](Self::route) takes them.
    /// Only the status word of `routes` is used; the other buffers have their sizes all the same.
    ///
    /// # Errors
    /// The same as [`combine`](Self::combine).
    pub fn combine_choices(
        &self,
        from: &DeviceBuffer,
        (ids, routes): (&DeviceBuffer, &Routes),
        weights: &DeviceBuffer,
        shared: Option<&DeviceBuffer>,
        out: &DeviceBuffer,
        (columns, types): (usize, CombineTypes),
    ) -> Result<()> {
        let operands = CombineOperands { from, routes, ids: Some(ids), weights, shared, out };
        self.give_combine(&mut AtOnce, operands, (columns, types), false)
    }

    /// Checks the arguments of [`combine`](Self::combine), or with ids of
    /// [`combine_choices`](Self::combine_choices), and gives its launch to a queue. `settled`: no kernel that may
    /// still run writes positions, ids or weights.
    pub(crate) fn give_combine<'k>(
        &'k self,
        queue: &mut dyn Queue<'k>,
        CombineOperands { from, routes, ids, weights, shared, out }: CombineOperands<'_>,
        (columns, types): (usize, CombineTypes),
        settled: bool,
    ) -> Result<()> {
        let CombineTypes { rows: from_type, result: out_type, shared: shared_type } = types;
        let device = self.kernels.device();
        let most = CombineParams::MAX_COLUMNS as usize;
        if !columns.is_multiple_of(COMBINE_COLUMNS as usize) || !(1..=most).contains(&columns) {
            let required = format!("a multiple of {COMBINE_COLUMNS}, at most {most}");
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
        let (positions, chosen) = match ids {
            None => (places.positions, Chosen::NONE),
            Some(ids) => (self.place_ids(ids)?, Chosen::of(self.experts())),
        };
        let out_at = out.checked("the result", result, device)?;
        let shared_at = match shared {
            None => 0,
            Some(shared) => {
                let what = "the shared experts' result";
                let bytes = bytes(tokens, shared_type)?;
                let at = shared.checked(what, bytes, device)?;
                // A thread would store results over what another one has yet to add.
                let overlap = at < out_at + result as u64 && out_at < at + bytes as u64;
                if overlap && shared_type != out_type {
                    let required = "apart from the result, which has another type";
                    return Err(Error::shape(what, required, "the same memory"));
                }
                at
            }
        };
        let params = CombineParams {
            from: from.checked("the rows to combine", bytes(self.rows(), from_type)?, device)?,
            positions,
            weights: weights.checked("the weights", self.slots() * WORD, device)?,
            shared: shared_at,
            out: out_at,
            status: places.status,
            tokens: tokens as u32,
            columns: columns as u32,
            top_k: top_k as u32,
            from_type: from_type as u32,
            out_type: out_type as u32,
            shared_type: shared_type as u32,
            settled: settled.into(),
            chosen,
            reserved: 0,
        };
        let row_ctas = CombineParams::row_ctas(params.columns);
        let grid = [self.grid(tokens), row_ctas];
        self.launch(queue, &self.combine, grid, [contract::THREADS, 0], params::bytes(&params))
    }

    /// Address of the ids.
    pub(crate) fn place_ids(&self, ids: &DeviceBuffer) -> Result<u64> {
        ids.checked("the ids", self.slots() * WORD, self.kernels.device())
    }

    /// Addresses of what is routed.
    pub(crate) fn place(&self, routes: &Routes) -> Result<RouteAddresses> {
        let device = self.kernels.device();
        let Routes { offsets, positions, sources, status, most } = routes;
        let counts = self.shape.count * WORD;
        Ok(RouteAddresses {
            offsets: offsets.checked("the offsets", counts + WORD, device)?,
            positions: positions.checked("the positions", self.slots() * WORD, device)?,
            sources: sources.checked("the sources", self.rows() * WORD, device)?,
            status: status.checked("the status word", WORD, device)?,
            most: most.as_ref().map_or(Ok(0), |most| most.checked("the most", counts, device))?,
        })
    }

    /// CTAs that take `rows` rows in turn.
    fn grid(&self, rows: usize) -> u32 {
        let most = self.kernels.device().properties().sms.max(1) * CTAS_PER_SM;
        rows.min(most as usize) as u32
    }

    /// Gives a queue the kernel that packs, `pack`.
    pub(crate) fn launch_pack<'k>(
        &'k self,
        queue: &mut dyn Queue<'k>,
        pack: &'k FoundKernel,
        params: &PackParams,
    ) -> Result<()> {
        let grid = [self.grid(params.gather.rows as usize), 1];
        self.launch(queue, pack, grid, [contract::THREADS, 0], params::bytes(params))
    }

    /// Gives a queue a kernel with so many threads and bytes of shared memory.
    fn launch<'k>(
        &'k self,
        queue: &mut dyn Queue<'k>,
        kernel: &'k FoundKernel,
        [ctas, row_ctas]: [u32; 2],
        [threads, dynamic_shared]: [u32; 2],
        params: &[u8],
    ) -> Result<()> {
        let spec = LaunchSpec {
            entry: kernel.name(),
            grid: [ctas, row_ctas, 1],
            block: [threads, 1, 1],
            cluster: None,
            dynamic_shared,
            overlaps: true,
            params,
        };
        // SAFETY: all buffers are of this device, alive, and have the sizes that the parameters
        // state, as checked by the callers. Freeing device memory waits for launches.
        unsafe { queue.launch(&self.kernels, kernel, &spec) }
    }
}

/// Types of what is combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CombineTypes {
    /// Type of the rows.
    pub rows: FloatType,
    /// Type of the result.
    pub result: FloatType,
    /// Type of what is added, if anything is.
    pub shared: FloatType,
}

/// The operands of combining, as [`Routing::combine`] takes them; rows are in the order of choices if ids
/// are given.
#[derive(Clone, Copy)]
pub(crate) struct CombineOperands<'a> {
    pub from: &'a DeviceBuffer,
    pub routes: &'a Routes,
    pub ids: Option<&'a DeviceBuffer>,
    pub weights: &'a DeviceBuffer,
    pub shared: Option<&'a DeviceBuffer>,
    pub out: &'a DeviceBuffer,
}

/// Ids in memory.
#[derive(Clone, Copy)]
pub(crate) struct Ids<'a> {
    /// The memory, at least [`bytes`](Self::bytes).
    pub buffer: &'a DeviceBuffer,
    pub bytes: usize,
    /// The place of the first id.
    pub first: usize,
    /// Bytes from one id to the next.
    pub stride: usize,
}

/// Rows in memory.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    /// The memory, of all rows with what is between them.
    pub buffer: &'a DeviceBuffer,
    /// The place of the first row.
    pub first: usize,
    /// Bytes from one row to the next.
    pub stride: usize,
}

impl<'a> Rows<'a> {
    /// Rows of so many bytes that follow each other from the beginning.
    pub fn dense(buffer: &'a DeviceBuffer, stride: usize) -> Self {
        Self { buffer, first: 0, stride }
    }
}

/// A matrix whose rows are gathered.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    pub from: Rows<'a>,
    pub to: Rows<'a>,
    /// Bytes of a row.
    pub bytes: usize,
}

/// Addresses of [`Routes`].
pub(crate) struct RouteAddresses {
    pub offsets: u64,
    pub positions: u64,
    pub sources: u64,
    pub status: u64,
    /// 0 without a capacity.
    pub most: u64,
}
