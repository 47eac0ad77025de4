//! Operands of a product in device memory, as the kernels take them.

use super::{Kernel, Modules, Product};
use crate::gemm::Inputs;
use fp4_formats::gemm::sm100::prepare::{
    self, CODES_NAME, PrepareCodes, PrepareScales, PreparedBlocks, SCALES_NAME,
};
use fp4_formats::gemm::sm100::{
    Side, Sm100Params, TokenBlocks, codes_map, elements_map, scales_map,
};
use fp4_formats::gemm::{Affine, Epilogue, Problem, ResultScales, Sink};
use fp4_formats::params;
use fp4_formats::tensor_map::{MapElement, TensorMapShape};
use fp4_formats::{Arch, BlockFormat, FloatType, ScaleLayout, Swizzle, TensorMap};
use nvfp4::gemm::{ActivationKind, Activations, Repacked};
use nvfp4::tensor::BlockScaled;
use ptx_emu::tensor_map::{self, ElementType};
use ptx_emu::{GlobalMemory, LaunchError};

/// An operand in device memory as the kernel takes it, once `before` has run.
struct Placed {
    codes: u64,
    row_stride: u64,
    code_stride: u64,
    scales: u64,
    scale_stride: u64,
    before: Vec<Kernel>,
}

impl Kernel {
    fn preparation(entry: &'static str, grid: u32, params: &[u8]) -> Self {
        Self { entry, grid, threads: prepare::THREADS, shared: 0, params: params.to_vec() }
    }
}

/// Encodes the tensor map of a shape at an address.
pub(super) fn encode(shape: &TensorMapShape, address: u64) -> TensorMap {
    let element = match shape.element {
        MapElement::PaddedU4 => ElementType::U4Align16,
        MapElement::U8 => ElementType::U8,
        MapElement::U16 => ElementType::U16,
        MapElement::U32 => ElementType::U32,
    };
    let rank = shape.rank;
    let mut map = tensor_map::TensorMap::tiled(
        element,
        address,
        &shape.dims[..rank],
        &shape.strides[..rank - 1],
        &shape.box_dims[..rank],
    );
    map.swizzle = match shape.swizzle {
        Swizzle::None => tensor_map::Swizzle::None,
        Swizzle::B32 => tensor_map::Swizzle::B32,
        Swizzle::B64 => tensor_map::Swizzle::B64,
        Swizzle::B128 => tensor_map::Swizzle::B128,
    };
    TensorMap::from_bytes(&map.encode().unwrap_or_else(|e| panic!("{e}: {map:?}")))
}

impl Product {
    /// Puts operands and vectors into memory. Returns parameters that lack the result, and the
    /// launches before the product; those that lay out weights have run, as when a model is loaded.
    pub(super) fn place_operands<F: BlockFormat>(
        &self,
        modules: &Modules,
        memory: &mut GlobalMemory,
        inputs: &Inputs<F>,
    ) -> Result<(Sm100Params, Vec<Kernel>), LaunchError> {
        let problem @ Problem { m, n, k, .. } = self.problem();
        let [a_side, b_side] = if self.swapped { [Side::Y, Side::X] } else { [Side::X, Side::Y] };
        let weights = if self.config.takes_bytes() {
            self.place_repacked(memory, inputs)
        } else {
            self.place(memory, "B", &inputs.weights)
        };
        for kernel in &weights.before {
            self.launch(modules, memory, std::slice::from_ref(kernel))?;
        }
        let b_maps = self.maps(b_side, n, &weights);
        let (mut scales_of_rows, mut row_factor_stride) = (0, 0);
        let mut tokens = TokenBlocks::NONE;
        let (a_maps, before, a_scale) = match inputs.activations() {
            Activations::Blocks(blocks) if self.config.loads_tokens() => {
                let (maps, before);
                (maps, tokens, before) = self.place_tokens(memory, blocks);
                (maps, before, blocks.global_scale())
            }
            Activations::Blocks(blocks) => {
                let placed = self.place(memory, "A", blocks);
                (self.maps(a_side, m, &placed), placed.before, blocks.global_scale())
            }
            Activations::Halves(halves) => {
                let at = memory.alloc_from("A", halves.bytes()).expect("room");
                let matrix = 2 * u64::from(m) * u64::from(k);
                let map = elements_map(self.config, [m, k, problem.l], matrix);
                ([encode(&map, at), TensorMap::NONE], Vec::new(), 1.0)
            }
            Activations::Fp8(bytes) => {
                let at = memory.alloc_from("A", bytes.codes()).expect("room");
                scales_of_rows = memory.alloc_from("A scales", &bytes.scale_bytes()).expect("room");
                row_factor_stride = m;
                let matrix = u64::from(m) * u64::from(k);
                let map = elements_map(self.config, [m, k, problem.l], matrix);
                ([encode(&map, at), TensorMap::NONE], Vec::new(), 1.0)
            }
            Activations::ScaledRows(_) => panic!("products on a device have them"),
            Activations::ToFp8(_) => panic!("nothing quantises here"),
        };
        let [[x_codes, x_scales], [y_codes, y_scales]] =
            if self.swapped { [b_maps, a_maps] } else { [a_maps, b_maps] };
        let mut vector = |vector: &Option<Vec<f32>>| {
            let Some(vector) = vector else { return 0 };
            let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
            memory.alloc_from("vector", &bytes).expect("room")
        };
        let options = &inputs.options;
        let params = Sm100Params {
            x_codes,
            y_codes,
            x_scales,
            y_scales,
            result: TensorMap::NONE,
            epilogue: Epilogue::of(
                Affine {
                    // The scales of tokens take their place.
                    row_factors: match scales_of_rows {
                        0 => vector(&options.row_factors),
                        scales => scales,
                    },
                    column_factors: vector(&options.column_factors),
                    bias: vector(&options.bias),
                    alpha: options.alpha * a_scale * inputs.weights.global_scale(),
                    bias_type: FloatType::F32 as u32,
                },
                Sink::of([0, u64::from(m) * u64::from(n)], 0, n, ResultScales::NONE),
            ),
            partials: 0,
            flags: 0,
            tokens,
            problem,
            swapped: u32::from(self.swapped),
            dynamic: u32::from(self.dynamic),
            x_once: 1,
            y_once: 0,
            x_shared: 0,
            y_shared: 0,
            copied: 0,
            row_factor_stride,
            walk: self.config.tiles(&problem, self.swapped).counts.walk,
            schedule: self.schedule_of_tiles(),
        };
        Ok((params, before))
    }

    /// Puts activations into memory for a kernel that loads them as they are, or for a kernel that
    /// copies them there: returns the map of codes, if the copy engine takes them, none of scales,
    /// and that kernel.
    fn place_tokens<F: BlockFormat>(
        &self,
        memory: &mut GlobalMemory,
        blocks: &BlockScaled<F>,
    ) -> ([TensorMap; 2], TokenBlocks, Vec<Kernel>) {
        let Problem { m, k, l, .. } = self.problem();
        let mut before = Vec::new();
        let at = if self.late {
            // One kernel brings both, as a row of whole words.
            let scales_at = blocks.codes().len().next_multiple_of(256);
            let mut row = blocks.codes().to_vec();
            row.resize(scales_at, 0);
            row.extend(blocks.scales());
            row.resize(row.len().next_multiple_of(16), 0);
            let row_bytes = row.len() as u32;
            let from = memory.alloc_from("A before", &row).expect("room");
            let to = memory.alloc("A", row_bytes.into(), 256).expect("room");
            let params = PrepareCodes { from, to, rows: 1, row_bytes, reserved: 0 };
            before.push(Kernel::preparation(
                CODES_NAME,
                few(params.grid()),
                params::bytes(&params),
            ));
            [to, to + scales_at as u64]
        } else {
            [("A codes", blocks.codes()), ("A scales", blocks.scales())]
                .map(|(name, bytes)| memory.alloc_from(name, bytes).expect("room"))
        };
        let strides = [blocks.codes(), blocks.scales()].map(|b| b.len() as u64 / u64::from(l));
        let tokens = TokenBlocks::new(k, blocks.layout(), at, strides);
        let map = if tokens.codes == 0 {
            let row = u64::from(k / 2);
            encode(&codes_map(self.config, Side::Y, [m, k, l], row, strides[0]), at[0])
        } else {
            TensorMap::NONE
        };
        ([map, TensorMap::NONE], tokens, before)
    }

    /// Puts weights for products in e4m3 into memory, as the host library repacks them.
    fn place_repacked<F: BlockFormat>(
        &self,
        memory: &mut GlobalMemory,
        inputs: &Inputs<F>,
    ) -> Placed {
        let kind = ActivationKind::Fp8(None);
        let repacked = Repacked::for_arch(Arch::Sm100a, &inputs.weights, kind).expect("fits");
        let dims = inputs.weights.dims();
        let [rows, columns, batch] =
            [dims.rows(), dims.cols(), dims.batch()].map(|size| size as u32);
        let format = self.config.format;
        let blocks = PreparedBlocks { format, beside_bytes: true, rows, columns, batch };
        let codes = memory.alloc_from("B", repacked.bytes()).expect("room");
        Placed {
            codes,
            row_stride: blocks.row_stride(),
            code_stride: blocks.matrix_bytes(),
            scales: codes + PreparedBlocks::scales_at(blocks.code_bytes()),
            scale_stride: blocks.matrix_bytes(),
            before: Vec::new(),
        }
    }

    /// Puts an operand into memory; kernels lay it out anew if they must.
    fn place<F: BlockFormat>(
        &self,
        memory: &mut GlobalMemory,
        name: &str,
        operand: &BlockScaled<F>,
    ) -> Placed {
        let (format, layout, dims) = (self.config.format, operand.layout(), operand.dims());
        let [rows, k, batch] = [dims.rows(), dims.cols(), dims.batch()].map(|size| size as u32);
        let row_bytes = k / 2;
        let mut codes = memory.alloc_from(&format!("{name} codes"), operand.codes()).expect("room");
        let mut row_stride = u64::from(row_bytes);
        let mut before = Vec::new();
        if prepare::codes_need_it(k) {
            row_stride = u64::from(PrepareCodes::padded(row_bytes));
            let rows = u64::from(rows * batch);
            let to = memory.alloc(&format!("{name} padded"), rows * row_stride, 256).expect("room");
            let params = PrepareCodes { from: codes, to, rows, row_bytes, reserved: 0 };
            before.push(Kernel::preparation(
                CODES_NAME,
                few(params.grid()),
                params::bytes(&params),
            ));
            codes = to;
        }
        let bytes = operand.scales();
        let mut scales = memory.alloc_from(&format!("{name} scales"), bytes).expect("room");
        let each = prepare::scale_bytes(format, rows, k).expect("small") as u64;
        if prepare::scales_need_it(format, layout, rows, k) {
            let name = format!("{name} laid out");
            let to = memory.alloc(&name, each * u64::from(batch), 256).expect("room");
            let params = PrepareScales {
                from: scales,
                to,
                from_stride: bytes.len() as u64 / u64::from(batch),
                to_stride: each,
                rows,
                blocks: k / format.block(),
                batch,
                blocked: u32::from(layout == ScaleLayout::Blocked128x4),
                row_tiles: PrepareScales::row_tiles(rows),
                reserved: 0,
            };
            before.push(Kernel::preparation(
                SCALES_NAME,
                few(params.grid()),
                params::bytes(&params),
            ));
            scales = to;
        }
        let code_stride = row_stride * u64::from(rows);
        Placed { codes, row_stride, code_stride, scales, scale_stride: each, before }
    }

    /// Returns the tensor maps of codes and scales of an operand with so many rows.
    fn maps(&self, side: Side, rows: u32, placed: &Placed) -> [TensorMap; 2] {
        let Problem { k, l, .. } = self.problem();
        let codes =
            codes_map(self.config, side, [rows, k, l], placed.row_stride, placed.code_stride);
        let scales = scales_map(self.config, side, [rows, k, l], placed.scale_stride);
        [encode(&codes, placed.codes), encode(&scales, placed.scales)]
    }
}

/// Returns fewer CTAs than there are words: threads take several, as in the largest launches.
fn few(ctas: u32) -> u32 {
    ctas.div_ceil(3)
}
