// Results that depend on a constant that the program writes and on how often the kernel ran.
#include "check.h"

__constant__ int step;
__device__ int launches = 1000;

__global__ void count(int* out) {
    out[threadIdx.x] = launches + step * threadIdx.x;
    __syncthreads();
    if (threadIdx.x == 0) launches++;
}

int main() {
    int *out, result[32];
    CHECK(cudaMalloc(&out, sizeof result));
    for (int launch = 0; launch < 3; launch++) {
        int value = 10 + launch;
        CHECK(cudaMemcpyToSymbol(step, &value, sizeof value));
        count<<<1, 32>>>(out);
        CHECK(cudaMemcpy(result, out, sizeof result, cudaMemcpyDeviceToHost));
        for (int i = 0; i < 32; i++)
            require(result[i] == 1000 + launch + value * i, "counted");
    }
    std::puts("variables: right");
}
