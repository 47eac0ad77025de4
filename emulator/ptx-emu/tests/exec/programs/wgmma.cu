// A product of 64 x 16 and 16 x 8 by wgmma (sm_90a).
#include "product.h"

const int M = 64, N = 8, K = 16;

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
    check_product(product, M, N, K);
    std::puts("wgmma: right");
}
