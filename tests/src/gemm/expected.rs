//! The expected results of a product, and the comparison with a kernel's results.

use fp4_formats::gemm::{OUT_MX_RECIPE, OUT_RECIPE};
use fp4_formats::quantize::{Format, Recipe};
use fp4_formats::{BlockFormat, FloatType, Mxfp4, Nvfp4, ScaleLayout, pack};
use nvfp4::floats;
use nvfp4::gemm::{GemmResult, Output};
use nvfp4::quantize::{QuantizeOptions, TensorScale, quantize_matrix};
use nvfp4::shape::GemmShape;
use nvfp4::tensor::{BlockScaled, Blocks, Dims};
use nvfp4_lab::gemm::Verify;
use nvfp4_lab::oracle::{Reference, Verification};

/// The expected results of a product.
#[derive(Debug)]
pub struct Expected {
    shape: GemmShape,
    /// The oracle's sums, and their magnitudes.
    pub reference: Reference,
    /// The result; in NVFP4 with its scale.
    pub output: Output,
    /// Elements or codes, and scales, if nothing is rounded before the result is.
    exact: Option<[Vec<u8>; 2]>,
}

/// Quantises f32 results on the CPU; returns codes and scales for a kind of blocks as of
/// [`Output::blocks`].
pub(super) fn quantized(
    [l, m, n]: [usize; 3],
    values: &[f32],
    (format, scale, layout): (Format, f32, ScaleLayout),
) -> [Vec<u8>; 2] {
    let dims = Dims::new(l, m, n).expect("dims");
    let (recipe, scale) = match format {
        Format::Nvfp4 => (Recipe::Nvfp4(OUT_RECIPE), TensorScale::Given(scale)),
        Format::Mxfp4 => (Recipe::Mxfp4(OUT_MX_RECIPE), TensorScale::default()),
    };
    let options = QuantizeOptions::new(recipe).scale(scale);
    let made = quantize_matrix("c", values, dims, &options).expect("finite");
    match made.into_blocks("c", dims).expect("one scale") {
        Blocks::Nvfp4(blocks) => in_layout(&blocks, layout),
        Blocks::Mxfp4(blocks) => in_layout(&blocks, layout),
    }
}

/// Returns codes and scales with the scales in a layout, padding included.
fn in_layout<F: BlockFormat>(blocks: &BlockScaled<F>, layout: ScaleLayout) -> [Vec<u8>; 2] {
    let blocks = blocks.to_layout(layout).expect("small");
    [blocks.codes().to_vec(), blocks.scales().to_vec()]
}

/// Returns two codes with zeros of the same sign.
fn without_negative_zero(byte: u8) -> u8 {
    let (low, high) = pack::unpair(byte);
    let [low, high] = [low, high].map(|code| if code == 8 { 0 } else { code });
    pack::pair(low, high)
}

/// The first difference of a result, or none.
type Comparison = Result<(), String>;

/// Finds the first place at which two parts of a result differ.
fn difference(part: &str, got: &[u8], right: &[u8]) -> Result<Option<usize>, String> {
    if got.len() != right.len() {
        return Err(format!("{} bytes of {part}, not {}", got.len(), right.len()));
    }
    Ok((0..got.len()).find(|&at| got[at] != right[at]))
}

fn passed(check: &Verification) -> Comparison {
    if check.passed() {
        return Ok(());
    }
    Err(format!("{}\n{:?}", check.summary(), check.first_mismatch))
}

/// Compares the largest magnitude that a launch found with that of its results `values`, of type `of`.
///
/// # Errors
/// Both numbers.
pub fn compare_largest(found: f32, of: FloatType, values: &[f32]) -> Comparison {
    let nan = values.iter().any(|x| x.is_nan());
    let right = values.iter().fold(0f32, |right, x| right.max(x.abs()));
    let right = if nan { f32::NAN } else { right };
    let rounded = floats::decode(of, &floats::encode(of, [f64::from(found)]))[0];
    if rounded == right || rounded.is_nan() && right.is_nan() {
        return Ok(());
    }
    Err(format!("the largest magnitude is {found:e}, not {right:e}"))
}

impl Expected {
    pub(super) fn new(shape: GemmShape, reference: Reference, output: Output, exact: bool) -> Self {
        let exact = exact.then(|| match output {
            Output::Floats(floats) => {
                [floats::encode(floats, reference.values.iter().copied()), Vec::new()]
            }
            Output::Nvfp4 { .. } | Output::Mxfp4 { .. } => {
                let values: Vec<f32> = reference.values.iter().map(|&x| x as f32).collect();
                let GemmShape { m, n, l, .. } = shape;
                quantized([l, m, n], &values, output.blocks().expect("blocks"))
            }
        });
        Self { shape, reference, output, exact }
    }

    /// Returns the same product in a format, NVFP4 with the scale that its f32 results ask for.
    #[must_use]
    pub(super) fn quantized(&self, format: Format, layout: ScaleLayout, floats: &[f32]) -> Self {
        let amax = floats.iter().fold(0f32, |amax, x| amax.max(x.abs()));
        let output = match format {
            Format::Nvfp4 => Output::Nvfp4 { scale: OUT_RECIPE.tensor_parameter(amax), layout },
            Format::Mxfp4 => Output::Mxfp4 { layout },
        };
        Self { shape: self.shape, reference: self.reference.clone(), output, exact: None }
    }

    /// Returns `[batch, token, row of the weights]` of a result's byte.
    fn place(&self, byte: usize) -> String {
        let GemmShape { m, n, .. } = self.shape;
        let index = match self.output {
            Output::Floats(floats) => byte / floats.bytes() as usize,
            Output::Nvfp4 { .. } | Output::Mxfp4 { .. } => byte * 2,
        };
        format!("[l, m, n] = {:?}", [index / (m * n), index / n % m, index % n])
    }

    /// Compares a result of the host library with the oracle, within the bound of its kernel, and
    /// bit by bit if the sums are exact.
    ///
    /// # Errors
    /// The first mismatch.
    pub fn compare(&self, result: &GemmResult) -> Comparison {
        let GemmShape { m, n, l, .. } = self.shape;
        let check = result.verify(&self.reference);
        passed(&check)?;
        if check.outputs != l * m * n {
            return Err(format!("{} results were compared, not {}", check.outputs, l * m * n));
        }
        self.compare_exact([&result.bytes, &result.scales])?;
        let dequantized = match self.output {
            Output::Floats(_) => return Ok(()),
            Output::Nvfp4 { .. } => {
                result.clone().into_blocks::<Nvfp4>("c").and_then(|c| c.dequantize())
            }
            Output::Mxfp4 { .. } => {
                result.clone().into_blocks::<Mxfp4>("c").and_then(|c| c.dequantize())
            }
        };
        if dequantized.map_err(|error| error.to_string())? != result.values() {
            return Err("as an operand it stands for other values".into());
        }
        Ok(())
    }

    /// Compares floats with the oracle within the bound of so many `additions`, and bit by bit if
    /// the sums are exact.
    ///
    /// # Errors
    /// The first mismatch.
    pub fn compare_floats(&self, bytes: &[u8], floats: FloatType, additions: u32) -> Comparison {
        let reference = self.reference.clone().with_additions(additions);
        passed(&reference.verify(&floats::decode(floats, bytes), floats))?;
        self.compare_exact([bytes, &[]])
    }

    /// Zeros may have either sign: the oracle's has that of another order of factors.
    fn compare_exact(&self, got @ [bytes, _]: [&[u8]; 2]) -> Comparison {
        let Some([right, right_scales]) = &self.exact else { return Ok(()) };
        match self.output {
            Output::Floats(floats) => {
                difference("elements", bytes, right)?;
                let [got, right] = [bytes, right].map(|bytes| floats::decode(floats, bytes));
                match (0..got.len()).find(|&at| got[at] != right[at]) {
                    None => Ok(()),
                    Some(at) => {
                        let place = self.place(at * floats.bytes() as usize);
                        Err(format!("{place}: {:e}, not {:e}", got[at], right[at]))
                    }
                }
            }
            Output::Nvfp4 { .. } | Output::Mxfp4 { .. } => {
                self.compare_blocks(got, [right, right_scales], false)
            }
        }
    }

    /// Compares a result in NVFP4 or MXFP4 with the CPU's quantisation of `floats`, the result of the
    /// same kernel in f32. `signed`: whether zeros have the same signs.
    ///
    /// # Errors
    /// The first mismatch.
    pub fn compare_quantized(&self, got: [&[u8]; 2], floats: &[f32], signed: bool) -> Comparison {
        let Some(blocks) = self.output.blocks() else {
            return Err("it is in floats".into());
        };
        let GemmShape { m, n, l, .. } = self.shape;
        let right = quantized([l, m, n], floats, blocks);
        self.compare_blocks(got, right.each_ref().map(Vec::as_slice), signed)
    }

    /// Compares the largest magnitude, if there is one: with that of a result in floats, to whose type
    /// it is rounded, or with that of `floats`, the result of the same kernel in f32.
    ///
    /// # Errors
    /// Both numbers.
    pub fn compare_magnitude(&self, result: &GemmResult, floats: Option<&[f32]>) -> Comparison {
        let Some(found) = result.magnitude else { return Ok(()) };
        let (of, values) = match (self.output, floats) {
            (Output::Floats(of), None) => (of, &result.values()[..]),
            (_, Some(floats)) => (FloatType::F32, floats),
            (Output::Nvfp4 { .. } | Output::Mxfp4 { .. }, None) => return Ok(()),
        };
        compare_largest(found, of, values)
    }

    fn compare_blocks(
        &self,
        [codes, scales]: [&[u8]; 2],
        [right, right_scales]: [&[u8]; 2],
        signed: bool,
    ) -> Comparison {
        if let Some(at) = difference("scales", scales, right_scales)? {
            return Err(format!("scale {at}: {:#x}, not {:#x}", scales[at], right_scales[at]));
        }
        let same = |codes: &[u8]| -> Vec<u8> {
            let zeros = |&pair| if signed { pair } else { without_negative_zero(pair) };
            codes.iter().map(zeros).collect()
        };
        let (codes, right) = (same(codes), same(right));
        match difference("codes", &codes, &right)? {
            None => Ok(()),
            Some(at) => {
                Err(format!("{}: codes {:#x}, not {:#x}", self.place(at), codes[at], right[at]))
            }
        }
    }

    /// Compares the bytes of two devices' results.
    ///
    /// # Errors
    /// The first byte that differs.
    pub fn compare_bytes(&self, result: &GemmResult, other: &GemmResult) -> Comparison {
        if let Some(at) = difference("elements", &result.bytes, &other.bytes)? {
            let (got, right) = (result.bytes[at], other.bytes[at]);
            return Err(format!("{}: byte {got:#x}, not {right:#x}", self.place(at)));
        }
        match difference("scales", &result.scales, &other.scales)? {
            None => Ok(()),
            Some(at) => {
                let (got, right) = (result.scales[at], other.scales[at]);
                Err(format!("scale {at}: {got:#x}, not {right:#x}"))
            }
        }
    }
}
