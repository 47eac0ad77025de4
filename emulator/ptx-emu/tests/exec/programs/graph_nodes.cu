// A graph of nodes of every kind: looked at, changed, cloned and updated.
#include "check.h"
#include <cstring>

const int N = 64;

__global__ void add(int* data, int value) { data[threadIdx.x] += value; }

static void CUDART_CB note(void* argument) { ++*(int*)argument; }

__device__ int variable[N];

static cudaMemcpy3DParms linear(void* to, void* from, size_t bytes, cudaMemcpyKind kind) {
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = make_cudaPitchedPtr(from, bytes, bytes, 1);
    copy.dstPtr = make_cudaPitchedPtr(to, bytes, bytes, 1);
    copy.extent = make_cudaExtent(bytes, 1, 1);
    copy.kind = kind;
    return copy;
}

static void check_lists(cudaGraph_t graph, cudaGraphNode_t fill, cudaGraphNode_t kernel, size_t nodes, size_t edges) {
    size_t count = 0;
    CHECK(cudaGraphGetNodes(graph, nullptr, &count));
    require(count == nodes, "number of nodes");
    cudaGraphNode_t from[16], to[16];
    count = 16;
    CHECK(cudaGraphGetEdges(graph, from, to, nullptr, &count));
    require(count == edges && from[0] == fill && to[0] == kernel, "edges");
    count = 16;
    CHECK(cudaGraphGetRootNodes(graph, from, &count));
    require(count == 1 && from[0] == fill, "roots");
    count = 16;
    CHECK(cudaGraphNodeGetDependencies(kernel, from, nullptr, &count));
    require(count == 1 && from[0] == fill, "dependencies");
    CHECK(cudaGraphNodeGetDependentNodes(kernel, nullptr, nullptr, &count));
    require(count == 3, "dependent nodes");
}

/// The node of a graph that has one.
static cudaGraphNode_t inside_of(cudaGraph_t graph) {
    cudaGraphNode_t node;
    size_t count = 1;
    CHECK(cudaGraphGetNodes(graph, &node, &count));
    return node;
}

int main() {
    int *data, value = 5, result[N], copied[N], noted = 0;
    const size_t bytes = sizeof result;
    CHECK(cudaMalloc(&data, bytes));
    cudaEvent_t event, other;
    CHECK(cudaEventCreate(&event));
    CHECK(cudaEventCreate(&other));
    cudaGraph_t graph, within;
    // A graph that becomes a node of the other one: adds 1000.
    CHECK(cudaGraphCreate(&within, 0));
    int thousand = 1000;
    void* inner[] = {&data, &thousand};
    cudaKernelNodeParams launch = {};
    launch.func = (void*)add;
    launch.gridDim = 1;
    launch.blockDim = N;
    launch.kernelParams = inner;
    cudaGraphNode_t inside;
    CHECK(cudaGraphAddKernelNode(&inside, within, nullptr, 0, &launch));

    CHECK(cudaGraphCreate(&graph, 0));
    cudaGraphNode_t fill, kernel, child, copy, symbol, back, host, record, wait;
    cudaMemsetParams memset = {};
    memset.dst = data;
    memset.value = 7;
    memset.elementSize = 4;
    memset.width = N;
    memset.height = 1;
    CHECK(cudaGraphAddMemsetNode(&fill, graph, nullptr, 0, &memset));
    void* outer[] = {&data, &value};
    launch.kernelParams = outer;
    CHECK(cudaGraphAddKernelNode(&kernel, graph, &fill, 1, &launch));
    CHECK(cudaGraphAddChildGraphNode(&child, graph, &kernel, 1, within));
    CHECK(cudaGraphDestroy(within));
    cudaMemcpy3DParms to_host = linear(result, data, bytes, cudaMemcpyDeviceToHost);
    CHECK(cudaGraphAddMemcpyNode(&copy, graph, &child, 1, &to_host));
    CHECK(cudaGraphAddMemcpyNodeToSymbol(&symbol, graph, &child, 1, variable, data, bytes, 0,
                                         cudaMemcpyDeviceToDevice));
    CHECK(cudaGraphAddMemcpyNodeFromSymbol(&back, graph, &symbol, 1, copied, variable, bytes, 0,
                                           cudaMemcpyDeviceToHost));
    cudaHostNodeParams function = {note, &noted};
    CHECK(cudaGraphAddHostNode(&host, graph, &kernel, 1, &function));
    CHECK(cudaGraphAddEventRecordNode(&record, graph, &kernel, 1, event));
    CHECK(cudaGraphAddEventWaitNode(&wait, graph, &record, 1, event));
    check_lists(graph, fill, kernel, 9, 8);

    cudaGraphExec_t executable;
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    CHECK(cudaGraphLaunch(executable, 0));
    CHECK(cudaDeviceSynchronize());
    require(result[N - 1] == 1012 && copied[0] == 1012 && noted == 1, "filled, added, and added in the child");
    CHECK(cudaEventQuery(event));

    // What nodes say of themselves.
    cudaGraphNodeType type;
    cudaGraphNode_t all[] = {kernel, copy, fill, host, child, record, wait};
    cudaGraphNodeType types[] = {cudaGraphNodeTypeKernel, cudaGraphNodeTypeMemcpy, cudaGraphNodeTypeMemset,
                                 cudaGraphNodeTypeHost, cudaGraphNodeTypeGraph, cudaGraphNodeTypeEventRecord,
                                 cudaGraphNodeTypeWaitEvent};
    for (int i = 0; i < 7; i++) {
        CHECK(cudaGraphNodeGetType(all[i], &type));
        require(type == types[i], "type");
    }
    cudaKernelNodeParams shown;
    CHECK(cudaGraphKernelNodeGetParams(kernel, &shown));
    require(shown.blockDim.x == N && *(int*)shown.kernelParams[1] == 5 && *(int**)shown.kernelParams[0] == data,
            "a kernel's parameters");
    CHECK(cudaGraphKernelNodeSetParams(kernel, &shown));
    cudaMemcpy3DParms shown_copy;
    CHECK(cudaGraphMemcpyNodeGetParams(copy, &shown_copy));
    require(shown_copy.extent.width == bytes && shown_copy.srcPtr.ptr == data && shown_copy.kind == cudaMemcpyDeviceToHost,
            "a copy's parameters");
    cudaMemsetParams shown_fill;
    CHECK(cudaGraphMemsetNodeGetParams(fill, &shown_fill));
    require(!std::memcmp(&shown_fill.width, &memset.width, sizeof memset.width) && shown_fill.value == 7 &&
            shown_fill.elementSize == 4 && shown_fill.dst == data, "a fill's parameters");
    cudaHostNodeParams shown_host;
    CHECK(cudaGraphHostNodeGetParams(host, &shown_host));
    require(shown_host.fn == note && shown_host.userData == &noted, "a host function's parameters");
    cudaEvent_t shown_event;
    CHECK(cudaGraphEventRecordNodeGetEvent(record, &shown_event));
    require(shown_event == event, "an event");
    cudaGraph_t shown_graph;
    size_t count;
    CHECK(cudaGraphChildGraphNodeGetGraph(child, &shown_graph));
    CHECK(cudaGraphGetNodes(shown_graph, nullptr, &count));
    require(count == 1, "a child's nodes");

    // Changes of what can be launched.
    CHECK(cudaGraphNodeSetEnabled(executable, kernel, 0));
    memset.value = 1;
    CHECK(cudaGraphExecMemsetNodeSetParams(executable, fill, &memset));
    CHECK(cudaGraphExecEventRecordNodeSetEvent(executable, record, other));
    require(cudaEventElapsedTime(nullptr, event, other) != cudaSuccess, "not recorded yet");
    CHECK(cudaGraphLaunch(executable, 0));
    CHECK(cudaDeviceSynchronize());
    require(result[0] == 1001, "disabled, and filled otherwise");
    unsigned enabled = 1;
    CHECK(cudaGraphNodeGetEnabled(executable, kernel, &enabled));
    require(!enabled, "disabled");
    CHECK(cudaGraphNodeSetEnabled(executable, kernel, 1));
    require(cudaGraphExecMemsetNodeSetParams(executable, kernel, &memset) == cudaErrorInvalidValue, "another type");

    // A clone, changed, and its changes in what can be launched.
    cudaGraph_t clone;
    cudaGraphNode_t cloned;
    CHECK(cudaGraphClone(&clone, graph));
    CHECK(cudaGraphNodeFindInClone(&cloned, kernel, clone));
    require(cloned != kernel, "the clone's node is its own");
    value = 20;
    launch.kernelParams = outer;
    CHECK(cudaGraphKernelNodeSetParams(cloned, &launch));
    cudaGraphExecUpdateResultInfo info;
    CHECK(cudaGraphExecUpdate(executable, clone, &info));
    require(info.result == cudaGraphExecUpdateSuccess, "updated");
    CHECK(cudaGraphLaunch(executable, 0));
    CHECK(cudaDeviceSynchronize());
    require(result[3] == 7 + 20 + 1000, "the clone's value");
    CHECK(cudaGraphExecKernelNodeSetParams(executable, kernel, &shown));
    CHECK(cudaGraphNodeFindInClone(&cloned, host, clone));
    CHECK(cudaGraphDestroyNode(cloned));
    require(cudaGraphExecUpdate(executable, clone, &info) == cudaErrorGraphExecUpdateFailure &&
            info.result == cudaGraphExecUpdateErrorTopologyChanged, "a node less");
    CHECK(cudaGraphLaunch(executable, 0));
    CHECK(cudaDeviceSynchronize());
    require(result[3] == 1012 && noted == 4, "as before");

    // Nodes by the function for all types; dependencies that change the order.
    cudaGraph_t order;
    CHECK(cudaGraphCreate(&order, 0));
    cudaGraphNodeParams any = {cudaGraphNodeTypeMemset};
    any.memset = {data, 0, 100, 4, N, 1};
    cudaGraphNode_t late, early, end;
    CHECK(cudaGraphAddNode(&late, order, nullptr, nullptr, 0, &any));
    any = {cudaGraphNodeTypeMemset};
    any.memset = {data, 0, 200, 4, N, 1};
    CHECK(cudaGraphAddNode(&early, order, nullptr, nullptr, 0, &any));
    any = {cudaGraphNodeTypeMemcpy};
    any.memcpy.copyParams = linear(result, data, bytes, cudaMemcpyDefault);
    CHECK(cudaGraphAddNode(&end, order, nullptr, nullptr, 0, &any));
    CHECK(cudaGraphAddDependencies(order, &early, &late, nullptr, 1));
    CHECK(cudaGraphAddDependencies(order, &late, &end, nullptr, 1));
    require(cudaGraphAddDependencies(order, &late, &end, nullptr, 1) == cudaErrorInvalidValue, "there already");
    CHECK(cudaGraphInstantiate(&executable, order, 0));
    CHECK(cudaGraphLaunch(executable, 0));
    CHECK(cudaDeviceSynchronize());
    require(result[0] == 100, "the later node first");
    CHECK(cudaGraphAddDependencies(order, &end, &early, nullptr, 1));
    require(cudaGraphInstantiate(&executable, order, 0) == cudaErrorInvalidValue, "a circle");
    CHECK(cudaGraphRemoveDependencies(order, &end, &early, nullptr, 1));
    CHECK(cudaGraphInstantiate(&executable, order, 0));

    // Launch attributes of nodes.
    cudaKernelNodeAttrValue attribute = {};
    attribute.cooperative = 1;
    CHECK(cudaGraphKernelNodeSetAttribute(kernel, cudaLaunchAttributeCooperative, &attribute));
    CHECK(cudaGraphKernelNodeSetParams(kernel, &shown));
    attribute = {};
    CHECK(cudaGraphKernelNodeGetAttribute(kernel, cudaLaunchAttributeCooperative, &attribute));
    require(attribute.cooperative == 1, "an attribute");
    attribute = {};
    attribute.clusterDim = {1, 1, 1};
    CHECK(cudaGraphKernelNodeSetAttribute(inside_of(shown_graph), cudaLaunchAttributeClusterDimension, &attribute));
    CHECK(cudaGraphKernelNodeCopyAttributes(inside_of(shown_graph), kernel));
    attribute = {};
    CHECK(cudaGraphKernelNodeGetAttribute(inside_of(shown_graph), cudaLaunchAttributeCooperative, &attribute));
    require(attribute.cooperative == 1, "a copied attribute");
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    CHECK(cudaGraphLaunch(executable, 0));
    CHECK(cudaDeviceSynchronize());

    // Conditional nodes are refused by name.
    any = {cudaGraphNodeTypeConditional};
    require(cudaGraphAddNode(&end, order, nullptr, nullptr, 0, &any) == cudaErrorNotSupported, "a conditional node");
    std::puts("graph_nodes: right");
}
