// CTAs that wait for each other in the middle of a kernel, and how many of them there may be.
#include "check.h"
#include <cooperative_groups.h>

namespace cg = cooperative_groups;

const int THREADS = 64;

__global__ void shift(int* data, int* out) {
    cg::grid_group grid = cg::this_grid();
    int i = grid.thread_rank();
    for (int round = 1; round <= 3; round++) {
        data[i] = i * round;
        grid.sync();
        out[i] += data[(i + THREADS) % grid.size()];
        grid.sync();
    }
}

int main() {
    int per_sm, sms;
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, shift, THREADS, 0));
    CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    require(per_sm > 0 && sms > 0, "occupancy");
    const int ctas = 8, n = ctas * THREADS;
    int *data, *out, result[n];
    CHECK(cudaMalloc(&data, sizeof result));
    CHECK(cudaMalloc(&out, sizeof result));
    CHECK(cudaMemset(out, 0, sizeof result));
    void* arguments[] = {&data, &out};
    cudaError_t error = cudaLaunchCooperativeKernel((void*)shift, per_sm * sms + 1, THREADS, arguments);
    require(error == cudaErrorCooperativeLaunchTooLarge, "more CTAs than there is room for");
    require(cudaGetLastError() == error && cudaGetLastError() == cudaSuccess, "last error");
    CHECK(cudaLaunchCooperativeKernel((void*)shift, ctas, THREADS, arguments));
    CHECK(cudaMemcpy(result, out, sizeof result, cudaMemcpyDeviceToHost));
    for (int i = 0; i < n; i++) require(result[i] == (i + THREADS) % n * 6, "shifted");
    std::puts("cooperative: right");
}
