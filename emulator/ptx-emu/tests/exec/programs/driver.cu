// The driver's interface, with PTX as text: nvcc driver.cu -lcuda.
#include "check_driver.h"

static const char PTX_TEXT[] = R"(
.version 9.0
.target sm_100a
.address_size 64
.visible .global .align 4 .u32 offset = 100;
.visible .entry shift(.param .u64 data, .param .u32 n) {
    .reg .b64 %a; .reg .b32 %t, %c, %b, %n, %v, %o; .reg .pred %p;
    ld.param.u64 %a, [data];
    ld.param.u32 %n, [n];
    mov.u32 %t, %tid.x;
    mov.u32 %c, %ctaid.x;
    mov.u32 %b, %ntid.x;
    mad.lo.u32 %t, %c, %b, %t;
    setp.ge.u32 %p, %t, %n;
    @%p ret;
    mad.wide.u32 %a, %t, 4, %a;
    ld.global.u32 %v, [%a];
    ld.global.u32 %o, [offset];
    add.u32 %v, %v, %o;
    st.global.u32 [%a], %v;
    ret;
}
)";
static const char* PTX = PTX_TEXT;

int main() {
    CHECK(cuInit(0));
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction shift;
    CUdeviceptr data, offset;
    size_t bytes;
    char name[100];
    int sms;
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDeviceGetName(name, sizeof name, device));
    CHECK(cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
    std::printf("%s, %d SMs\n", name, sms);
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    // A context with parameters that ask for nothing.
    CUctxCreateParams parameters = {};
    CUcontext other;
    CHECK(cuCtxCreate(&other, &parameters, 0, device));
    CHECK(cuCtxDestroy(other));
    CHECK(cuCtxSetCurrent(context));
    CUlinkState linker;
    void* image;
    CHECK(cuLinkCreate(0, nullptr, nullptr, &linker));
    // Nothing was added yet.
    if (cuLinkComplete(linker, &image, &bytes) != CUDA_ERROR_INVALID_VALUE) return 5;
    CHECK(cuLinkAddData(linker, CU_JIT_INPUT_PTX, (void*)PTX, sizeof PTX_TEXT, "shift.ptx", 0, nullptr, nullptr));
    if (cuLinkAddData(linker, CU_JIT_INPUT_PTX, (void*)PTX, sizeof PTX_TEXT, "again.ptx", 0, nullptr, nullptr) !=
        CUDA_ERROR_NOT_SUPPORTED)
        return 6;
    CHECK(cuLinkComplete(linker, &image, &bytes));
    CHECK(cuModuleLoadData(&module, image));
    CHECK(cuLinkDestroy(linker));
    CHECK(cuModuleUnload(module));
    CHECK(cuModuleLoadData(&module, PTX));
    CHECK(cuModuleGetFunction(&shift, module, "shift"));
    if (cuModuleGetFunction(&shift, module, "none") != CUDA_ERROR_NOT_FOUND) return 4;
    CHECK(cuModuleGetFunction(&shift, module, "shift"));
    CHECK(cuModuleGetGlobal(&offset, &bytes, module, "offset"));
    if (bytes != 4) return 4;
    unsigned n = 70, host[70];
    for (unsigned i = 0; i < n; i++) host[i] = i;
    CHECK(cuMemAlloc(&data, sizeof host));
    CHECK(cuMemcpyHtoD(data, host, sizeof host));
    void* arguments[] = {&data, &n};
    CHECK(cuLaunchKernel(shift, 3, 1, 1, 32, 1, 1, 0, nullptr, arguments, nullptr));
    CHECK(cuMemsetD32(offset, 1000, 1));
    // The same with the parameters as one block.
    struct {
        CUdeviceptr data;
        unsigned n;
    } block = {data, 10};
    size_t size = sizeof block;
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &block, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                     CU_LAUNCH_PARAM_END};
    CHECK(cuLaunchKernel(shift, 3, 1, 1, 32, 1, 1, 0, nullptr, nullptr, extra));
    CHECK(cuCtxSynchronize());
    CHECK(cuMemcpyDtoH(host, data, sizeof host));
    for (unsigned i = 0; i < n; i++)
        if (host[i] != i + 100 + (i < 10 ? 1000 : 0)) return 5;
    void* function = nullptr;
    CUdriverProcAddressQueryResult status;
    CHECK(cuGetProcAddress("cuMemAlloc", &function, 13000, 0, &status));
    if (function != (void*)cuMemAlloc) return 6;
    // What is not modelled is not there, and says so.
    if (cuGetProcAddress("cuMulticastCreate", &function, 13000, 0, &status) !=
        CUDA_ERROR_NOT_FOUND)
        return 7;
    CUarray array;
    if (cuArrayCreate(&array, nullptr) != CUDA_ERROR_NOT_SUPPORTED) return 8;
    // Memory of a captured graph.
    CUstream stream;
    CUgraph graph;
    CUgraphExec executable;
    CUdeviceptr captured;
    CHECK(cuStreamCreate(&stream, 0));
    CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHECK(cuMemAllocAsync(&captured, sizeof host, stream));
    CHECK(cuMemsetD32Async(captured, 7, n, stream));
    CHECK(cuMemcpyDtoDAsync(data, captured, sizeof host, stream));
    CHECK(cuMemFreeAsync(captured, stream));
    CHECK(cuStreamEndCapture(stream, &graph));
    CHECK(cuGraphInstantiate(&executable, graph, 0));
    CHECK(cuGraphLaunch(executable, stream));
    CHECK(cuGraphLaunch(executable, stream));
    CHECK(cuMemcpyDtoH(host, data, sizeof host));
    if (host[69] != 7) return 9;
    CHECK(cuMemFree(data));
    std::puts("driver: right");
}
