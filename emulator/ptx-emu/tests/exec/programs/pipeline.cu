// A ring of two stages that cp.async fills, in more shared memory than a kernel has by default.
#include "check.h"
#include <cuda_pipeline.h>
#include <vector>

const int THREADS = 128, TILES = 9, STAGE = 4096;

__global__ void twice(const int4* in, int4* out) {
    extern __shared__ int4 ring[];
    auto fetch = [&](int tile) {
        if (tile < TILES) {
            int4* to = ring + tile % 2 * STAGE + threadIdx.x;
            __pipeline_memcpy_async(to, in + tile * THREADS + threadIdx.x, sizeof(int4));
        }
        __pipeline_commit();
    };
    fetch(0);
    for (int tile = 0; tile < TILES; tile++) {
        fetch(tile + 1);
        __pipeline_wait_prior(1);
        int4 v = ring[tile % 2 * STAGE + threadIdx.x];
        out[tile * THREADS + threadIdx.x] = make_int4(2 * v.x, 2 * v.y, 2 * v.z, 2 * v.w);
    }
}

int main() {
    const int n = TILES * THREADS * 4;
    std::vector<int> in(n), result(n);
    for (int i = 0; i < n; i++) in[i] = i;
    int4 *data, *out;
    CHECK(cudaMalloc(&data, n * sizeof(int)));
    CHECK(cudaMalloc(&out, n * sizeof(int)));
    CHECK(cudaMemcpy(data, in.data(), n * sizeof(int), cudaMemcpyHostToDevice));
    const int shared = 2 * STAGE * sizeof(int4);
    twice<<<1, THREADS, shared>>>(data, out);
    require(cudaGetLastError() == cudaErrorInvalidValue, "a launch without the attribute");
    CHECK(cudaFuncSetAttribute(twice, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    twice<<<1, THREADS, shared>>>(data, out);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(result.data(), out, n * sizeof(int), cudaMemcpyDeviceToHost));
    for (int i = 0; i < n; i++) require(result[i] == 2 * i, "doubled");
    std::puts("pipeline: right");
}
