// Ordinary code: a separable convolution, a histogram, a matrix product and a product by tensor cores.
#include <cuda_bf16.h>
#include <mma.h>

constexpr int RADIUS = 8;
__constant__ float taps[2 * RADIUS + 1] = {
    0.0078125f, 0.015625f, 0.03125f, 0.046875f, 0.0625f, 0.078125f, 0.09375f, 0.1f, 0.125f,
    0.1f, 0.09375f, 0.078125f, 0.0625f, 0.046875f, 0.03125f, 0.015625f, 0.0078125f};

constexpr int ROWS_X = 16, ROWS_Y = 4, STEPS = 8;

/// Sums over rows: a CTA has 4 rows of 128 results, with 16 more at each side in shared memory.
extern "C" __global__ void convolve_rows(float* out, const float* in, int width, int height) {
  __shared__ float tile[ROWS_Y][(STEPS + 2) * ROWS_X];
  const int x = (blockIdx.x * STEPS - 1) * ROWS_X + threadIdx.x;
  const int y = blockIdx.y * ROWS_Y + threadIdx.y;
  const float* from = in + y * width + x;
  float* to = out + y * width + x;
#pragma unroll
  for (int i = 0; i < STEPS + 2; i++) {
    const int at = x + i * ROWS_X;
    tile[threadIdx.y][threadIdx.x + i * ROWS_X] = at >= 0 && at < width ? from[i * ROWS_X] : 0;
  }
  __syncthreads();
#pragma unroll
  for (int i = 1; i <= STEPS; i++) {
    float sum = 0;
#pragma unroll
    for (int j = -RADIUS; j <= RADIUS; j++)
      sum += taps[RADIUS - j] * tile[threadIdx.y][threadIdx.x + i * ROWS_X + j];
    to[i * ROWS_X] = sum;
  }
}

constexpr int COLUMNS_X = 16, COLUMNS_Y = 8;

/// Sums over columns: a CTA has 16 columns of 64 results.
extern "C" __global__ void convolve_columns(float* out, const float* in, int width, int height) {
  __shared__ float tile[COLUMNS_X][(STEPS + 2) * COLUMNS_Y + 1];
  const int x = blockIdx.x * COLUMNS_X + threadIdx.x;
  const int y = (blockIdx.y * STEPS - 1) * COLUMNS_Y + threadIdx.y;
  const float* from = in + y * width + x;
  float* to = out + y * width + x;
#pragma unroll
  for (int i = 0; i < STEPS + 2; i++) {
    const int at = y + i * COLUMNS_Y;
    tile[threadIdx.x][threadIdx.y + i * COLUMNS_Y] =
        at >= 0 && at < height ? from[i * COLUMNS_Y * width] : 0;
  }
  __syncthreads();
#pragma unroll
  for (int i = 1; i <= STEPS; i++) {
    float sum = 0;
#pragma unroll
    for (int j = -RADIUS; j <= RADIUS; j++)
      sum += taps[RADIUS - j] * tile[threadIdx.x][threadIdx.y + i * COLUMNS_Y + j];
    to[i * COLUMNS_Y * width] = sum;
  }
}

constexpr int BINS = 256, HISTOGRAM_WARPS = 6;

/// Counts of bytes: each warp has its own in shared memory, each CTA stores their sums.
extern "C" __global__ void histogram(unsigned* partial, const unsigned* in, unsigned words) {
  __shared__ unsigned counts[HISTOGRAM_WARPS * BINS];
  unsigned* mine = counts + threadIdx.x / 32 * BINS;
  for (int i = threadIdx.x; i < HISTOGRAM_WARPS * BINS; i += HISTOGRAM_WARPS * 32) counts[i] = 0;
  __syncthreads();
  for (unsigned at = blockIdx.x * blockDim.x + threadIdx.x; at < words; at += blockDim.x * gridDim.x) {
    const unsigned word = in[at];
    atomicAdd(mine + (word & 0xff), 1);
    atomicAdd(mine + (word >> 8 & 0xff), 1);
    atomicAdd(mine + (word >> 16 & 0xff), 1);
    atomicAdd(mine + (word >> 24), 1);
  }
  __syncthreads();
  for (int bin = threadIdx.x; bin < BINS; bin += HISTOGRAM_WARPS * 32) {
    unsigned sum = 0;
    for (int warp = 0; warp < HISTOGRAM_WARPS; warp++) sum += counts[bin + warp * BINS];
    partial[blockIdx.x * BINS + bin] = sum;
  }
}

/// Sums of the CTAs' counts: a CTA for each bin, warps by shuffles.
extern "C" __global__ void merge_histograms(unsigned* out, const unsigned* partial, unsigned count) {
  __shared__ unsigned warps[8];
  unsigned sum = 0;
  for (unsigned i = threadIdx.x; i < count; i += 256) sum += partial[blockIdx.x + i * BINS];
  for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(~0u, sum, step);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 1; i < 8; i++) sum += warps[i];
    out[blockIdx.x] = sum;
  }
}

constexpr int TILE = 32;

/// A product of matrices, 32 x 32 results a CTA.
extern "C" __global__ void multiply(float* c, const float* a, const float* b, int k, int n) {
  __shared__ float as[TILE][TILE], bs[TILE][TILE];
  const int tx = threadIdx.x, ty = threadIdx.y;
  const int row = blockIdx.y * TILE + ty, column = blockIdx.x * TILE + tx;
  float sum = 0;
  for (int at = 0; at < k; at += TILE) {
    as[ty][tx] = a[row * k + at + tx];
    bs[ty][tx] = b[(at + ty) * n + column];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TILE; i++) sum += as[ty][i] * bs[i][tx];
    __syncthreads();
  }
  c[row * n + column] = sum;
}

constexpr int MMA_ROWS = 128, MMA_K = 64, SKEW = 16;

/// A product by tensor cores, bf16 with sums in f32: 128 x 128 results a CTA of 8 warps, 64 x 32 results a warp. B is
/// given by columns.
extern "C" __global__ void multiply_bf16(float* d, const __nv_bfloat16* a, const __nv_bfloat16* b, int k, int n) {
  using namespace nvcuda;
  extern __shared__ __nv_bfloat16 tiles[];
  constexpr int STRIDE = MMA_K + SKEW;
  const int warp = threadIdx.x / 32;
  const int wy = warp / 4 * 64, wx = warp % 4 * 32;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums[4][2];
  for (int i = 0; i < 4; i++)
    for (int j = 0; j < 2; j++) wmma::fill_fragment(sums[i][j], 0.0f);
  for (int at = 0; at < k; at += MMA_K) {
    for (int i = threadIdx.x; i < 2 * MMA_ROWS * MMA_K / 8; i += 256) {
      const int row = i / (MMA_K / 8), part = i % (MMA_K / 8) * 8;
      const __nv_bfloat16* from = row < MMA_ROWS
          ? a + (long long)(blockIdx.y * MMA_ROWS + row) * k
          : b + (long long)(blockIdx.x * MMA_ROWS + row - MMA_ROWS) * k;
      *(int4*)(tiles + row * STRIDE + part) = *(const int4*)(from + at + part);
    }
    __syncthreads();
#pragma unroll
    for (int step = 0; step < MMA_K; step += 16) {
      wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> as[4];
      wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::col_major> bs[2];
      for (int i = 0; i < 4; i++) wmma::load_matrix_sync(as[i], tiles + (wy + i * 16) * STRIDE + step, STRIDE);
      for (int j = 0; j < 2; j++)
        wmma::load_matrix_sync(bs[j], tiles + (MMA_ROWS + wx + j * 16) * STRIDE + step, STRIDE);
      for (int i = 0; i < 4; i++)
        for (int j = 0; j < 2; j++) wmma::mma_sync(sums[i][j], as[i], bs[j], sums[i][j]);
    }
    __syncthreads();
  }
  for (int i = 0; i < 4; i++)
    for (int j = 0; j < 2; j++)
      wmma::store_matrix_sync(d + (long long)(blockIdx.y * MMA_ROWS + wy + i * 16) * n + blockIdx.x * MMA_ROWS + wx + j * 16,
                              sums[i][j], n, wmma::mem_row_major);
}
