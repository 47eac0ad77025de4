// Products by nvcuda::wmma: one of halves from tiles in shared memory, scaled in its fragments, and a
// tile of each other type and shape.
#include "check.h"
#include <cmath>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>
#include <vector>

using namespace nvcuda;

const int M = 64, N = 32, K = 48;
// 32 bytes more than a row, so that rows are in other banks.
const int LD = 16 + 16;

// C = 0.5 * A * B + C, a warp for each tile of 16 by 16; A has rows, B columns.
__global__ void product(const half* a, const half* b, float* c) {
    __shared__ __align__(32) half left[M * LD];
    __shared__ __align__(32) half right[N * LD];
    int warp = threadIdx.x / 32, row = warp / (N / 16) * 16, column = warp % (N / 16) * 16;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum, old;
    wmma::fill_fragment(sum, 0.0f);
    for (int k = 0; k < K; k += 16) {
        for (int i = threadIdx.x; i < M * 16; i += blockDim.x) {
            left[i / 16 * LD + i % 16] = a[i / 16 * K + k + i % 16];
        }
        for (int i = threadIdx.x; i < N * 16; i += blockDim.x) {
            right[i / 16 * LD + i % 16] = b[i / 16 * K + k + i % 16];
        }
        __syncthreads();
        wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> x;
        wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> y;
        wmma::load_matrix_sync(x, left + row * LD, LD);
        wmma::load_matrix_sync(y, right + column * LD, LD);
        wmma::mma_sync(sum, x, y, sum);
        __syncthreads();
    }
    float* tile = c + row * N + column;
    wmma::load_matrix_sync(old, tile, N, wmma::mem_row_major);
    for (int i = 0; i < sum.num_elements; i++) sum.x[i] = 0.5f * sum.x[i] + old.x[i];
    wmma::store_matrix_sync(tile, sum, N, wmma::mem_row_major);
}

// One tile: D = A * B, all of them one after another in memory.
template <int m, int n, int k, class Type, class In, class Out, class LayoutA, class LayoutB>
__global__ void tile(const In* a, const In* b, Out* d) {
    wmma::fragment<wmma::matrix_a, m, n, k, Type, LayoutA> x;
    wmma::fragment<wmma::matrix_b, m, n, k, Type, LayoutB> y;
    wmma::fragment<wmma::accumulator, m, n, k, Out> sum;
    wmma::fill_fragment(sum, Out(1));
    wmma::load_matrix_sync(x, a, std::is_same<LayoutA, wmma::row_major>::value ? k : m);
    wmma::load_matrix_sync(y, b, std::is_same<LayoutB, wmma::row_major>::value ? n : k);
    wmma::mma_sync(sum, x, y, sum);
    wmma::store_matrix_sync(d, sum, m, wmma::mem_col_major);
}

template <class T> T* on_device(const std::vector<T>& host) {
    T* device;
    CHECK(cudaMalloc(&device, host.size() * sizeof(T)));
    CHECK(cudaMemcpy(device, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
    return device;
}

template <class T> std::vector<T> on_host(const T* device, int count) {
    std::vector<T> host(count);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(host.data(), device, count * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
}

int number(int i, int seed) { return (i * 7 + i / 5 * seed) % 9 - 4; }

template <int m, int n, int k, class Type, class In, class Out, class LayoutA, class LayoutB>
void one(const char* name) {
    bool rows_a = std::is_same<LayoutA, wmma::row_major>::value;
    bool rows_b = std::is_same<LayoutB, wmma::row_major>::value;
    std::vector<In> a(m * k), b(k * n);
    for (int i = 0; i < m * k; i++) a[i] = In(number(i, 3));
    for (int i = 0; i < k * n; i++) b[i] = In(number(i, 11));
    Out* d = on_device(std::vector<Out>(m * n));
    tile<m, n, k, Type, In, Out, LayoutA, LayoutB><<<1, 32>>>(on_device(a), on_device(b), d);
    std::vector<Out> result = on_host(d, m * n);
    for (int row = 0; row < m; row++) {
        for (int column = 0; column < n; column++) {
            double expected = 1;
            for (int at = 0; at < k; at++) {
                double x = double(float(a[rows_a ? row * k + at : at * m + row]));
                double y = double(float(b[rows_b ? at * n + column : column * k + at]));
                expected += x * y;
            }
            require(double(float(result[column * m + row])) == expected, name);
        }
    }
}

int main() {
    std::vector<half> a(M * K), b(N * K);
    std::vector<float> c(M * N);
    for (int i = 0; i < M * K; i++) a[i] = half(float(number(i, 3)));
    for (int i = 0; i < N * K; i++) b[i] = half(float(number(i, 5)));
    for (int i = 0; i < M * N; i++) c[i] = float(number(i, 1));
    float* device = on_device(c);
    product<<<1, M / 16 * (N / 16) * 32>>>(on_device(a), on_device(b), device);
    std::vector<float> result = on_host(device, M * N);
    for (int row = 0; row < M; row++) {
        for (int column = 0; column < N; column++) {
            float sum = 0;
            for (int k = 0; k < K; k++) sum += float(a[row * K + k]) * float(b[column * K + k]);
            require(result[row * N + column] == 0.5f * sum + c[row * N + column], "product");
        }
    }
    using row = wmma::row_major;
    using col = wmma::col_major;
    one<32, 8, 16, half, half, half, col, row>("f16");
    one<8, 32, 16, half, half, float, row, row>("f16 into f32");
    one<16, 16, 16, __nv_bfloat16, __nv_bfloat16, float, col, col>("bf16");
    one<8, 32, 16, __nv_bfloat16, __nv_bfloat16, float, row, col>("bf16, 8 rows");
    one<32, 8, 16, signed char, signed char, int, row, col>("s8");
    one<16, 16, 16, unsigned char, unsigned char, int, col, row>("u8");
    one<16, 16, 8, wmma::precision::tf32, float, float, row, col>("tf32");
    one<8, 8, 4, double, double, double, col, row>("f64");
    std::puts("wmma: right");
}
