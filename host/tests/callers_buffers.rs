//! GEMV, quantisation and dequantisation on buffers of the caller's: nothing is allocated, buffers of
//! other sizes are refused by name, and on a GPU all of it can be recorded into a graph.
//!
//! Kernels that are not built are left out, or a failure where `NVFP4_KERNELS_DIR` promises
//! them.

mod support;

use nvfp4::buffer::DeviceBuffer;
use nvfp4::dequantize::{Dequantizer, Multiplier};
use nvfp4::device::{Device, DeviceRequest, Kernels};
use nvfp4::error::{Error, Result};
use nvfp4::gemv::{
    DeviceWeights, Gemv, GemvBuffers, GemvLayouts, GemvOptions, Repacked, WeightForm, gemv,
};
use nvfp4::quantize::device::{Input, Quantizer};
use nvfp4::quantize::{QuantizeOptions, TensorScale, quantize};
use nvfp4::shape::GemvShape;
use nvfp4::tensor::{BlockScaled, Dims};
use nvfp4::{FloatType, Format, Nvfp4Recipe, Recipe, ScaleLayout, floats};

const SHAPE: GemvShape = GemvShape { m: 72, k: 96, l: 2 };
const SCALE: f32 = 0.125;

/// Vectors are quantised, multiplied with a weight and dequantised again, all of it in these buffers.
struct Layer {
    quantizer: Quantizer,
    product: Gemv,
    dequantizer: Dequantizer,
    input: DeviceBuffer,
    codes: DeviceBuffer,
    scales: DeviceBuffer,
    weights: [DeviceBuffer; 2],
    out: DeviceBuffer,
    again: DeviceBuffer,
    expected: Vec<f32>,
}

impl Layer {
    fn new(kernels: &Kernels, layout: ScaleLayout) -> Result<Self> {
        let device = kernels.device();
        let GemvShape { m, k, l } = SHAPE;
        let value = |at: usize| [0.5, -1.0, 2.0, 0.0, 0.75][at % 5];
        let linear = ScaleLayout::Linear;
        let given = TensorScale::Given(SCALE);
        let weight: Vec<f32> = (0..l * m * k).map(value).collect();
        let weight = quantize("w", &weight, Dims::new(l, m, k)?, given, layout)?;
        let input: Vec<f32> = (0..l * k).map(|at| value(at + 2)).collect();
        let activations = quantize("x", &input, Dims::new(l, 1, k)?, given, linear)?;
        let output = GemvOptions::new().output(FloatType::F32);
        let expected = gemv(kernels, &activations, &weight, output.clone())?.values();

        let options =
            QuantizeOptions::new(Recipe::Nvfp4(Nvfp4Recipe::TorchAo)).scale(given).layout(linear);
        let input: Vec<u8> = input.iter().flat_map(|value| value.to_le_bytes()).collect();
        // A row for each batch entry, which linear scales allow.
        let quantizer = Quantizer::new(kernels, l, k, Input::plain(FloatType::F32), &options)?;
        let layouts = GemvLayouts { activations: linear, weights: layout };
        let scaled = output.activation_scale(SCALE).weight_scale(SCALE);
        let product = Gemv::new(kernels, SHAPE, layouts, scaled)?;
        let dequantizer = Dequantizer::new(kernels, l, k, Format::Nvfp4, linear, FloatType::F32)?;
        let memory = |name: &str, bytes: usize| DeviceBuffer::poisoned(device, name, bytes);
        Ok(Self {
            codes: memory("codes", quantizer.codes().len())?,
            scales: memory("scales", quantizer.scales().len())?,
            out: memory("out", product.out_bytes())?,
            again: memory("again", dequantizer.out().len())?,
            input: DeviceBuffer::upload(device, "input", &input)?,
            weights: [
                DeviceBuffer::upload(device, "b codes", weight.codes())?,
                DeviceBuffer::upload(device, "b scales", weight.scales())?,
            ],
            quantizer,
            product,
            dequantizer,
            expected,
        })
    }

    fn buffers(&self) -> GemvBuffers<'_> {
        let Self { codes, scales, weights: [b_codes, b_scales], out, .. } = self;
        GemvBuffers { a_codes: codes, a_scales: scales, b_codes, b_scales, out }
    }

    fn launch(&self) -> Result<()> {
        let Self { quantizer, dequantizer, input, codes, scales, again, .. } = self;
        quantizer.launch_into(input, None, codes, scales)?;
        self.product.launch(self.buffers())?;
        dequantizer.launch_into(codes, scales, Multiplier::Given(SCALE), again)?;
        Ok(())
    }

    fn check(&self) {
        let decode = |buffer: &DeviceBuffer| {
            floats::decode(FloatType::F32, &buffer.read().expect("written"))
        };
        assert_eq!(decode(&self.out), self.expected);
        let (again, input) = (decode(&self.again), decode(&self.input));
        let near = again.iter().zip(&input).all(|(a, b)| (a - b).abs() <= 0.25 * b.abs());
        assert!(near, "{again:?}, quantised {input:?}");
    }
}

#[test]
fn launches_take_the_callers_buffers_and_allocate_nothing() {
    for kernels in support::machines() {
        for layout in [ScaleLayout::Linear, ScaleLayout::Blocked128x4] {
            let layer = Layer::new(&kernels, layout).expect("planned");
            let before = kernels.device().allocations();
            for _ in 0..2 {
                layer.launch().expect("launched");
            }
            assert_eq!(kernels.device().allocations(), before);
            layer.check();
        }
    }
}

/// Weights that are in device memory with 128x4 scales, and weights that come from the host: a plan
/// launches both, with the scale of each.
#[test]
fn weights_in_an_order_of_their_own() {
    let [linear, blocked] = [ScaleLayout::Linear, ScaleLayout::Blocked128x4];
    for kernels in support::machines() {
        let device = kernels.device();
        let layer = Layer::new(&kernels, blocked).expect("planned");
        layer.launch().expect("launched");
        let GemvBuffers { a_codes, a_scales, out, .. } = layer.buffers();
        let copy = |name: &str, buffer: &DeviceBuffer| {
            let bytes = buffer.read().expect("written");
            DeviceBuffer::upload(device, name, &bytes).expect("allocated")
        };
        let [codes, scales] = &layer.weights;
        let again = || [copy("codes", codes), copy("scales", scales)];
        let form = WeightForm { shape: SHAPE, stored: blocked, scales: linear };
        let weights = DeviceWeights::from_buffers(device, form, again(), SCALE).expect("fits");
        assert_eq!(weights.scales().len(), SHAPE.l * SHAPE.m * SHAPE.k / 16);
        let options = GemvOptions::new().output(FloatType::F32).activation_scale(SCALE);
        let product = Gemv::of_weights(&kernels, form, linear, options).expect("planned");
        let launch = |weights: &DeviceWeights| {
            product
                .launch_weights([a_codes, a_scales], weights, out)
                .map(|()| floats::decode(FloatType::F32, &out.read().expect("written")))
        };
        out.fill(0xff).expect("filled");
        assert_eq!(launch(&weights).expect("launched"), layer.expected);

        let GemvShape { m, k, l } = SHAPE;
        let dims = Dims::new(l, m, k).expect("sizes");
        let [codes, scales] = [codes, scales].map(|buffer| buffer.read().expect("written"));
        let host = BlockScaled::new("w", dims, blocked, codes, scales, 2.0 * SCALE).expect("valid");
        let host = Repacked::new(&host, linear).expect("fits").upload(device).expect("uploaded");
        let twice: Vec<f32> = layer.expected.iter().map(|value| 2.0 * value).collect();
        assert_eq!(launch(&host).expect("launched"), twice);

        // Weights of another order or size, buffers of another size, and scales beyond f32.
        let stored = WeightForm::as_stored(SHAPE, blocked);
        let stored = DeviceWeights::from_buffers(device, stored, again(), SCALE).expect("fits");
        let error = launch(&stored).expect_err("another order").to_string();
        let of = "weights must be those of gemv:72x96x2 with";
        assert_eq!(
            error,
            format!("{of} linear scales, but is those of gemv:72x96x2 with 128x4 scales")
        );
        let error =
            DeviceWeights::from_buffers(device, WeightForm::as_stored(SHAPE, linear), again(), 1.0);
        let error = error.expect_err("too many scales").to_string();
        assert_eq!(error, "bytes of the weights' scales must be 864, but is 2048");
        let large = DeviceWeights::from_buffers(device, form, again(), f32::MAX).expect("fits");
        let error = Gemv::of_weights(&kernels, form, linear, GemvOptions::new().weight_scale(4.0))
            .and_then(|product| product.launch_weights([a_codes, a_scales], &large, out));
        assert!(matches!(error, Err(Error::Scalar { .. })), "{error:?}");
    }
}

#[test]
fn buffers_of_other_sizes_are_refused_by_name() {
    for kernels in support::machines() {
        let layer = Layer::new(&kernels, ScaleLayout::Linear).expect("planned");
        let other = DeviceBuffer::zeroed(kernels.device(), "other", 17).expect("allocated");
        let all = layer.buffers();
        let wrong = [
            ("the activations' codes", GemvBuffers { a_codes: &other, ..all }),
            ("the activations' scales", GemvBuffers { a_scales: &other, ..all }),
            ("the weights' codes", GemvBuffers { b_codes: &other, ..all }),
            ("the weights' scales", GemvBuffers { b_scales: &other, ..all }),
            ("the result", GemvBuffers { out: &other, ..all }),
        ];
        let named = |error: Error, name: &str| match error {
            Error::Shape { field, actual, .. } => {
                assert_eq!((field, actual), (format!("bytes of {name}"), "17".into()));
            }
            error => panic!("{error}"),
        };
        for (name, buffers) in wrong {
            named(layer.product.launch(buffers).expect_err("another size"), name);
        }
        let Layer { quantizer, dequantizer, input, codes, scales, .. } = &layer;
        let error = quantizer.launch_into(input, None, &other, scales).expect_err("another size");
        named(error, "the codes");
        let error = quantizer.launch_into(input, None, codes, &other).expect_err("another size");
        named(error, "the scales");
        let into = dequantizer.launch_into(codes, scales, Multiplier::Given(1.0), &other);
        named(into.expect_err("another size"), "the result");
    }
}

#[test]
fn a_graph_of_all_three_on_a_gpu() {
    let device = match Device::open(&DeviceRequest::Cuda(0)) {
        Ok(device) => device,
        Err(error) => return skipped::test(error),
    };
    let kernels = device.kernels(Some(&support::kernels_dir())).expect("built");
    let layer = Layer::new(&kernels, ScaleLayout::Linear).expect("planned");
    let gpu = device.gpu("graphs").expect("a GPU");
    let graph = gpu.capture(|| layer.launch()).expect("recorded");
    assert_eq!(graph.nodes(), 3);
    for _ in 0..3 {
        layer.out.fill(0).expect("filled");
        // SAFETY: everything that was recorded is alive until the end of this test.
        unsafe { graph.replay() }.expect("replayed");
        layer.check();
    }
}
