// A graph of nodes of every kind through the driver's interface: looked at, changed, cloned and updated.
#include "check_driver.h"

const int N = 64;

static const char PTX[] = R"(
.version 9.0
.target sm_100a
.address_size 64
.visible .entry add(.param .u64 data, .param .u32 value) {
    .reg .b64 %a; .reg .b32 %t, %n, %v;
    ld.param.u64 %a, [data];
    ld.param.u32 %n, [value];
    mov.u32 %t, %tid.x;
    mad.wide.u32 %a, %t, 4, %a;
    ld.global.u32 %v, [%a];
    add.u32 %v, %v, %n;
    st.global.u32 [%a], %v;
    ret;
}
)";

static void note(void* argument) { ++*(int*)argument; }

static CUDA_MEMCPY3D to_host(void* to, CUdeviceptr from, size_t bytes) {
    CUDA_MEMCPY3D copy = {};
    copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = from;
    copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    copy.dstHost = to;
    copy.WidthInBytes = bytes;
    copy.Height = 1;
    copy.Depth = 1;
    return copy;
}

/// Copies a box out of a volume, without a graph.
static void copies_of_volumes() {
    // 4 layers of 3 rows of 5 words, of which 2 layers, 2 rows and 3 words from (1, 1, 1) on.
    unsigned volume[4][3][5], box[2][2][3] = {};
    for (unsigned i = 0; i < 60; i++) (&volume[0][0][0])[i] = i;
    CUdeviceptr device;
    CHECK(cuMemAlloc(&device, sizeof volume));
    CHECK(cuMemcpyHtoD(device, volume, sizeof volume));
    CUDA_MEMCPY3D copy = {};
    copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = device;
    copy.srcXInBytes = 4;
    copy.srcY = copy.srcZ = 1;
    copy.srcPitch = 20;
    copy.srcHeight = 3;
    copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    copy.dstHost = box;
    copy.dstPitch = 12;
    copy.dstHeight = 2;
    copy.WidthInBytes = 12;
    copy.Height = copy.Depth = 2;
    CHECK(cuMemcpy3D(&copy));
    for (int z = 0; z < 2; z++)
        for (int y = 0; y < 2; y++)
            for (int x = 0; x < 3; x++) require(box[z][y][x] == volume[z + 1][y + 1][x + 1], "a box of a volume");
    copy.srcPitch = 12;
    require(cuMemcpy3D(&copy) == CUDA_ERROR_INVALID_VALUE, "rows that are longer than the pitch");
    CHECK(cuMemFree(device));
}

int main() {
    CHECK(cuInit(0));
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction add;
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuModuleLoadData(&module, PTX));
    CHECK(cuModuleGetFunction(&add, module, "add"));
    copies_of_volumes();

    CUdeviceptr data;
    int result[N], value = 5, thousand = 1000, noted = 0;
    const size_t bytes = sizeof result;
    CHECK(cuMemAlloc(&data, bytes));
    CUevent event, shown_event;
    CHECK(cuEventCreate(&event, 0));

    // A graph that becomes a node: adds 1000, with its arguments in one block.
    CUgraph graph, within;
    CUgraphNode inside, fill, kernel, child, copy, host, record, wait, join;
    CHECK(cuGraphCreate(&within, 0));
    struct {
        CUdeviceptr data;
        int value;
    } block = {data, thousand};
    size_t block_bytes = sizeof block;
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &block, CU_LAUNCH_PARAM_BUFFER_SIZE, &block_bytes,
                     CU_LAUNCH_PARAM_END};
    CUDA_KERNEL_NODE_PARAMS launch = {};
    launch.func = add;
    launch.gridDimX = launch.gridDimY = launch.gridDimZ = 1;
    launch.blockDimX = N;
    launch.blockDimY = launch.blockDimZ = 1;
    launch.extra = extra;
    CHECK(cuGraphAddKernelNode(&inside, within, nullptr, 0, &launch));

    CHECK(cuGraphCreate(&graph, 0));
    CUDA_MEMSET_NODE_PARAMS memset = {};
    memset.dst = data;
    memset.value = 7;
    memset.elementSize = 4;
    memset.width = N;
    memset.height = 1;
    CHECK(cuGraphAddMemsetNode(&fill, graph, nullptr, 0, &memset, context));
    void* arguments[] = {&data, &value};
    launch.extra = nullptr;
    launch.kernelParams = arguments;
    CHECK(cuGraphAddKernelNode(&kernel, graph, &fill, 1, &launch));
    CHECK(cuGraphAddChildGraphNode(&child, graph, &kernel, 1, within));
    CHECK(cuGraphDestroy(within));
    CUDA_MEMCPY3D back = to_host(result, data, bytes);
    CHECK(cuGraphAddMemcpyNode(&copy, graph, &child, 1, &back, context));
    CUDA_HOST_NODE_PARAMS function = {note, &noted};
    CHECK(cuGraphAddHostNode(&host, graph, &kernel, 1, &function));
    CHECK(cuGraphAddEventRecordNode(&record, graph, &kernel, 1, event));
    CHECK(cuGraphAddEventWaitNode(&wait, graph, &record, 1, event));
    CHECK(cuGraphAddEmptyNode(&join, graph, nullptr, 0));
    CHECK(cuGraphAddDependencies(graph, &copy, &join, nullptr, 1));

    CUgraphExec executable;
    CHECK(cuGraphInstantiate(&executable, graph, 0));
    CHECK(cuGraphLaunch(executable, nullptr));
    CHECK(cuCtxSynchronize());
    require(result[0] == 1012 && result[N - 1] == 1012 && noted == 1, "filled, added, and added in the child");
    CHECK(cuEventQuery(event));

    // What the graph and its nodes say of themselves.
    size_t count = 0;
    CHECK(cuGraphGetNodes(graph, nullptr, &count));
    require(count == 8, "number of nodes");
    CUgraphNode from[16], to[16];
    count = 16;
    CHECK(cuGraphGetEdges(graph, from, to, nullptr, &count));
    require(count == 7 && from[0] == fill && to[0] == kernel, "edges");
    count = 16;
    CHECK(cuGraphGetRootNodes(graph, from, &count));
    require(count == 1 && from[0] == fill, "roots");
    CHECK(cuGraphNodeGetDependencies(join, from, nullptr, &count));
    require(count == 1 && from[0] == copy, "dependencies");
    CHECK(cuGraphNodeGetDependentNodes(kernel, nullptr, nullptr, &count));
    require(count == 3, "dependent nodes");
    CUgraphNodeType type;
    CHECK(cuGraphNodeGetType(record, &type));
    require(type == CU_GRAPH_NODE_TYPE_EVENT_RECORD, "type");
    CUDA_KERNEL_NODE_PARAMS shown;
    CHECK(cuGraphKernelNodeGetParams(kernel, &shown));
    require(shown.func == add && shown.blockDimX == N && *(int*)shown.kernelParams[1] == 5 &&
                *(CUdeviceptr*)shown.kernelParams[0] == data && !shown.extra, "a kernel's parameters");
    CUDA_MEMCPY3D shown_copy;
    CHECK(cuGraphMemcpyNodeGetParams(copy, &shown_copy));
    require(shown_copy.srcMemoryType == CU_MEMORYTYPE_DEVICE && shown_copy.srcDevice == data &&
                shown_copy.dstMemoryType == CU_MEMORYTYPE_HOST && shown_copy.dstHost == result &&
                shown_copy.WidthInBytes == bytes, "a copy's parameters");
    CHECK(cuGraphMemcpyNodeSetParams(copy, &shown_copy));
    CUDA_MEMSET_NODE_PARAMS shown_fill;
    CHECK(cuGraphMemsetNodeGetParams(fill, &shown_fill));
    require(shown_fill.dst == data && shown_fill.value == 7 && shown_fill.width == N, "a fill's parameters");
    CUDA_HOST_NODE_PARAMS shown_host;
    CHECK(cuGraphHostNodeGetParams(host, &shown_host));
    require(shown_host.fn == note && shown_host.userData == &noted, "a host function's parameters");
    CHECK(cuGraphEventWaitNodeGetEvent(wait, &shown_event));
    require(shown_event == event, "an event");
    require(cuGraphMemsetNodeGetParams(kernel, &shown_fill) == CUDA_ERROR_INVALID_VALUE, "another type");
    CUgraph shown_graph;
    CHECK(cuGraphChildGraphNodeGetGraph(child, &shown_graph));
    CHECK(cuGraphGetNodes(shown_graph, nullptr, &count));
    require(count == 1, "a child's nodes");

    // Changes of what can be launched, and of a clone.
    value = 100;
    CHECK(cuGraphExecKernelNodeSetParams(executable, kernel, &launch));
    memset.value = 1;
    CHECK(cuGraphExecMemsetNodeSetParams(executable, fill, &memset, context));
    CHECK(cuGraphLaunch(executable, nullptr));
    CHECK(cuCtxSynchronize());
    require(result[3] == 1101, "other values");
    CHECK(cuGraphNodeSetEnabled(executable, kernel, 0));
    CHECK(cuGraphLaunch(executable, nullptr));
    CHECK(cuCtxSynchronize());
    require(result[3] == 1001, "a node less");
    CUgraph clone;
    CUgraphNode cloned;
    CHECK(cuGraphClone(&clone, graph));
    CHECK(cuGraphNodeFindInClone(&cloned, kernel, clone));
    value = 20;
    CHECK(cuGraphKernelNodeSetParams(cloned, &launch));
    CHECK(cuGraphNodeSetEnabled(executable, kernel, 1));
    CUgraphExecUpdateResultInfo info;
    CHECK(cuGraphExecUpdate(executable, clone, &info));
    require(info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS, "updated");
    CHECK(cuGraphLaunch(executable, nullptr));
    CHECK(cuCtxSynchronize());
    require(result[3] == 7 + 20 + 1000, "the clone's value");
    CHECK(cuGraphDestroyNode(cloned));
    require(cuGraphExecUpdate(executable, clone, &info) == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, "another graph");

    // Launch attributes.
    CUkernelNodeAttrValue attribute = {};
    attribute.cooperative = 1;
    CHECK(cuGraphKernelNodeSetAttribute(kernel, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &attribute));
    attribute = {};
    CHECK(cuGraphKernelNodeGetAttribute(kernel, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &attribute));
    require(attribute.cooperative == 1, "an attribute");

    // Memory of a graph, and nodes by the function for all types.
    CUgraph memory;
    CUgraphNode allocate, use, out, release;
    CHECK(cuGraphCreate(&memory, 0));
    CUDA_MEM_ALLOC_NODE_PARAMS allocation = {};
    allocation.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    allocation.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    allocation.bytesize = bytes;
    CHECK(cuGraphAddMemAllocNode(&allocate, memory, nullptr, 0, &allocation));
    CUgraphNodeParams any = {};
    any.type = CU_GRAPH_NODE_TYPE_MEMSET;
    any.memset.dst = allocation.dptr;
    any.memset.value = 300;
    any.memset.elementSize = 4;
    any.memset.width = N;
    any.memset.height = 1;
    CHECK(cuGraphAddNode(&use, memory, &allocate, nullptr, 1, &any));
    any = {};
    any.type = CU_GRAPH_NODE_TYPE_KERNEL;
    CUdeviceptr allocated = allocation.dptr;
    void* others[] = {&allocated, &value};
    any.kernel.func = add;
    any.kernel.gridDimX = any.kernel.gridDimY = any.kernel.gridDimZ = 1;
    any.kernel.blockDimX = N;
    any.kernel.blockDimY = any.kernel.blockDimZ = 1;
    any.kernel.kernelParams = others;
    CHECK(cuGraphAddNode(&kernel, memory, &use, nullptr, 1, &any));
    any = {};
    any.type = CU_GRAPH_NODE_TYPE_MEMCPY;
    any.memcpy.copyCtx = context;
    any.memcpy.copyParams = to_host(result, allocated, bytes);
    CHECK(cuGraphAddNode(&out, memory, &kernel, nullptr, 1, &any));
    CHECK(cuGraphAddMemFreeNode(&release, memory, &out, 1, allocated));
    CHECK(cuGraphInstantiate(&executable, memory, 0));
    CHECK(cuGraphLaunch(executable, nullptr));
    CHECK(cuCtxSynchronize());
    require(result[N - 1] == 320, "memory of a graph");

    // What there is not is refused by name.
    any = {};
    any.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
    require(cuGraphAddNode(&out, memory, nullptr, nullptr, 0, &any) == CUDA_ERROR_NOT_SUPPORTED, "a conditional node");
    CUgraphConditionalHandle handle;
    require(cuGraphConditionalHandleCreate(&handle, memory, context, 0, 0) == CUDA_ERROR_NOT_SUPPORTED,
            "a conditional handle");
    std::puts("driver_graph: right");
}
