// A product of 64 x 16 and 16 x 8 by wgmma (sm_90a).
#include "check.h"
#include <cstdint>
#include <cuda_fp16.h>
#include <vector>

const int M = 64, N = 8, K = 16;

// Core matrices of 8 rows of 16 bytes, one behind the other along the rows first.
__device__ int place(int row, int k, int rows) {
    return k / 8 * rows * 8 + row / 8 * 64 + row % 8 * 8 + k % 8;
}

__device__ uint64_t descriptor(const void* matrix, int rows) {
    uint64_t start = __cvta_generic_to_shared(matrix);
    uint64_t along_k = rows * 16, along_rows = 128;
    return start >> 4 | along_k >> 4 << 16 | along_rows >> 4 << 32;
}

__global__ void product(const half* a, const half* b, float* d) {
    __shared__ alignas(128) half sa[M * K], sb[N * K];
    for (int i = threadIdx.x; i < M * K; i += 128) sa[place(i / K, i % K, M)] = a[i];
    for (int i = threadIdx.x; i < N * K; i += 128) sb[place(i / K, i % K, N)] = b[i];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    float r[4];
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 0, 1, 1, 0, 0;"
        : "=f"(r[0]), "=f"(r[1]), "=f"(r[2]), "=f"(r[3])
        : "l"(descriptor(sa, M)), "l"(descriptor(sb, N)));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    asm volatile("" : "+f"(r[0]), "+f"(r[1]), "+f"(r[2]), "+f"(r[3])::"memory");
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int i = 0; i < 4; i++) {
        int row = warp * 16 + lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        d[row * N + column] = r[i];
    }
}

int main() {
    std::vector<half> a(M * K), b(N * K);
    std::vector<float> result(M * N);
    for (int i = 0; i < M * K; i++) a[i] = __float2half(i % 7 - 3);
    for (int i = 0; i < N * K; i++) b[i] = __float2half(i % 5 - 2);
    half *da, *db;
    float* d;
    CHECK(cudaMalloc(&da, a.size() * sizeof(half)));
    CHECK(cudaMalloc(&db, b.size() * sizeof(half)));
    CHECK(cudaMalloc(&d, result.size() * sizeof(float)));
    CHECK(cudaMemcpy(da, a.data(), a.size() * sizeof(half), cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(db, b.data(), b.size() * sizeof(half), cudaMemcpyHostToDevice));
    product<<<1, 128>>>(da, db, d);
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(result.data(), d, result.size() * sizeof(float), cudaMemcpyDeviceToHost));
    for (int row = 0; row < M; row++)
        for (int column = 0; column < N; column++) {
            float sum = 0;
            for (int k = 0; k < K; k++)
                sum += __half2float(a[row * K + k]) * __half2float(b[column * K + k]);
            require(result[row * N + column] == sum, "product");
        }
    std::puts("wgmma: right");
}
