// Small kernels of many kinds; the comments say what each must compute.

__device__ __noinline__ unsigned collatz(unsigned n) {
    unsigned steps = 0;
    while (n != 1) { n = n & 1 ? 3 * n + 1 : n / 2; ++steps; }
    return steps;
}

typedef unsigned (*Op)(unsigned);
__device__ __noinline__ unsigned square(unsigned x) { return x * x; }
__device__ __noinline__ unsigned half_of(unsigned x) { return x / 2; }
__device__ Op table[3] = {square, half_of, collatz};

// out[i] = collatz steps of i + 1, through a table of function pointers for
// even blocks.
extern "C" __global__ void steps(unsigned *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    out[i] = blockIdx.x % 2 ? collatz(i + 1) : table[i % 3](i + 1);
}

// Sorts 2 * blockDim.x keys in shared memory.
extern "C" __global__ void bitonic(unsigned *keys) {
    extern __shared__ unsigned s[];
    unsigned n = 2 * blockDim.x, t = threadIdx.x;
    s[t] = keys[blockIdx.x * n + t];
    s[t + blockDim.x] = keys[blockIdx.x * n + t + blockDim.x];
    for (unsigned size = 2; size <= n; size <<= 1)
        for (unsigned stride = size / 2; stride > 0; stride >>= 1) {
            __syncthreads();
            unsigned pos = 2 * t - (t & (stride - 1));
            bool up = (pos & size) == 0;
            unsigned a = s[pos], b = s[pos + stride];
            if ((a > b) == up) { s[pos] = b; s[pos + stride] = a; }
        }
    __syncthreads();
    keys[blockIdx.x * n + t] = s[t];
    keys[blockIdx.x * n + t + blockDim.x] = s[t + blockDim.x];
}

// Histogram of bytes, privatised in shared memory.
extern "C" __global__ void histogram(const unsigned char *data, unsigned *bins, int n) {
    __shared__ unsigned local[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) local[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&local[data[i]], 1u);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x)
        if (local[i]) atomicAdd(&bins[i], local[i]);
}

// out[row] = sum of x[row][:], in double, by warp shuffles and a block sum.
extern "C" __global__ void row_sums(const float *x, double *out, int columns) {
    __shared__ double partial[32];
    double sum = 0;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += x[blockIdx.x * columns + i];
    for (int d = 16; d > 0; d /= 2) sum += __shfl_down_sync(0xffffffffu, sum, d);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = threadIdx.x < (blockDim.x + 31) / 32 ? partial[threadIdx.x] : 0.0;
        for (int d = 16; d > 0; d /= 2) sum += __shfl_down_sync(0xffffffffu, sum, d);
        if (threadIdx.x == 0) out[blockIdx.x] = sum;
    }
}

struct Big { int scale[5]; float bias; };

// A struct by value, a switch, local arrays indexed at run time.
extern "C" __global__ void mixed(Big big, const int *in, float *out) {
    int i = threadIdx.x, local[8];
    for (int k = 0; k < 8; ++k) local[k] = in[(i + k) % blockDim.x] * big.scale[k % 5];
    float value;
    switch (in[i] & 7) {
        case 0: value = local[in[i] >> 3 & 7]; break;
        case 1: value = local[1] + 0.5f; break;
        case 2: value = __fdiv_rn(local[2], 3.0f); break;
        case 3: value = sqrtf(fabsf((float)local[3])); break;
        case 5: value = -local[5]; break;
        default: value = local[i & 7] % 7; break;
    }
    out[i] = value + big.bias;
}

// Half-precision multiply-add of pairs.
extern "C" __global__ void half2_axpy(unsigned a, const unsigned *x, unsigned *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(y[i]) : "r"(a), "r"(x[i]));
}
