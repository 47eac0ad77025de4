//! A mixture of experts on several devices: tokens go to the devices of their experts and come back.

use fp4_formats::HalfType;
use fp4_formats::moe::record::Record;
use fp4_formats::moe::{self as contract, PackParams};

use super::{ExpertPlaces, Transport};
use crate::buffer::DeviceBuffer;
use crate::device::{AtOnce, FoundKernel, Kernels, Prepared, Queue};
use crate::error::{Error, Result};
use crate::gemm::DeviceWeights;
use crate::moe::{
    CombineOperands, CombineTypes, MoeBiases, MoeInputs, MoeLayer, MoeMemory, MoeOptions,
    MoeProblem, MoeShape, Packed, Part, Routes, Routing, Rows, TokenFormat, scaled_rows,
};
use crate::quantize::device::{Input, Quantizer};
use crate::rows::{self, RowsOptions};
use crate::stream::FirstStream;

/// Sizes of a rank's part of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertsShape {
    /// Tokens of this rank; other ranks may have others. Ids of -1 stand for tokens that are fewer.
    pub tokens: usize,
    /// Experts that each token chooses.
    pub top_k: usize,
    /// Rows that a rank may have for another one, or for itself: `tokens * top_k` of the rank with the most tokens
    /// always suffice. All ranks have the same.
    pub capacity: usize,
}

/// A rank's part of a layer, planned once and launched any number of times, by all ranks in the same order.
///
/// ```text
/// own tokens --quantise once--> --route by rank, pack--> records --exchange--> records of all ranks
///     --route, gather--> rows of the own experts --two products--> --scatter--> --exchange--> own rows
///     --combine in the order of choices--> result
/// ```
///
/// Results do not depend on timing: the rows of all choices come back, and the rank that has the token adds them up in
/// the order of its choices. They have the same bits as those of a [`MoeLayer`] on one device that has all experts, if
/// the products of both are [batch-invariant](MoeOptions::batch_invariant); otherwise products may add up in another
/// order, as those of layers for other numbers of tokens do.
///
/// A rank has [`capacity`](ExpertsShape::capacity) records for each rank, and sends all of them, whatever their number
/// of tokens, so that no size depends on values on the device: a launch reads nothing back, and may be recorded in a
/// graph if the [`Transport`] may. Choices beyond the capacity are never dropped in silence: their tokens become NaN,
/// and [`ExpertsMemory::problem`] is [`Error::Capacity`].
///
/// # Costs
/// Besides a layer's own steps: one pass that packs rows, and one that brings results to their places. A token goes once
/// for each of its choices, not once for each rank, in the form that the products take ([`MoeOptions::quantized`]); results
/// come back in the type of [`MoeOptions::rows`].
#[derive(Debug)]
pub struct Experts {
    rank: usize,
    ranks: usize,
    capacity: usize,
    /// Routes by rank.
    sending: Routing,
    pack: FoundKernel,
    /// u32: the number of each expert on its rank.
    locals: DeviceBuffer,
    /// The products of all ranks' records.
    layer: MoeLayer,
    packed: Packed,
    types: CombineTypes,
}

/// Device memory of a rank's part of a layer, for one stream: the one that it is first used on.
#[derive(Debug)]
pub struct ExpertsMemory {
    rank: usize,
    capacity: usize,
    /// Routes of the own tokens by rank.
    routes: Routes,
    tokens: Tokens,
    /// Records for all ranks, and from all.
    records: [DeviceBuffer; 2],
    layer: MoeMemory,
    /// Results for all ranks, and from all.
    results: [DeviceBuffer; 2],
    stream: FirstStream,
}

/// The own tokens in the form that goes to other ranks.
#[derive(Debug)]
enum Tokens {
    /// The layer's inputs.
    Given,
    /// Blocks of the weights' format.
    Blocks(Box<Quantizer>),
    /// NVFP4 or e4m3 with a scale for each row.
    Rows(Box<rows::Rows>),
}

/// A step of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertsStep {
    /// Quantising, routing by rank and packing.
    Pack,
    /// The exchange of records.
    Send,
    /// Routing and gathering of what came, both products, and bringing results to their places.
    Products,
    /// The exchange of results.
    Return,
    /// Adding up.
    Combine,
}

impl ExpertsStep {
    /// All of them, in order.
    pub const ALL: [Self; 5] =
        [Self::Pack, Self::Send, Self::Products, Self::Return, Self::Combine];

    /// Returns the name for reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pack => "pack",
            Self::Send => "send",
            Self::Products => "products",
            Self::Return => "return",
            Self::Combine => "combine",
        }
    }
}

impl ExpertsMemory {
    /// Returns the fault of the operands of launches so far, if there was one; waits for the device.
    ///
    /// # Errors
    /// [`Error::Capacity`] if this rank had more rows for a rank than the capacity; the tokens concerned became NaN.
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn problem(&self) -> Result<Option<MoeProblem>> {
        if let Some(problem) = self.routes.problem()? {
            let most = self.routes.most_choices()?.unwrap_or_default();
            let over = most.iter().position(|rows| *rows as usize > self.capacity);
            let Some(to) = over else { return Ok(Some(problem)) };
            let (from, capacity) = (self.rank, self.capacity);
            return Err(Error::Capacity { from, to, rows: most[to] as usize, capacity });
        }
        const NAME: &str = "activations";
        let checked = match &self.tokens {
            Tokens::Given => Ok(()),
            Tokens::Blocks(quantizer) => quantizer.check(NAME),
            Tokens::Rows(rows) => rows.check(NAME),
        };
        match checked {
            Ok(()) => self.layer.problem(),
            Err(Error::NonFiniteAt { .. }) => Ok(Some(MoeProblem::NotFinite)),
            Err(error) => Err(error),
        }
    }

    /// Queues forgetting the faults so far.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn clear_problem(&self) -> Result<()> {
        self.routes.clear_status()?;
        self.layer.routes.clear_status()
    }

    /// The records of the last launch: those for all ranks, and those from all.
    #[must_use]
    pub fn records(&self) -> &[DeviceBuffer; 2] {
        &self.records
    }

    /// The rows of the last launch's results: those for all ranks, and those from all.
    #[must_use]
    pub fn results(&self) -> &[DeviceBuffer; 2] {
        &self.results
    }
}

impl Experts {
    /// Plans the part of rank `rank`, which has the experts of [`ExpertPlaces::experts`]: the gated weights `[count, I,
    /// H]` twice, and `[count, H, I]`, as [`MoeLayer::new`] takes them.
    ///
    /// # Errors
    /// The same as there; [`Error::Shape`] for a rank that is not below their number, and for a map of experts among the
    /// options.
    pub fn new(
        kernels: &Kernels,
        shape: ExpertsShape,
        (places, rank): (&ExpertPlaces, usize),
        weights: [&DeviceWeights; 2],
        half: HalfType,
        options: &MoeOptions,
    ) -> Result<Self> {
        let ExpertsShape { tokens, top_k, capacity } = shape;
        let (ranks, count) = (places.ranks(), places.experts(rank).len());
        if rank >= ranks {
            return Err(Error::shape("rank", format!("below {ranks}"), rank));
        }
        if options.map.is_some() {
            return Err(Error::shape("map of experts", "absent", "beside the places of experts"));
        }
        let by_rank = MoeShape { tokens, top_k, experts: places.all(), first: 0, count: ranks };
        let sending = Routing::mapped(kernels, by_rank, &places.owners()?)?;
        let sending = sending.with_capacity(capacity)?;
        let records = [sending.rows(), count];
        let layer = MoeLayer::of_records(kernels, records, weights, half, options)?;
        let locals: Vec<u8> = places.locals().into_iter().flat_map(u32::to_le_bytes).collect();
        Ok(Self {
            rank,
            ranks,
            capacity,
            pack: kernels.find(contract::PACK)?,
            locals: DeviceBuffer::upload(kernels.device(), "numbers of experts", &locals)?,
            packed: layer.packed()?,
            types: CombineTypes {
                rows: options.rows,
                result: options.output,
                shared: options.shared_type(),
            },
            sending,
            layer,
        })
    }

    /// The layer of this rank's experts.
    #[must_use]
    pub fn layer(&self) -> &MoeLayer {
        &self.layer
    }

    /// The layout of records.
    #[must_use]
    pub fn record(&self) -> Record {
        self.packed.record
    }

    /// Bytes that each rank sends to each: of records, and of results.
    #[must_use]
    pub fn exchanged_bytes(&self) -> [usize; 2] {
        [self.packed.bytes(), self.layer.row_bytes()].map(|bytes| self.capacity * bytes)
    }

    /// Bytes of the result.
    #[must_use]
    pub fn out_bytes(&self) -> usize {
        let elements = self.sending.shape().tokens * self.layer.hidden();
        elements * self.types.result.bytes() as usize
    }

    /// Allocates what launches need besides weights, inputs and result.
    ///
    /// # Errors
    /// The same as [`MoeLayer::memory`].
    pub fn memory(&self) -> Result<ExpertsMemory> {
        let kernels = self.sending.kernels();
        let zeroed = |name: &str, bytes: usize| {
            let all = self.ranks.checked_mul(bytes).ok_or_else(|| Error::Overflow {
                what: name.into(),
                detail: format!("{bytes} bytes for each of {} ranks", self.ranks),
            })?;
            DeviceBuffer::zeroed(kernels.device(), name, all)
        };
        let [records, results] = self.exchanged_bytes();
        Ok(ExpertsMemory {
            rank: self.rank,
            capacity: self.capacity,
            routes: self.sending.routes()?,
            tokens: self.tokens()?,
            records: [zeroed("records to send", records)?, zeroed("records", records)?],
            layer: self.layer.memory()?,
            results: [zeroed("results to send", results)?, zeroed("results", results)?],
            stream: FirstStream::default(),
        })
    }

    /// Prepares bringing the own tokens to the form that goes to other ranks.
    fn tokens(&self) -> Result<Tokens> {
        let kernels = self.sending.kernels();
        let (tokens, hidden) = (self.sending.shape().tokens, self.layer.hidden());
        let half = self.layer.tokens();
        let by_row = |results| {
            let options = RowsOptions::new(rows::Source::Plain, results);
            let made = rows::Rows::new(kernels, tokens, hidden, half, &options)?;
            Ok(Tokens::Rows(Box::new(made)))
        };
        match self.layer.quantized() {
            None => Ok(Tokens::Given),
            Some(TokenFormat::Blocks(scales)) => {
                let options = scales.of_tokens(self.layer.format())?;
                let input = Input::plain(half.float());
                let quantizer = Quantizer::new(kernels, tokens, hidden, input, &options)?;
                Ok(Tokens::Blocks(Box::new(quantizer)))
            }
            Some(TokenFormat::Fp8) => by_row(rows::Results::E4m3),
            Some(TokenFormat::ScaledRows) => by_row(scaled_rows()),
        }
    }

    /// Queues a rank's part: `out` becomes `[tokens, H]`. If an argument is wrong, nothing is queued or exchanged.
    ///
    /// # Errors
    /// The same as [`MoeLayer::launch`], and as [`Transport::exchange`].
    pub fn launch(
        &self,
        inputs: &MoeInputs<'_>,
        weights: [&DeviceWeights; 2],
        memory: &ExpertsMemory,
        transport: &dyn Transport,
        out: &DeviceBuffer,
        biases: MoeBiases<'_>,
    ) -> Result<()> {
        self.check(memory, transport)?;
        let [mut packing, mut products, mut combining] = [(); 3].map(|()| Prepared::new());
        self.give_pack(&mut packing, inputs, memory)?;
        self.give_products(&mut products, weights, memory, biases)?;
        self.give_combine(&mut combining, inputs, memory, out)?;
        let [records, results] = self.exchanged_bytes();
        // SAFETY: the arguments are borrowed by this call, and the memory is not shared between threads.
        unsafe {
            packing.queue()?;
            transport.exchange(&memory.records[0], &memory.records[1], records)?;
            products.queue()?;
            transport.exchange(&memory.results[0], &memory.results[1], results)?;
            combining.queue()
        }
    }

    /// Queues one step of a launch; those before it have been queued.
    ///
    /// # Errors
    /// The same as [`launch`](Self::launch).
    #[expect(clippy::too_many_arguments, reason = "those of `launch`, and the step")]
    pub fn launch_step(
        &self,
        step: ExpertsStep,
        inputs: &MoeInputs<'_>,
        weights: [&DeviceWeights; 2],
        memory: &ExpertsMemory,
        transport: &dyn Transport,
        out: &DeviceBuffer,
        biases: MoeBiases<'_>,
    ) -> Result<()> {
        self.check(memory, transport)?;
        let [records, results] = self.exchanged_bytes();
        match step {
            ExpertsStep::Pack => self.give_pack(&mut AtOnce, inputs, memory),
            ExpertsStep::Send => {
                transport.exchange(&memory.records[0], &memory.records[1], records)
            }
            ExpertsStep::Products => self.give_products(&mut AtOnce, weights, memory, biases),
            ExpertsStep::Return => {
                transport.exchange(&memory.results[0], &memory.results[1], results)
            }
            ExpertsStep::Combine => self.give_combine(&mut AtOnce, inputs, memory, out),
        }
    }

    /// Checks that memory and transport are of this rank.
    fn check(&self, memory: &ExpertsMemory, transport: &dyn Transport) -> Result<()> {
        memory.stream.require("layer's memory", self.sending.kernels().device())?;
        let (own, found) = ([self.rank, self.ranks], [transport.rank(), transport.ranks()]);
        if own != found {
            let [required, found] = [own, found].map(|[rank, of]| format!("rank {rank} of {of}"));
            return Err(Error::shape("transport", required, found));
        }
        if [memory.rank, memory.capacity] != [self.rank, self.capacity] {
            return Err(Error::shape("memory", "of this layer", "of another one"));
        }
        Ok(())
    }

    /// Gives a queue all from the own tokens to records for all ranks.
    fn give_pack<'k>(
        &'k self,
        queue: &mut dyn Queue<'k>,
        inputs: &MoeInputs<'k>,
        memory: &'k ExpertsMemory,
    ) -> Result<()> {
        let MoeInputs { activations, ids, weights, shared: _ } = *inputs;
        let sending = &self.sending;
        let device = sending.kernels().device();
        let (elements, scales, of_rows) = match &memory.tokens {
            Tokens::Given => (activations, None, None),
            Tokens::Blocks(quantizer) => {
                quantizer.prepare(queue, activations)?;
                (quantizer.codes(), Some(quantizer.scales()), None)
            }
            Tokens::Rows(made) => {
                made.prepare(queue, &rows::Operands::plain(activations))?;
                let rows::Outputs { elements, scales, multipliers } = made.outputs();
                (elements, scales, multipliers)
            }
        };
        sending.give_route(queue, sending.dense(ids), &memory.routes)?;
        let [records, _] = &memory.records;
        let mut parts = Vec::with_capacity(2);
        for (from, to) in [Some(elements), scales].into_iter().zip(self.packed.parts(records)) {
            match (from, to) {
                (Some(from), Some((to, bytes))) => {
                    parts.push(Part { from: Rows::dense(from, bytes), to, bytes });
                }
                (None, None) => {}
                (Some(_), None) | (None, Some(_)) => {
                    return Err(Error::shape("memory", "of this layer", "of another one"));
                }
            }
        }
        let MoeShape { tokens, top_k, .. } = sending.shape();
        let sources = sending.place(&memory.routes)?.sources;
        let rows = [tokens, sending.rows()];
        let words = |count: usize| count * size_of::<u32>();
        let place = |what: &str, buffer: Option<&DeviceBuffer>, count: usize| {
            buffer.map_or(Ok(0), |buffer| buffer.checked(what, words(count), device))
        };
        let all_records = sending.rows() * self.packed.bytes();
        let params = PackParams {
            gather: sending.gather_params(&parts, rows, (sources, top_k), true)?,
            records: records.checked("the records", all_records, device)?,
            ids: place("the ids", Some(ids), sending.slots())?,
            locals: self.locals.address(),
            weights: place("the weights", Some(weights), sending.slots())?,
            row_scales: place("the row scales", of_rows, tokens)?,
            record_bytes: self.packed.record.bytes(),
            reserved: 0,
        };
        sending.launch_pack(queue, &self.pack, &params)
    }

    /// Gives a queue all from the records of all ranks to the results for all.
    fn give_products<'k>(
        &'k self,
        queue: &mut dyn Queue<'k>,
        weights: [&'k DeviceWeights; 2],
        memory: &'k ExpertsMemory,
        biases: MoeBiases<'_>,
    ) -> Result<()> {
        let ([_, records], [results, _]) = (&memory.records, &memory.results);
        self.layer.give_received(queue, records, weights, &memory.layer, results, biases)
    }

    /// Gives a queue the addition of the own tokens' results.
    fn give_combine<'k>(
        &'k self,
        queue: &mut dyn Queue<'k>,
        inputs: &MoeInputs<'k>,
        memory: &'k ExpertsMemory,
        out: &DeviceBuffer,
    ) -> Result<()> {
        let MoeInputs { activations: _, ids: _, weights, shared } = *inputs;
        let (from, routes) = (&memory.results[1], &memory.routes);
        let operands = CombineOperands { from, routes, ids: None, weights, shared, out };
        // Positions were written long before, but nothing says that what wrote them is complete early enough.
        self.sending.give_combine(queue, operands, (self.layer.hidden(), self.types), false)
    }
}
