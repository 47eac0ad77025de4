// A sum in shared memory, whose barrier can be left out: nvcc -DBROKEN.
#include "check.h"
#include <vector>

__global__ void sum(const int* in, int* out, int n) {
    extern __shared__ int partial[];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    partial[threadIdx.x] = i < n ? in[i] : 0;
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
#ifndef BROKEN
        __syncthreads();
#endif
        if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    }
    if (threadIdx.x == 0) atomicAdd(out, partial[0]);
}

int main() {
    const int n = 3000, threads = 256;
    std::vector<int> in(n);
    int expected = 0;
    for (int i = 0; i < n; i++) expected += in[i] = i % 17;
    int *data, *out, result;
    CHECK(cudaMalloc(&data, n * sizeof(int)));
    CHECK(cudaMalloc(&out, sizeof(int)));
    CHECK(cudaMemset(out, 0, sizeof(int)));
    CHECK(cudaMemcpy(data, in.data(), n * sizeof(int), cudaMemcpyHostToDevice));
    sum<<<(n + threads - 1) / threads, threads, threads * sizeof(int)>>>(data, out, n);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(&result, out, sizeof(int), cudaMemcpyDeviceToHost));
    require(result == expected, "sum");
    std::puts("reduction: right");
}
