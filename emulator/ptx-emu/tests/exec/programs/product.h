// What the programs with one product of tensor cores share: f16 operands in shared memory, and a check.
#pragma once
#include "check.h"
#include <cstdint>
#include <cuda_fp16.h>
#include <vector>

// Core matrices of 8 rows of 16 bytes, one behind the other along the rows first.
__device__ inline int place(int row, int k, int rows) {
    return k / 8 * rows * 8 + row / 8 * 64 + row % 8 * 8 + k % 8;
}

// The fields that matrix descriptors of wgmma and tcgen05 have in common.
__device__ inline uint64_t descriptor(const void* matrix, int rows) {
    uint64_t start = __cvta_generic_to_shared(matrix);
    uint64_t along_k = rows * 16, along_rows = 128;
    return start >> 4 | along_k >> 4 << 16 | along_rows >> 4 << 32;
}

// Runs `kernel` on one CTA of 128 threads and compares with the product of a [m, k] and b [n, k].
inline void check_product(void (*kernel)(const half*, const half*, float*), int m, int n, int k) {
    std::vector<half> a(m * k), b(n * k);
    std::vector<float> result(m * n);
    for (int i = 0; i < m * k; i++) a[i] = __float2half(i % 7 - 3);
    for (int i = 0; i < n * k; i++) b[i] = __float2half(i % 5 - 2);
    half *da, *db;
    float* d;
    CHECK(cudaMalloc(&da, a.size() * sizeof(half)));
    CHECK(cudaMalloc(&db, b.size() * sizeof(half)));
    CHECK(cudaMalloc(&d, result.size() * sizeof(float)));
    CHECK(cudaMemcpy(da, a.data(), a.size() * sizeof(half), cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(db, b.data(), b.size() * sizeof(half), cudaMemcpyHostToDevice));
    kernel<<<1, 128>>>(da, db, d);
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(result.data(), d, result.size() * sizeof(float), cudaMemcpyDeviceToHost));
    for (int row = 0; row < m; row++)
        for (int column = 0; column < n; column++) {
            float sum = 0;
            for (int i = 0; i < k; i++)
                sum += __half2float(a[row * k + i]) * __half2float(b[column * k + i]);
            require(result[row * n + column] == sum, "product");
        }
}
