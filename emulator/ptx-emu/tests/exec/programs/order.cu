// The number of the CTA that comes last depends on the schedule; nothing is wrong with the accesses.
#include "check.h"

__global__ void last(int* number) { atomicExch(number, blockIdx.x); }

int main() {
    int *number, result;
    CHECK(cudaMalloc(&number, sizeof result));
    CHECK(cudaMemset(number, 0, sizeof result));
    last<<<8, 1>>>(number);
    CHECK(cudaMemcpy(&result, number, sizeof result, cudaMemcpyDeviceToHost));
    std::printf("the last of eight\nis %d\n", result);
}
