// Text from the device, between lines of the host's.
#include "check.h"

__global__ void greet(int from) {
    printf("thread %d of block %d, %s %.2f\n", threadIdx.x, blockIdx.x, "from", from / 4.0);
}

int main() {
    std::printf("before\n");
    greet<<<2, 2>>>(7);
    CHECK(cudaDeviceSynchronize());
    std::printf("print: right\n");
}
