// c = scale * a + b, with a constant, a counter in device memory, and properties of the device.
#include "check.h"
#include <vector>

__constant__ float scale;
__device__ unsigned long long added;
// An address that the module's variables hold.
__device__ unsigned long long* where = &added;

__global__ void add(const float* a, const float* b, float* c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        c[i] = scale * a[i] + b[i];
        atomicAdd(where, 1ull);
    }
}

__global__ void read_counter(unsigned long long* out) { *out = added; }

int main() {
    cudaDeviceProp properties;
    CHECK(cudaGetDeviceProperties(&properties, 0));
    std::printf("%s, %d SMs, %d.%d\n", properties.name, properties.multiProcessorCount,
                properties.major, properties.minor);
    const int n = 1000;
    std::vector<float> a(n), b(n), c(n);
    for (int i = 0; i < n; i++) a[i] = i, b[i] = 2 * i;
    float *da, *db, *dc;
    CHECK(cudaMalloc(&da, n * sizeof(float)));
    CHECK(cudaMalloc(&db, n * sizeof(float)));
    CHECK(cudaMalloc(&dc, n * sizeof(float)));
    CHECK(cudaMemcpy(da, a.data(), n * sizeof(float), cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(db, b.data(), n * sizeof(float), cudaMemcpyHostToDevice));
    for (float factor : {1.0f, 3.0f}) {
        CHECK(cudaMemcpyToSymbol(scale, &factor, sizeof factor));
        add<<<(n + 127) / 128, 128>>>(da, db, dc, n);
        CHECK(cudaGetLastError());
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaMemcpy(c.data(), dc, n * sizeof(float), cudaMemcpyDeviceToHost));
        for (int i = 0; i < n; i++) require(c[i] == factor * i + 2 * i, "sum");
    }
    unsigned long long count = 0, *out;
    CHECK(cudaMemcpyFromSymbol(&count, added, sizeof count));
    require(count == 2 * n, "counter by name");
    // Another kernel of the module sees the same variable.
    CHECK(cudaMalloc(&out, sizeof count));
    read_counter<<<1, 1>>>(out);
    CHECK(cudaMemcpy(&count, out, sizeof count, cudaMemcpyDefault));
    require(count == 2 * n, "counter by kernel");
    CHECK(cudaFree(da));
    CHECK(cudaFree(db));
    CHECK(cudaFree(dc));
    std::puts("vector_add: right");
}
