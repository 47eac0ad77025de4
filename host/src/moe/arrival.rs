//! Tokens that come in records of other devices, each with one choice, and go back to the records' places.

use fp4_formats::HalfType;
use fp4_formats::moe::record::{Header, Record};
use fp4_formats::pack::packed_len;
use fp4_formats::quantize::Format;

use super::layer::Gathered;
use super::routing::{Ids, Part, Rows};
use super::{
    MoeBiases, MoeInputs, MoeLayer, MoeMemory, MoeOptions, MoeShape, MoeStep, TokenFormat, WORD,
};
use crate::buffer::DeviceBuffer;
use crate::device::{Kernels, Queue};
use crate::error::{Error, Result};
use crate::gemm::{ActivationBuffers, DeviceWeights, SettledCounts, TokenBuffers};

/// The form in which a layer's tokens come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// Rows, with ids beside them.
    Rows,
    /// Records, each with the id of one expert.
    Records,
}

/// The parts of a packed row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packed {
    /// The layout.
    pub record: Record,
    /// Whether the scale in the header is the row's.
    pub has_scale: bool,
}

impl Packed {
    /// The parts of a row of `columns` elements as products take it.
    ///
    /// # Errors
    /// [`Error::Shape`] for rows that are too long.
    pub fn new(
        columns: usize,
        half: HalfType,
        quantized: Option<(TokenFormat, Format)>,
    ) -> Result<Self> {
        const MOST: usize = 1 << 24;
        if columns > MOST {
            return Err(Error::shape("columns to send", format!("at most {MOST}"), columns));
        }
        let blocks = |format: Format| [packed_len(columns), columns / format.block() as usize];
        let ([elements, scales], has_scale) = match quantized {
            None => ([columns * half.float().bytes() as usize, 0], false),
            Some((TokenFormat::Blocks(_), format)) => (blocks(format), false),
            Some((TokenFormat::ScaledRows, format)) => (blocks(format), true),
            Some((TokenFormat::Fp8, _)) => ([columns, 0], true),
        };
        let record = Record { elements: elements as u32, scales: scales as u32 };
        Ok(Self { record, has_scale })
    }

    /// Bytes of a record.
    pub fn bytes(self) -> usize {
        self.record.bytes() as usize
    }

    /// The elements of records in memory, and the scales of their blocks if they have any: places, and bytes of each.
    pub fn parts(self, records: &DeviceBuffer) -> [Option<(Rows<'_>, usize)>; 2] {
        let Record { elements, scales } = self.record;
        let part = |first: u32, bytes: u32| {
            let rows = Rows { buffer: records, first: first as usize, stride: self.bytes() };
            (bytes > 0).then_some((rows, bytes as usize))
        };
        [part(Record::ELEMENTS_AT, elements), part(self.record.scales_at(), scales)]
    }
}

impl MoeLayer {
    /// Plans the products of a layer whose tokens come in `records` records, each for one of `count` experts.
    ///
    /// # Errors
    /// The same as [`new`](Self::new).
    pub(crate) fn of_records(
        kernels: &Kernels,
        [records, count]: [usize; 2],
        weights: [&DeviceWeights; 2],
        half: HalfType,
        options: &MoeOptions,
    ) -> Result<Self> {
        let shape = MoeShape { tokens: records, top_k: 1, experts: count, first: 0, count };
        let options = MoeOptions { map: None, ..options.clone() };
        Self::of_arrival(kernels, shape, weights, half, &options, Arrival::Records)
    }

    /// The records that it takes.
    ///
    /// # Errors
    /// [`Error::Shape`] for rows that are too long.
    pub(crate) fn packed(&self) -> Result<Packed> {
        let quantized = self.quantized().map(|quantized| (quantized, self.format));
        Packed::new(self.hidden(), self.tokens(), quantized)
    }

    /// Allocates the rows of the first product.
    pub(super) fn unpacked(
        &self,
        allocate: impl Fn(&str, usize) -> Result<DeviceBuffer>,
    ) -> Result<TokenBuffers> {
        let Packed { record: Record { elements, scales }, has_scale } = self.packed()?;
        let rows = self.routing.rows();
        let some = |name: &str, bytes: usize| match bytes {
            0 => Ok(None),
            bytes => allocate(name, rows * bytes).map(Some),
        };
        Ok(TokenBuffers::with(
            allocate("gathered", rows * elements as usize)?,
            some("gathered scales", scales as usize)?,
            some("gathered row scales", if has_scale { WORD } else { 0 })?,
        ))
    }

    /// Gives a queue all from `records` to rows of results in `back`, each at its record's place: routing, gathering,
    /// both products, and one more copy of the results. Places of records that are no token's keep what they are.
    ///
    /// # Errors
    /// The same as [`launch_step`](Self::launch_step).
    pub(crate) fn give_received<'k>(
        &'k self,
        queue: &mut dyn Queue<'k>,
        records: &'k DeviceBuffer,
        weights: [&'k DeviceWeights; 2],
        memory: &'k MoeMemory,
        back: &'k DeviceBuffer,
        biases: MoeBiases<'_>,
    ) -> Result<()> {
        let packed = self.packed()?;
        let other = || Error::shape("memory", "of this layer", "of another one");
        let Some(Gathered::Copies(copies)) = &memory.gathered else { return Err(other()) };
        memory.stream.require("layer's memory", self.routing.kernels().device())?;
        let ids = Ids {
            buffer: records,
            bytes: self.routing.slots() * packed.bytes(),
            first: Header::EXPERT_AT as usize,
            stride: packed.bytes(),
        };
        self.routing.give_route(queue, ids, &memory.routes)?;

        let to = match copies.activations() {
            ActivationBuffers::Halves(elements) => [Some(elements), None, None],
            ActivationBuffers::Blocks { codes, scales, row_scales } => {
                [Some(codes), Some(scales), row_scales]
            }
            ActivationBuffers::Fp8 { codes, scales } => [Some(codes), None, Some(scales)],
        };
        let scale =
            Rows { buffer: records, first: Header::SCALE_AT as usize, stride: packed.bytes() };
        let [elements, scales] = packed.parts(records);
        let from = [elements, scales, packed.has_scale.then_some((scale, WORD))];
        let mut parts = Vec::with_capacity(from.len());
        for (from, to) in from.into_iter().zip(to) {
            match (from, to) {
                (Some((from, bytes)), Some(to)) => {
                    parts.push(Part { from, to: Rows::dense(to, bytes), bytes });
                }
                (None, None) => {}
                (Some(_), None) | (None, Some(_)) => return Err(other()),
            }
        }
        self.routing.give_unpack(queue, &parts, &memory.routes)?;

        // SAFETY: gathering, which is queued between routing and the products, lets later kernels begin when routing
        // is complete, and with it all that was queued before.
        let settled = Some(unsafe { SettledCounts::new() });
        // The products take what was gathered; nothing is combined here.
        let inputs =
            MoeInputs { activations: records, ids: records, weights: records, shared: None };
        for step in [MoeStep::First, MoeStep::Second] {
            self.give(queue, settled, step, &inputs, weights, memory, back, biases)?;
        }
        self.routing.give_scatter(queue, &memory.rows, &memory.routes, back, self.row_bytes())
    }

    /// Bytes of a row of results.
    pub(crate) fn row_bytes(&self) -> usize {
        self.hidden() * self.rows().bytes() as usize
    }
}
