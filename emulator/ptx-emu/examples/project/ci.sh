#!/bin/sh
# Builds every test of the project and runs it on the emulator under many schedules.
# NVCC, PTX_EMU: the programs; NVCC_FLAGS: more options of nvcc; SEEDS: random schedules besides eager and lazy.
set -eu
cd "$(dirname "$0")"
build=${BUILD:-build}
mkdir -p "$build"
failed=0
for source in tests/*.cu; do
    name=$(basename "$source" .cu)
    # PTX for the kernels, the runtime as a shared library, and lines of the source for the findings.
    "${NVCC:-nvcc}" -cudart shared -gencode arch=compute_80,code=compute_80 -lineinfo \
        ${NVCC_FLAGS:-} -I src "$source" -o "$build/$name"
    "${PTX_EMU:-ptx-emu}" exec --explore "${SEEDS:-8}" --sarif "$build/$name.sarif" -- "$build/$name" || failed=1
done
exit $failed
