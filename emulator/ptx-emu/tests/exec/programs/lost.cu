// Programs whose launches do not run, whose assertion fails, and that take times: one for each WHAT.
#include <cassert>
#include <cmath>
#include <cstdio>
#include <unistd.h>

__global__ void store(int *to) {
    asm volatile("griddepcontrol.launch_dependents;");
    to[threadIdx.x] = threadIdx.x;
}

__global__ void claim(int *to) { assert(to == nullptr); }

int main() {
    int *to;
    if (cudaMalloc(&to, 4096 * sizeof(int)) != cudaSuccess) return 3;
#if WHAT == 0
    // No GPU has CTAs of that size, and nobody looks.
    store<<<1, 2048>>>(to);
    cudaDeviceSynchronize();
#elif WHAT == 1
    store<<<1, 2048>>>(to);
    if (cudaGetLastError() != cudaErrorInvalidConfiguration) return 4;
    store<<<1, 32>>>(to);
    cudaDeviceSynchronize();
#elif WHAT == 2
    // The next launch may overlap this one, which therefore has not run yet.
    store<<<1, 32>>>(to);
    _exit(0);
#elif WHAT == 3
    claim<<<1, 32>>>(to);
    cudaError_t code = cudaDeviceSynchronize();
    printf("%d %s\n", code, cudaGetErrorName(code));
    return code == cudaErrorAssert ? 0 : 4;
#else
    cudaEvent_t start, end;
    cudaEventCreate(&start);
    cudaEventCreate(&end);
    cudaEventRecord(start);
    store<<<1, 32>>>(to);
    cudaEventRecord(end);
    cudaEventSynchronize(end);
    float milliseconds = -1;
    cudaEventElapsedTime(&milliseconds, start, end);
    printf("%s\n", std::isnan(milliseconds) ? "nan" : milliseconds > 0 && milliseconds < 1 ? "some" : "other");
    printf("%s\n", milliseconds == 0 ? "zero" : "");
    int kilohertz = 0, bits = 0;
    cudaDeviceGetAttribute(&kilohertz, cudaDevAttrMemoryClockRate, 0);
    cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, 0);
    cudaDeviceProp properties;
    cudaGetDeviceProperties(&properties, 0);
    return kilohertz > 0 && bits == properties.memoryBusWidth ? 0 : 5;
#endif
    return 0;
}
