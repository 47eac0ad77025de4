// Launches of each form by the driver's interface, for `ptx-emu capture`: nvcc watched.cu -lcuda.
#include "check_driver.h"

static const char* PTX = R"(
.version 9.0
.target sm_90a
.address_size 64
.visible .global .align 4 .f32 factor = 0f40000000;
.visible .global .align 4 .u32 count;
.visible .entry scale(.param .u64 data) {
    .reg .b64 %a; .reg .b32 %t, %c; .reg .f32 %v, %f;
    ld.param.u64 %a, [data];
    mov.u32 %t, %tid.x;
    mov.u32 %c, %ctaid.x;
    mad.lo.u32 %t, %c, 32, %t;
    mad.wide.u32 %a, %t, 4, %a;
    ld.global.f32 %v, [%a];
    ld.global.f32 %f, [factor];
    mul.f32 %v, %v, %f;
    st.global.f32 [%a], %v;
    red.global.add.u32 [count], 1;
    ret;
}
.visible .entry copy(.param .align 64 .b8 map[128], .param .u64 out) {
    .shared .align 128 .b8 tile[128];
    .shared .align 8 .b64 bar;
    .reg .b64 %m, %o; .reg .b32 %t, %s, %b; .reg .pred %p, %q; .reg .f32 %v;
    mov.b64 %m, map; cvta.param.u64 %m, %m;
    ld.param.u64 %o, [out];
    mov.u32 %s, tile; mov.u32 %b, bar; mov.u32 %t, %tid.x;
    setp.ne.u32 %p, %t, 0;
    @%p bra ready;
    mbarrier.init.shared::cta.b64 [%b], 1;
    fence.proxy.async.shared::cta;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], 128;
    cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes
        [%s], [%m, {0, 0}], [%b];
ready:
    bar.sync 0;
again:
    mbarrier.try_wait.parity.shared::cta.b64 %q, [%b], 0;
    @!%q bra again;
    mad.lo.u32 %s, %t, 4, %s; ld.shared.f32 %v, [%s];
    mad.wide.u32 %o, %t, 4, %o; st.global.f32 [%o], %v;
    ret;
}
)";

int main() {
    CHECK(cuInit(0));
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction scale, copy;
    CUstream stream;
    CUdeviceptr data, out, factor;
    size_t bytes;
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuModuleLoadData(&module, PTX));
    CHECK(cuModuleGetFunction(&scale, module, "scale"));
    CHECK(cuModuleGetFunction(&copy, module, "copy"));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    const unsigned n = 64;
    float host[n], expected[n], *pinned;
    for (unsigned i = 0; i < n; i++) expected[i] = host[i] = i + 1;
    CHECK(cuMemAlloc(&data, sizeof host));
    CHECK(cuMemAlloc(&out, 128));
    CHECK(cuMemsetD8(out, 0, 128));
    CHECK(cuMemAllocHost((void**)&pinned, sizeof host));
    for (unsigned i = 0; i < n; i++) pinned[i] = 0;
    CHECK(cuMemcpyHtoD(data, host, sizeof host));
    void* values[] = {&data};
    auto times = [&](float by) {
        for (unsigned i = 0; i < n; i++) expected[i] *= by;
    };

    CHECK(cuLaunchKernel(scale, 2, 1, 1, 32, 1, 1, 0, stream, values, nullptr));
    times(2);

    CHECK(cuStreamSynchronize(stream));
    CHECK(cuModuleGetGlobal(&factor, &bytes, module, "factor"));
    float three = 3;
    CHECK(cuMemcpyHtoD(factor, &three, sizeof three));
    // The parameters as one block.
    size_t size = sizeof data;
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &data, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                     CU_LAUNCH_PARAM_END};
    CHECK(cuLaunchKernel(scale, 2, 1, 1, 32, 1, 1, 0, stream, nullptr, extra));
    times(3);

    CHECK(cuStreamSynchronize(stream));
    CUtensorMap map;
    cuuint64_t dims[] = {8, 8}, strides[] = {32};
    cuuint32_t box[] = {8, 4}, steps[] = {1, 1};
    CHECK(cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, (void*)data, dims,
                                 strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                 CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
    void* both[] = {&map, &out};
    CHECK(cuLaunchKernel(copy, 1, 1, 1, 32, 1, 1, 0, stream, both, nullptr));

    // By the address that the driver gives, in a cluster.
    CUresult (*launch)(const CUlaunchConfig*, CUfunction, void**, void**);
    CUdriverProcAddressQueryResult status;
    CHECK(cuGetProcAddress("cuLaunchKernelEx", (void**)&launch, 13000, 0, &status));
    CUlaunchAttribute attributes[2] = {};
    attributes[0].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attributes[0].value.clusterDim = {2, 1, 1};
    attributes[1].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attributes[1].value.programmaticStreamSerializationAllowed = 1;
    CUlaunchConfig config = {2, 1, 1, 32, 1, 1, 0, stream, attributes, 2};
    CHECK(launch(&config, scale, values, nullptr));
    times(3);

    CHECK(cuLaunchCooperativeKernel(scale, 2, 1, 1, 32, 1, 1, 0, stream, values));
    times(3);

    CUgraph graph;
    CUgraphExec executable;
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CHECK(cuLaunchKernel(scale, 2, 1, 1, 32, 1, 1, 0, stream, values, nullptr));
    CHECK(cuStreamEndCapture(stream, &graph));
    CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0));
    CHECK(cuGraphLaunch(executable, stream));
    times(3);

    CHECK(cuStreamSynchronize(stream));
    CHECK(cuMemcpyDtoH(host, data, sizeof host));
    for (unsigned i = 0; i < n; i++)
        if (host[i] != expected[i]) return 5;
    float tile[32];
    CHECK(cuMemcpyDtoH(tile, out, sizeof tile));
    for (unsigned i = 0; i < 32; i++)
        if (tile[i] != (i + 1) * 6) return 6;
    CHECK(cuMemFree(data));
    std::puts("watched: right");
}
