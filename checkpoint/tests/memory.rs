//! Streaming: the memory that quantising, converting and verifying take does not grow with the
//! checkpoint, only with its largest tensor. Counted by the allocator, in its own program.

mod support;

use std::alloc::{GlobalAlloc, Layout as Memory, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use nvfp4::quantize::Format;
use nvfp4_checkpoint::{
    self as checkpoint, Layout, Model, SaveOptions, convert_model, quantize_model, verify,
};
use support::*;

/// The system's allocator with a count of bytes in use, and their peak.
struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Memory) -> *mut u8 {
        let now = IN_USE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(now, Ordering::Relaxed);
        // SAFETY: callers of `alloc` pass a layout that is not empty, as `System` requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Memory) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: `pointer` was allocated by `System` above, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most bytes in use during `f` above those before it.
fn peak(f: impl FnOnce()) -> usize {
    let before = IN_USE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    f();
    PEAK.load(Ordering::Relaxed) - before
}

#[test]
fn memory_is_bounded_by_the_largest_tensor() {
    const ROWS: usize = 512;
    const COLS: usize = 1024;
    const TENSOR: usize = ROWS * COLS * 4;
    let folder = Folder::new("memory");
    let mut peaks = Vec::new();
    for count in [2, 12] {
        let tensors: Vec<(String, checkpoint::NewTensor)> = (0..count)
            .map(|at| (format!("layers.{at}.weight"), random(&[ROWS, COLS], at)))
            .collect();
        let tensors: Vec<(&str, checkpoint::NewTensor)> =
            tensors.iter().map(|(name, tensor)| (name.as_str(), tensor.clone())).collect();
        let source = folder.file(&format!("{count}.safetensors"));
        checkpoint::write(&source, &tensors, &[]).expect("written");
        drop(tensors);

        let (quantised, converted) =
            (folder.file(&format!("{count}")), folder.file(&format!("{count}c")));
        let quantise = peak(|| {
            let model = Model::open(&source).expect("a model");
            let options = options(Format::Nvfp4, Layout::ModelOpt);
            quantize_model(&model, &options, &quantised, None, &mut ()).expect("quantised");
        });
        let convert = peak(|| {
            let model = Model::open(&quantised).expect("a checkpoint");
            let options = SaveOptions::new(Layout::TorchAo);
            convert_model(&model, None, &options, &converted, &mut ()).expect("converted");
        });
        let check = peak(|| {
            let model = Model::open(&converted).expect("a checkpoint");
            let original = Model::open(&source).expect("a model");
            let report = verify(&model, Some(&original), &mut ()).expect("verifiable");
            assert!(report.verified, "{report}");
        });
        peaks.push([quantise, convert, check]);
    }
    let [few, many] = peaks.as_slice() else { panic!("two sizes") };
    for (at, what) in ["quantise", "convert", "verify"].iter().enumerate() {
        // Twelve tensors are 24 MiB; names and headers are a few kilobytes.
        let growth = many[at].saturating_sub(few[at]);
        assert!(growth < TENSOR / 8, "{what}: {} bytes for 2, {} for 12", few[at], many[at]);
        assert!(many[at] < 3 * TENSOR, "{what}: {} bytes, the largest tensor {TENSOR}", many[at]);
    }
}
