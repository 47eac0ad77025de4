// A launch that may begin before the one before it has ended. Without its wait it would read what
// is not written: nvcc -DBROKEN.
#include "check.h"

const int N = 512;

__global__ void first(int* data) {
    asm volatile("griddepcontrol.launch_dependents;");
    data[blockIdx.x * blockDim.x + threadIdx.x] = threadIdx.x;
}

__global__ void second(const int* data, int* out) {
#ifndef BROKEN
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = data[i] + 1;
}

int main() {
    int *data, *out, result[N];
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaMalloc(&data, sizeof result));
    CHECK(cudaMalloc(&out, sizeof result));
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = 4;
    config.blockDim = N / 4;
    config.stream = stream;
    CHECK(cudaLaunchKernelEx(&config, first, data));
    config.attrs = &attribute;
    config.numAttrs = 1;
    CHECK(cudaLaunchKernelEx(&config, second, (const int*)data, out));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaMemcpy(result, out, sizeof result, cudaMemcpyDeviceToHost));
    for (int i = 0; i < N; i++) require(result[i] == i % (N / 4) + 1, "sum");
    std::puts("dependent: right");
}
