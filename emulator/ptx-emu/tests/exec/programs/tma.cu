// A tile that a tensor map describes, copied to shared memory with its edge filled by zeros.
#include "check.h"
#include <cstdint>
#include <cuda.h>
#include <vector>

const int ROWS = 20, COLUMNS = 24, TILE = 16;

__global__ void copy(const __grid_constant__ CUtensorMap map, float* out) {
    __shared__ alignas(128) float tile[TILE][TILE];
    __shared__ alignas(8) uint64_t barrier;
    uint32_t bar = __cvta_generic_to_shared(&barrier);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar),
                     "r"((uint32_t)sizeof tile)
                     : "memory");
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
            "[%0], [%1, {%2, %3}], [%4];" ::"r"((uint32_t)__cvta_generic_to_shared(tile)),
            "l"(&map), "r"((int)blockIdx.x * TILE), "r"((int)blockIdx.y * TILE), "r"(bar)
            : "memory");
    }
    __syncthreads();
    asm volatile(
        "{\n.reg .pred done;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\n"
        "@!done bra again;\n}" ::"r"(bar)
        : "memory");
    int block = blockIdx.y * gridDim.x + blockIdx.x;
    out[block * TILE * TILE + threadIdx.x] = tile[threadIdx.x / TILE][threadIdx.x % TILE];
}

typedef CUresult (*Encode)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                           const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                           const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                           CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

int main() {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult status;
    CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                           cudaEnableDefault, &status));
    require(status == cudaDriverEntryPointSuccess, "entry point");
    Encode encode = (Encode)found;
    std::vector<float> in(ROWS * COLUMNS), result(4 * TILE * TILE);
    for (size_t i = 0; i < in.size(); i++) in[i] = i + 1;
    float *data, *out;
    CHECK(cudaMalloc(&data, in.size() * sizeof(float)));
    CHECK(cudaMalloc(&out, result.size() * sizeof(float)));
    CHECK(cudaMemcpy(data, in.data(), in.size() * sizeof(float), cudaMemcpyHostToDevice));
    CUtensorMap map;
    cuuint64_t dims[] = {COLUMNS, ROWS}, strides[] = {COLUMNS * sizeof(float)};
    cuuint32_t box[] = {TILE, TILE}, steps[] = {1, 1};
    auto make = [&](void* address) {
        return encode(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, address, dims, strides, box, steps,
                      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                      CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    };
    require(make((char*)data + 4) == CUDA_ERROR_INVALID_VALUE, "a tensor that is not aligned");
    require(make(data) == CUDA_SUCCESS, "tensor map");
    copy<<<dim3(2, 2), TILE * TILE>>>(map, out);
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(result.data(), out, result.size() * sizeof(float), cudaMemcpyDeviceToHost));
    for (int block = 0; block < 4; block++)
        for (int i = 0; i < TILE * TILE; i++) {
            int row = block / 2 * TILE + i / TILE, column = block % 2 * TILE + i % TILE;
            bool inside = row < ROWS && column < COLUMNS;
            float expected = inside ? in[row * COLUMNS + column] : 0;
            require(result[block * TILE * TILE + i] == expected, "tile");
        }
    std::puts("tma: right");
}
