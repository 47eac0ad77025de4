//! Warp-specialised matrix products with tensor-map copies, as real kernels are built:
//! right under every schedule and on several host threads; without one of their
//! synchronisations, found out.

#[path = "../../../benches/emulator/gemm/gemm.rs"]
mod gemm;

use gemm::{Gemm, Kernel, TCGEN05, WGMMA};
use ptx_emu_core::{Gpu, Schedule};

#[test]
fn every_schedule_and_number_of_threads_gives_the_same() {
    for kernel in [TCGEN05, WGMMA] {
        for schedule in
            [Schedule::Eager, Schedule::Lazy].into_iter().chain((0..8).map(Schedule::Random))
        {
            for threads in [1, 2] {
                let mut gemm = Gemm::new(kernel, 256, 2048);
                if let Err(error) = gemm.run(schedule, threads) {
                    panic!("{}, {schedule}: {error}", kernel.name);
                }
                gemm.check();
            }
        }
    }
}

/// Returns the message of the first schedule that notices a kernel with `from` replaced by `to`.
fn without(kernel: Kernel, from: &str, to: &str) -> String {
    assert!(kernel.text.contains(from), "{from}");
    let text = kernel.text.replacen(from, to, 1);
    let gpu = if kernel.name.starts_with("wgmma") { Gpu::h200() } else { Gpu::b200() };
    [Schedule::Lazy, Schedule::Eager]
        .into_iter()
        .chain((0..16).map(Schedule::Random))
        .find_map(|schedule| {
            let mut gemm = Gemm::with_text(kernel, &text, &gpu, 128, 2048);
            gemm.run(schedule, 1).err().map(|error| error.to_string())
        })
        .unwrap_or_else(|| panic!("{}: nobody misses {from}", kernel.name))
}

#[test]
fn a_synchronisation_that_is_missing_is_found() {
    let fence = "\n    @!%p3 bra STORE;\n    tcgen05.fence::after_thread_sync;";
    let last = "bra MULTIPLY_NEXT;\n    wgmma.wait_group.sync.aligned ";
    let (zero, one) = (format!("{last}0;"), format!("{last}1;"));
    let cases = [
        (TCGEN05, "@!%p3 bra LOAD_WAIT;", "", "over-arrival"),
        (TCGEN05, "@!%p3 bra MULTIPLY_WAIT;", "", "a destination, in flight, of cp.async.bulk"),
        (TCGEN05, "@!%p3 bra STORE;", "", "tensor memory in flight"),
        (TCGEN05, "tcgen05.wait::ld.sync.aligned;", "", "tcgen05.wait::ld must come first"),
        (TCGEN05, fence, "\n    @!%p3 bra STORE;", "missing tcgen05.fence::after_thread_sync"),
        (TCGEN05, "_, [%r23], 36864;", "_, [%r23], 34816;", "deadlock"),
        (WGMMA, "@!%p3 bra LOAD_WAIT;", "", "over-arrival"),
        (
            WGMMA,
            "@!%p3 bra MULTIPLY_WAIT;",
            "",
            "a destination, in flight, of cp.async.bulk.tensor",
        ),
        (WGMMA, "wgmma.wait_group.sync.aligned 1;", "", "not read yet, of wgmma.mma_async"),
        (WGMMA, "wgmma.wait_group.sync.aligned 0;", "", "registers in flight"),
        (WGMMA, &zero, &one, "registers in flight"),
    ];
    for (kernel, from, to, part) in cases {
        let found = without(kernel, from, to);
        assert!(found.contains(part), "{}: {from}: `{part}` is not in: {found}", kernel.name);
    }
}
