// A product of 128 x 16 and 16 x 16 by tcgen05 (sm_100a).
#include "product.h"

const int M = 128, N = 16, K = 16;

// A descriptor of tcgen05, which has a version besides.
__device__ uint64_t versioned(const void* matrix, int rows) {
    return descriptor(matrix, rows) | uint64_t(1) << 46;
}

__global__ void product(const half* a, const half* b, float* d) {
    __shared__ alignas(128) half sa[M * K], sb[N * K];
    __shared__ alignas(8) uint64_t barrier;
    __shared__ uint32_t column;
    uint32_t bar = __cvta_generic_to_shared(&barrier);
    for (int i = threadIdx.x; i < M * K; i += 128) sa[place(i / K, i % K, M)] = a[i];
    for (int i = threadIdx.x; i < N * K; i += 128) sb[place(i / K, i % K, N)] = b[i];
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (threadIdx.x < 32) {
        asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 32;" ::"r"(
                         (uint32_t)__cvta_generic_to_shared(&column))
                     : "memory");
        asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
    __syncthreads();
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
    if (threadIdx.x == 0) {
        // f16 operands, f32 sums.
        uint32_t instruction = 1 << 4 | N / 8 << 17 | M / 16 << 24;
        asm volatile(
            "{\n.reg .pred add;\nsetp.ne.b32 add, 0, 0;\n"
            "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, add;\n}" ::"r"(column),
            "l"(versioned(sa, M)), "l"(versioned(sb, N)), "r"(instruction)
            : "memory");
        asm volatile(
            "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"l"(
                (uint64_t)bar)
            : "memory");
    }
    asm volatile(
        "{\n.reg .pred done;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\n"
        "@!done bra again;\n}" ::"r"(bar)
        : "memory");
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
    uint32_t r[N];
    uint32_t from = column + (threadIdx.x / 32 * 32 << 16);
    asm volatile(
        "tcgen05.ld.sync.aligned.32x32b.x16.b32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, "
        "%11, %12, %13, %14, %15}, [%16];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]), "=r"(r[4]), "=r"(r[5]), "=r"(r[6]),
          "=r"(r[7]), "=r"(r[8]), "=r"(r[9]), "=r"(r[10]), "=r"(r[11]), "=r"(r[12]), "=r"(r[13]),
          "=r"(r[14]), "=r"(r[15])
        : "r"(from));
    asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
    for (int n = 0; n < N; n++) d[threadIdx.x * N + n] = __uint_as_float(r[n]);
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
    __syncthreads();
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
    if (threadIdx.x < 32)
        asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 32;" ::"r"(column));
}

int main() {
    check_product(product, M, N, K);
    std::puts("tcgen05: right");
}
