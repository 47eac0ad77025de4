//! Refusals: of sizes that no kernel takes, of operands that do not fit, and of places that the cache does not have.

use fp4_formats::{Arch, HalfType};
use nvfp4::attention::{Attention, AttentionOptions, AttentionShape};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::supports::Description;
use nvfp4::{floats, supports};
use nvfp4_lab::rng::SplitMix64;
use nvfp4_tests::emulated;
use ptx_emu::Schedule;

use super::{Case, case, machines, operands};

const SHAPE: AttentionShape =
    AttentionShape { texts: 2, heads: 8, kv_heads: 2, dim: 64, capacity: 20 };

#[test]
fn sizes_and_options_are_checked() {
    let usual = AttentionOptions::new(0.125);
    let kernels = emulated("emu:h200", Schedule::Eager);
    let refused = |shape: AttentionShape, options: AttentionOptions, message: &str| {
        let error = Attention::new(&kernels, shape, HalfType::F16, 1, &options).expect_err(message);
        assert!(error.to_string().contains(message), "{message}: {error}");
        let description =
            Description::Attention { shape, element: HalfType::F16, options: &options };
        let reason = supports(Arch::Sm90a, &description).expect_err(message);
        assert_eq!(reason.to_string(), format!("attention: {error}"));
    };
    refused(AttentionShape { dim: 96, ..SHAPE }, usual, "elements of a head");
    refused(AttentionShape { heads: 7, ..SHAPE }, usual, "a multiple of 2");
    refused(AttentionShape { heads: 34, ..SHAPE }, usual, "at most 16 times");
    refused(AttentionShape { heads: 0, ..SHAPE }, usual, "heads");
    refused(AttentionShape { kv_heads: 0, ..SHAPE }, usual, "heads");
    refused(AttentionShape { texts: 0, ..SHAPE }, usual, "from 1 to 65535");
    refused(AttentionShape { texts: usize::MAX, ..SHAPE }, usual, "from 1 to 65535");
    refused(AttentionShape { capacity: 0, ..SHAPE }, usual, "places of the cache");
    refused(AttentionShape { capacity: usize::MAX, ..SHAPE }, usual, "places of the cache");
    refused(SHAPE, usual.window(Some(0)), "places of the window");
    refused(SHAPE, usual.norm(Some(0.0)), "epsilon of the norm");
    refused(SHAPE, AttentionOptions::new(f32::NAN), "scale of the scores");
    let description =
        Description::Attention { shape: SHAPE, element: HalfType::F16, options: &usual };
    assert!(Arch::ALL.into_iter().all(|arch| supports(arch, &description).is_ok()));
}

#[test]
fn operands_are_checked() {
    let kernels = emulated("emu:h200", Schedule::Eager);
    let device = kernels.device();
    let Case { shape, half, options, .. } = case([4, 2, 64], HalfType::F16, 5);
    let given =
        operands(&case([4, 2, 64], HalfType::F16, 5), |_| 0.5).upload(device).expect("room");
    let attention = Attention::new(&kernels, shape, half, 1, &options).expect("a plan");
    let result = DeviceBuffer::poisoned(device, "result", 4 * 64 * 2).expect("room");
    let short = DeviceBuffer::zeroed(device, "short", 16).expect("room");
    let error = attention.launch(&given.operands(), &short).expect_err("a short result");
    assert!(error.to_string().contains("bytes of the result"), "{error}");
    let norms = given.operands().norms(Some([&short, &short]));
    let error = attention.launch(&norms, &result).expect_err("norms that were not asked for");
    assert!(error.to_string().contains("weights of the norms"), "{error}");
    let sinks = given.operands().sinks(Some(&short));
    let error = attention.launch(&sinks, &result).expect_err("another number of sinks");
    assert!(error.to_string().contains("bytes of the sinks"), "{error}");
    let begins = given.operands().begins(Some(&short));
    let error = attention.launch(&begins, &result).expect_err("another number of texts");
    assert!(error.to_string().contains("places at which texts begin"), "{error}");
    let other = emulated("emu:h200", Schedule::Eager);
    let elsewhere = DeviceBuffer::poisoned(other.device(), "result", 4 * 64 * 2).expect("room");
    attention.launch(&given.operands(), &elsewhere).expect_err("a result on another device");
}

/// A place behind the cache gives NaN, and writes nothing to it.
#[test]
fn places_that_the_cache_lacks_are_nan() {
    let mut random = SplitMix64::new(1);
    let case = case([4, 2, 64], HalfType::Bf16, 20);
    let operands = operands(&case, |_| random.normal());
    for (place, kernels) in [23u32, 24, u32::MAX].into_iter().zip(machines(0)) {
        let device = kernels.device();
        let Case { shape, half, options, .. } = case.clone();
        let attention = Attention::new(&kernels, shape, half, 1, &options).expect("a plan");
        let given = operands.upload(device).expect("uploaded");
        given.place.write(&place.to_le_bytes()).expect("written");
        let before = given.cache.each_ref().map(|all| all.read().expect("readable"));
        let result = DeviceBuffer::poisoned(device, "result", 4 * 64 * 2).expect("room");
        attention.launch(&given.operands(), &result).expect("a launch");
        let result = floats::decode(half.float(), &result.read().expect("readable"));
        assert!(result.iter().all(|x| x.is_nan()), "{place}: {result:?}");
        let after = given.cache.each_ref().map(|all| all.read().expect("readable"));
        assert_eq!(before, after, "{place}");
    }
}
