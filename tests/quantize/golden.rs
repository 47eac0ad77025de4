//! Golden files through the library, on every device there is: the emulated ones always, a GPU
//! where there is one.

use fp4_formats::{FloatType, ScaleLayout};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::Kernels;
use nvfp4::quantize::QuantizeOptions;
use nvfp4::quantize::device::{Input, Quantizer};
use nvfp4_tests::devices;
use nvfp4_tests::golden::{self, COLUMNS, Golden};

/// Quantises the input on each device and compares with what is recorded.
fn check(devices: &[Kernels], golden: &Golden) {
    let Golden { name, recipe, scale, input, scales, codes, nan } = golden;
    let options = QuantizeOptions::new(*recipe).scale(*scale).layout(ScaleLayout::Linear);
    for kernels in devices {
        let device = kernels.device().choice();
        let rows = input.len() / (COLUMNS * size_of::<f32>());
        let kind = Input::plain(FloatType::F32);
        let quantizer = Quantizer::new(kernels, rows, COLUMNS, kind, &options).expect("planned");
        let buffer = DeviceBuffer::upload(kernels.device(), "input", input).expect("uploaded");
        quantizer.launch(&buffer, None).expect("launched");
        // Some inputs are not finite: the result is compared, the error is expected.
        let got = quantizer.scales().read().expect("scales");
        let different = (0..scales.len()).find(|&i| got[i] != scales[i]);
        assert_eq!((different, got.len()), (None, scales.len()), "{device} {name}: scales");
        let got = quantizer.codes().read().expect("codes");
        assert_eq!(got.len(), codes.len(), "{device} {name}");
        let block = recipe.format().block() as usize / 2;
        let different = (0..codes.len()).find(|&i| scales[i / block] != *nan && got[i] != codes[i]);
        if let Some(at) = different {
            let (row, byte) = (at / (COLUMNS / 2), at % (COLUMNS / 2));
            panic!("{device} {name}: row {row} byte {byte}: {:#x}, not {:#x}", got[at], codes[at]);
        }
    }
}

#[test]
fn golden_nvfp4_on_every_device() {
    let devices = devices();
    golden::nvfp4().iter().for_each(|golden| check(&devices, golden));
}

#[test]
fn golden_adaptive_on_every_device() {
    let devices = devices();
    golden::adaptive().iter().for_each(|golden| check(&devices, golden));
}

#[test]
fn golden_mxfp4_on_every_device() {
    let devices = devices();
    golden::mxfp4().iter().for_each(|golden| check(&devices, golden));
}
