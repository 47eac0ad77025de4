// Memory that kernels allocate, which lasts from launch to launch. -DBROKEN: an element too many.
#include "check.h"
#include <cstdlib>

const int N = 48;

struct Pair {
    int a, b;
    __device__ Pair(int value) : a(value), b(2 * value) {}
};

__global__ void make(int** lists, int length) {
    int* list = (int*)malloc(length * sizeof(int));
    lists[threadIdx.x] = list;
    Pair* pair = new Pair(threadIdx.x);
    int* twice = new int[length];
    if (!list || !pair || !twice) {
        free(list);
        delete pair;
        delete[] twice;
        lists[threadIdx.x] = nullptr;
        return;
    }
#ifdef BROKEN
    const int end = length + 1;
#else
    const int end = length;
#endif
    for (int i = 0; i < end; i++) twice[i] = pair->b;
    for (int i = 0; i < length; i++) list[i] = pair->a + twice[i];
    delete pair;
    delete[] twice;
}

__global__ void sum(int** lists, int length, int* sums) {
    int* list = lists[threadIdx.x];
    int all = 0;
    for (int i = 0; i < length; i++) all += list[i];
    sums[threadIdx.x] = all;
    free(list);
}

int main() {
    int **lists, *sums, result[N];
    CHECK(cudaMalloc(&lists, N * sizeof *lists));
    CHECK(cudaMalloc(&sums, sizeof result));
    CHECK(cudaDeviceSetLimit(cudaLimitMallocHeapSize, 32 << 10));
    size_t bytes;
    CHECK(cudaDeviceGetLimit(&bytes, cudaLimitMallocHeapSize));
    require(bytes == 32 << 10, "the limit");
    for (int round = 0; round < 2; round++) {
        make<<<1, N>>>(lists, 9);
        sum<<<1, N>>>(lists, 9, sums);
        CHECK(cudaMemcpy(result, sums, sizeof result, cudaMemcpyDeviceToHost));
        for (int i = 0; i < N; i++) require(result[i] == 9 * 3 * i, "the sum of a list");
    }
    // The heap is full after a while, and malloc gives null.
    make<<<1, N>>>(lists, 200);
    int* found[N];
    CHECK(cudaMemcpy(found, lists, sizeof found, cudaMemcpyDeviceToHost));
    int made = 0;
    for (int i = 0; i < N; i++) made += found[i] != nullptr;
    require(made > 0 && made < N, "a part of the lists fits");
    std::puts("heap: right");
}
