// Small kernels that make nvcc use much of PTX's grammar. Own code.
#include <cstdio>
#include <cstdint>
template <typename T, int N> __device__ __noinline__ T horner(const T (&c)[N], T x) {
    T r = c[0];
    for (int i = 1; i < N; ++i) r = r * x + c[i];
    return r;
}
__constant__ float coefficients[5] = {1.0f, -0.5f, 3.25e-3f, 1e30f, -0.0f};
__device__ int counter = 7;
__device__ const char *names[2] = {"alpha", "beta"};
__device__ int *indirect = &counter + 3;
__managed__ int managed_value = 3;
struct __align__(16) Big { float4 a; short b[3]; char c; };
__device__ __noinline__ Big widen(Big in, int k) { in.a.x += k; in.b[1] = k; return in; }
typedef float (*Fn)(float, int);
__device__ __noinline__ float add1(float x, int k) { return x + k; }
__device__ __noinline__ float mul1(float x, int k) { return x * k; }
__device__ Fn table[2] = {add1, mul1};
extern __shared__ __align__(1024) unsigned char dynamic_smem[];

extern "C" __global__ void __launch_bounds__(128, 4) branches(int *out, int n, Big big) {
    __shared__ int scratch[128];
    int i = threadIdx.x + blockIdx.x * blockDim.x;
    int v = i;
    switch (v % 11) {
    case 0: v = out[1]; break;
    case 1: v *= 3; break;
    case 2: v ^= 5; break;
    case 3: v = out[i] / 7; break;
    case 4: v += __popc(v); break;
    case 5: v -= 19; break;
    case 6: v = max(v, out[2]); break;
    case 7: v = __clz(v); break;
    default: while (v > 3) v = (v & 1) ? v * 3 + 1 : v / 2;
    }
    scratch[threadIdx.x] = v;
    __syncthreads();
    Big w = widen(big, scratch[127 - threadIdx.x]);
    v += (int)w.a.x + w.b[1];
    if (i < n) atomicAdd(&out[i], v);
    atomicCAS((unsigned long long *)out, 1ull, 2ull);
    if (v == -12345) printf("v %d of %s %f\n", v, names[v & 1], horner(coefficients, 2.0f));
    v = __shfl_xor_sync(~0u, v, 4);
    if (__any_sync(~0u, v > 100)) counter++;
}

extern "C" __global__ void calls(float *out, int k, double d, unsigned char flag) {
    Fn f = table[k & 1];
    out[threadIdx.x] = f(out[threadIdx.x], k) + (flag ? sinf((float)d) : 0.0f) + *indirect + managed_value;
    out[1] = horner(coefficients, out[0]);
    double e[3] = {d, 1.5, 2.5};
    out[2] = (float)horner(e, d);
    if (k == 99) __trap();
}

extern "C" __global__ void scopes(uint32_t *out, uint32_t *h, uint64_t bar) {
    uint32_t r, s = 0;
    asm volatile("{\n .reg .pred p;\n .reg .b32 t;\n mov.b32 t, %1;\n setp.ne.b32 p, t, 0;\n LOOP: @p sub.s32 t, t, 1;\n setp.ne.b32 p, t, 0;\n @p bra LOOP;\n mov.b32 %0, t;\n}" : "=r"(r) : "r"(out[0]));
    asm volatile("{\n .reg .pred p;\n elect.sync _|p, 0xffffffff;\n @p mov.s32 %0, 1;\n}" : "+r"(s));
    asm volatile("{ .reg .b8 b0, b1, b2, b3; mov.b32 {b0, b1, b2, b3}, %1; .reg .b16 h; mov.b16 h, {b0, b1}; cvt.rn.f16x2.e4m3x2 %0, h; }" : "=r"(r) : "r"(s));
    uint32_t smem = (uint32_t)__cvta_generic_to_shared(dynamic_smem);
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(smem), "l"(out), "r"(8));
    asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;");
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem + 64), "r"(1));
    asm volatile("{\n.reg .pred P1;\nWAIT:\nmbarrier.try_wait.parity.shared::cta.b64 P1, [%0], %1;\n@P1 bra.uni DONE;\nbra.uni WAIT;\nDONE:\n}" ::"r"(smem + 64), "r"(0));
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(h[threadIdx.x]) : "r"(h[0]), "r"(h[1]), "r"(h[2]));
    uint32_t d0, d1, d2, d3;
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
        : "=r"(d0), "=r"(d1), "=r"(d2), "=r"(d3) : "r"(r), "r"(r), "r"(r), "r"(r), "r"(s), "r"(s), "f"(0.f), "f"(1.f), "f"(2.f), "f"(3.f));
    out[threadIdx.x] = r + s + d0 + d1 + d2 + d3;
}
extern "C" __global__ void __cluster_dims__(2, 1, 1) __maxnreg__(64) clustered(int *out) {
    out[0] = __clusterRelativeBlockRank();
}
