#!/usr/bin/env bash
# cudarc 0.19.10: `PinnedHostSlice::as_slice`, which "waits for any scheduled work to complete", waits for nothing after a copy
# to it on a context with one stream, or with `disable_event_tracking`, as candle has it: it shows what was there before.
#
# The copy to page-locked memory returns at once, and the event that `as_slice` waits for is recorded only while cudarc orders several
# streams itself. Copies to ordinary slices and vectors are complete when they return, so that code which was changed to page-locked
# memory reads old numbers, without an error, whenever the GPU is not yet done.
# Seen with a driver of a few lines in place of libcuda, which carries a copy out when its event or stream is waited for, as CUDA
# allows: `0 0 0 0` in place of `7 7 7 7` with one stream and without tracking; `7 7 7 7` with two streams and tracking, and with
# `synchronize` of the stream each time. On an H200, with the stream of candle-core 0.11.1, tokens that were copied so were read as zeros.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

cat > driver.c <<'C'
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
/* One copy that is under way, and whether an event is behind it. */
static struct { void *to; const void *from; size_t bytes; int pending, recorded; } copy;
static void finish(void) { if (copy.pending) memcpy(copy.to, copy.from, copy.bytes); copy.pending = copy.recorded = 0; }
int cuInit(unsigned f) { return 0; }
int cuDriverGetVersion(int *v) { *v = 13000; return 0; }
int cuDeviceGet(int *d, int n) { *d = n; return 0; }
int cuDeviceGetCount(int *n) { *n = 1; return 0; }
int cuDeviceGetAttribute(int *v, int a, int d) { *v = 1; return 0; }
int cuDevicePrimaryCtxRetain(void **c, int d) { *c = (void *)1; return 0; }
int cuDevicePrimaryCtxRelease_v2(int d) { return 0; }
int cuCtxSetCurrent(void *c) { return 0; }
int cuCtxGetCurrent(void **c) { *c = (void *)1; return 0; }
int cuCtxSynchronize(void) { finish(); return 0; }
int cuStreamCreate(void **s, unsigned f) { static uintptr_t n = 16; *s = (void *)n++; return 0; }
int cuStreamDestroy_v2(void *s) { return 0; }
int cuStreamSynchronize(void *s) { finish(); return 0; }
int cuStreamWaitEvent(void *s, void *e, unsigned f) { return 0; }
int cuEventCreate(void **e, unsigned f) { static uintptr_t n = 64; *e = (void *)n++; return 0; }
int cuEventDestroy_v2(void *e) { return 0; }
int cuEventRecord(void *e, void *s) { copy.recorded = copy.pending; return 0; }
int cuEventSynchronize(void *e) { if (copy.recorded) finish(); return 0; }
int cuMemHostAlloc(void **p, size_t n, unsigned f) { *p = calloc(1, n); return 0; }
int cuMemFreeHost(void *p) { return 0; }
int cuMemAlloc_v2(uint64_t *p, size_t n) { *p = (uint64_t)calloc(1, n); return 0; }
int cuMemAllocAsync(uint64_t *p, size_t n, void *s) { return cuMemAlloc_v2(p, n); }
int cuMemFree_v2(uint64_t p) { return 0; }
int cuMemFreeAsync(uint64_t p, void *s) { return 0; }
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, void *s) { memcpy((void *)to, from, n); return 0; }
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, void *s) {
    finish();
    copy.to = to, copy.from = (const void *)from, copy.bytes = n, copy.pending = 1;
    return 0;
}
C
gcc -w -shared -fPIC -o libcuda.so driver.c
ln -s libcuda.so libcuda.so.1
mkdir src
cat > Cargo.toml <<'TOML'
[package]
name = "pinned"
version = "0.0.0"
edition = "2021"
[dependencies]
cudarc = { version = "=0.19.10", default-features = false, features = ["std", "driver", "dynamic-loading", "cuda-13000"] }
TOML
cat > src/main.rs <<'RUST'
use cudarc::driver::{CudaContext, DriverError};

/// The numbers in page-locked memory after sevens were copied to it.
fn copied(streams: usize, tracked: bool, waits: bool) -> Result<Vec<u32>, DriverError> {
    let context = CudaContext::new(0)?;
    if !tracked {
        // SAFETY: one stream is used, so that no other has to be waited for.
        unsafe { context.disable_event_tracking() };
    }
    let stream = if streams == 1 { context.default_stream() } else { context.new_stream()? };
    let sevens = stream.clone_htod(&[7u32; 4])?;
    // SAFETY: all elements are set in the next line.
    let mut memory = unsafe { context.alloc_pinned::<u32>(4) }?;
    memory.as_mut_slice()?.fill(0);
    stream.memcpy_dtoh(&sevens, &mut memory)?;
    if waits {
        stream.synchronize()?;
    }
    Ok(memory.as_slice()?.to_vec())
}

fn main() -> Result<(), DriverError> {
    for (what, streams, tracked) in [
        ("one stream", 1, true),
        ("two streams", 2, true),
        ("two streams, not tracked", 2, false),
    ] {
        for (how, waits) in [("as_slice", false), ("synchronize, as_slice", true)] {
            println!("{what}: {how}: {:?}", copied(streams, tracked, waits)?);
        }
    }
    Ok(())
}
RUST
LD_LIBRARY_PATH=$work cargo run --quiet --release > seen 2> log || { cat log >&2; exit 1; }
cat seen
diff seen - <<'SEEN'
one stream: as_slice: [0, 0, 0, 0]
one stream: synchronize, as_slice: [7, 7, 7, 7]
two streams: as_slice: [7, 7, 7, 7]
two streams: synchronize, as_slice: [7, 7, 7, 7]
two streams, not tracked: as_slice: [0, 0, 0, 0]
two streams, not tracked: synchronize, as_slice: [7, 7, 7, 7]
SEEN
