// The sum of each row of a matrix: one CTA for a row.
#pragma once
#include <cuda_runtime.h>

constexpr int THREADS = 128;

__global__ void row_sums(const float* matrix, float* sums, int columns) {
    __shared__ float part[THREADS];
    const int thread = threadIdx.x;
    float sum = 0;
    for (int column = thread; column < columns; column += THREADS) {
        sum += matrix[blockIdx.x * columns + column];
    }
    part[thread] = sum;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (thread < half) part[thread] += part[thread + half];
#ifndef BROKEN
        __syncthreads();
#endif
    }
    if (thread == 0) sums[blockIdx.x] = part[0];
}
