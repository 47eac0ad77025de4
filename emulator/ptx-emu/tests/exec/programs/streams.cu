// Two streams with an event between them, pinned, managed and two-dimensional memory.
#include "check.h"
#include <cmath>

const int N = 1024;

__global__ void scale(int* data, int factor) {
    data[blockIdx.x * blockDim.x + threadIdx.x] *= factor;
}

__global__ void both(const int* a, const int* b, int* sum) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    sum[i] = a[i] + b[i];
}

static void CUDART_CB note(void* argument) { ++*(int*)argument; }

int main() {
    int *pinned, *a, *b, *managed, noted = 0;
    CHECK(cudaMallocHost(&pinned, N * sizeof(int)));
    CHECK(cudaMallocManaged(&managed, N * sizeof(int)));
    CHECK(cudaMalloc(&a, N * sizeof(int)));
    CHECK(cudaMalloc(&b, N * sizeof(int)));
    for (int i = 0; i < N; i++) pinned[i] = i;
    cudaStream_t one, two;
    cudaEvent_t begin, ready;
    CHECK(cudaStreamCreate(&one));
    CHECK(cudaStreamCreateWithFlags(&two, cudaStreamNonBlocking));
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&ready));
    CHECK(cudaEventRecord(begin, one));
    CHECK(cudaMemcpyAsync(a, pinned, N * sizeof(int), cudaMemcpyHostToDevice, one));
    CHECK(cudaMemcpyAsync(b, pinned, N * sizeof(int), cudaMemcpyHostToDevice, two));
    scale<<<N / 128, 128, 0, one>>>(a, 3);
    scale<<<N / 128, 128, 0, two>>>(b, 5);
    CHECK(cudaEventRecord(ready, one));
    CHECK(cudaStreamWaitEvent(two, ready, 0));
    both<<<N / 128, 128, 0, two>>>(a, b, managed);
    CHECK(cudaLaunchHostFunc(two, note, &noted));
    CHECK(cudaStreamSynchronize(two));
    require(noted == 1, "host function");
    for (int i = 0; i < N; i++) require(managed[i] == 8 * i, "sum in managed memory");
    scale<<<N / 128, 128>>>(pinned, 2);
    CHECK(cudaDeviceSynchronize());
    for (int i = 0; i < N; i++) require(pinned[i] == 2 * i, "pinned memory");
    float milliseconds = 0;
    CHECK(cudaEventElapsedTime(&milliseconds, begin, ready));
    require(std::isnan(milliseconds), "an emulator has no times");
    int *rows, small[4][3];
    size_t pitch;
    CHECK(cudaMallocPitch(&rows, &pitch, 3 * sizeof(int), 4));
    CHECK(cudaMemset2D(rows, pitch, 0x11, 3 * sizeof(int), 4));
    CHECK(cudaMemcpy2D(small, sizeof small[0], rows, pitch, sizeof small[0], 4,
                       cudaMemcpyDeviceToHost));
    for (auto& row : small)
        for (int value : row) require(value == 0x11111111, "rows");
    cudaPointerAttributes attributes;
    CHECK(cudaPointerGetAttributes(&attributes, a + 5));
    require(attributes.type == cudaMemoryTypeDevice, "memory type");
    CHECK(cudaFreeHost(pinned));
    CHECK(cudaFree(managed));
    CHECK(cudaStreamDestroy(two));
    std::puts("streams: right");
}
