// Memory that graphs allocate: by nodes, and by calls that are captured; captured dependencies. -DBROKEN: reads it before it
// is written.
#include "check.h"

const int N = 64;

__global__ void set(int* to, int value) { to[threadIdx.x] = value + threadIdx.x; }
__global__ void add(int* to, const int* from) { to[threadIdx.x] += from[threadIdx.x]; }

static void captured() {
    int* out;
    int result[N];
    CHECK(cudaMalloc(&out, sizeof result));
    CHECK(cudaMemset(out, 0, sizeof result));
    cudaStream_t one, two;
    cudaEvent_t fork, join;
    CHECK(cudaStreamCreate(&one));
    CHECK(cudaStreamCreate(&two));
    CHECK(cudaEventCreate(&fork));
    CHECK(cudaEventCreate(&join));
    CHECK(cudaStreamBeginCapture(one, cudaStreamCaptureModeGlobal));
    int* part;
    CHECK(cudaMallocAsync(&part, sizeof result, one));
    CHECK(cudaEventRecord(fork, one));
    CHECK(cudaStreamWaitEvent(two, fork, 0));
#ifndef BROKEN
    set<<<1, N, 0, two>>>(part, 10);
#endif
    CHECK(cudaEventRecord(join, two));
    CHECK(cudaStreamWaitEvent(one, join, 0));
    cudaStreamCaptureStatus status;
    const cudaGraphNode_t* before;
    size_t count;
    cudaGraph_t graph;
    CHECK(cudaStreamGetCaptureInfo(one, &status, nullptr, &graph, &before, nullptr, &count));
    cudaGraphNodeType type;
#ifndef BROKEN
    require(count == 2, "after the allocation and the kernel");
    CHECK(cudaGraphNodeGetType(before[1], &type));
    require(type == cudaGraphNodeTypeKernel, "the kernel");
#endif
    CHECK(cudaGraphNodeGetType(before[0], &type));
    require(type == cudaGraphNodeTypeMemAlloc, "the allocation");
    add<<<1, N, 0, one>>>(out, part);
    CHECK(cudaFreeAsync(part, one));
    CHECK(cudaStreamEndCapture(one, &graph));
    cudaGraphExec_t executable;
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    for (int launch = 0; launch < 3; launch++) CHECK(cudaGraphLaunch(executable, one));
    CHECK(cudaMemcpy(result, out, sizeof result, cudaMemcpyDeviceToHost));
    require(result[5] == 45, "three launches");
}

static void nodes() {
    cudaGraph_t graph;
    CHECK(cudaGraphCreate(&graph, 0));
    cudaMemAllocNodeParams memory = {};
    memory.poolProps.allocType = cudaMemAllocationTypePinned;
    memory.poolProps.location = {cudaMemLocationTypeDevice, 0};
    memory.bytesize = N * sizeof(int);
    cudaGraphNode_t allocate, kernel, release;
    CHECK(cudaGraphAddMemAllocNode(&allocate, graph, nullptr, 0, &memory));
    require(memory.dptr != nullptr, "an address");
    cudaMemAllocNodeParams shown;
    CHECK(cudaGraphMemAllocNodeGetParams(allocate, &shown));
    require(shown.dptr == memory.dptr && shown.bytesize == memory.bytesize, "an allocation's parameters");
    int value = 3, result[N];
    void* arguments[] = {&memory.dptr, &value};
    cudaKernelNodeParams launch = {};
    launch.func = (void*)set;
    launch.gridDim = 1;
    launch.blockDim = N;
    launch.kernelParams = arguments;
    CHECK(cudaGraphAddKernelNode(&kernel, graph, &allocate, 1, &launch));
    // Memory that a graph leaves is freed by the program, by a node, or by the next launch.
    cudaGraphExec_t left, automatic, freed;
    CHECK(cudaGraphInstantiate(&left, graph, 0));
    CHECK(cudaGraphLaunch(left, 0));
    CHECK(cudaMemcpy(result, memory.dptr, sizeof result, cudaMemcpyDeviceToHost));
    require(result[4] == 7, "memory that is left");
    require(cudaGraphLaunch(left, 0) == cudaErrorInvalidValue, "it is there already");
    require(cudaGetLastError() == cudaErrorInvalidValue, "the error");
    unsigned long long used = 0, most = 0, none = 0;
    CHECK(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrUsedMemCurrent, &used));
    require(used == memory.bytesize, "memory of graphs");
    CHECK(cudaFree(memory.dptr));
    CHECK(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrUsedMemCurrent, &used));
    CHECK(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrUsedMemHigh, &most));
    require(used == 0 && most == memory.bytesize, "memory of graphs, freed");
    CHECK(cudaDeviceSetGraphMemAttribute(0, cudaGraphMemAttrUsedMemHigh, &none));
    CHECK(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrUsedMemHigh, &most));
    require(most == 0, "set back");
    CHECK(cudaDeviceGraphMemTrim(0));
    CHECK(cudaGraphLaunch(left, 0));
    CHECK(cudaFreeAsync(memory.dptr, 0));
    CHECK(cudaGraphInstantiate(&automatic, graph, cudaGraphInstantiateFlagAutoFreeOnLaunch));
    unsigned long long flags;
    CHECK(cudaGraphExecGetFlags(automatic, &flags));
    require(flags == cudaGraphInstantiateFlagAutoFreeOnLaunch, "flags");
    CHECK(cudaGraphLaunch(automatic, 0));
    CHECK(cudaGraphLaunch(automatic, 0));
    CHECK(cudaFree(memory.dptr));
    CHECK(cudaGraphAddMemFreeNode(&release, graph, &kernel, 1, memory.dptr));
    void* released;
    CHECK(cudaGraphMemFreeNodeGetParams(release, &released));
    require(released == memory.dptr, "a free's parameters");
    CHECK(cudaGraphInstantiate(&freed, graph, 0));
    CHECK(cudaGraphLaunch(freed, 0));
    CHECK(cudaGraphLaunch(freed, 0));
    require(cudaMemcpy(result, memory.dptr, sizeof result, cudaMemcpyDeviceToHost) != cudaSuccess, "it is freed");
}

// Nodes and a capture in one graph.
static void both() {
    int *data, result[N];
    CHECK(cudaMalloc(&data, sizeof result));
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    cudaGraph_t graph, same;
    CHECK(cudaGraphCreate(&graph, 0));
    cudaGraphNode_t fill, root;
    cudaMemsetParams memset = {data, 0, 1, 4, N, 1};
    CHECK(cudaGraphAddMemsetNode(&fill, graph, nullptr, 0, &memset));
    CHECK(cudaGraphAddEmptyNode(&root, graph, nullptr, 0));
    CHECK(cudaStreamBeginCaptureToGraph(stream, graph, &root, nullptr, 1, cudaStreamCaptureModeGlobal));
    CHECK(cudaStreamUpdateCaptureDependencies(stream, &fill, nullptr, 1, cudaStreamAddCaptureDependencies));
    add<<<1, N, 0, stream>>>(data, data);
    CHECK(cudaStreamEndCapture(stream, &same));
    require(same == graph, "the graph itself");
    cudaGraphNode_t from[8], to[8];
    size_t count = 8;
    CHECK(cudaGraphGetEdges(graph, from, to, nullptr, &count));
    require(count == 2 && from[0] == root && from[1] == fill, "both are before it");
    cudaGraphExec_t executable;
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    CHECK(cudaGraphLaunch(executable, stream));
    CHECK(cudaMemcpy(result, data, sizeof result, cudaMemcpyDeviceToHost));
    require(result[9] == 2, "filled and doubled");
}

// A stream whose captured work nobody waits for.
static void unjoined() {
    int* data;
    CHECK(cudaMalloc(&data, N * sizeof(int)));
    cudaStream_t one, two;
    cudaEvent_t fork;
    cudaGraph_t graph;
    CHECK(cudaStreamCreate(&one));
    CHECK(cudaStreamCreate(&two));
    CHECK(cudaEventCreate(&fork));
    CHECK(cudaStreamBeginCapture(one, cudaStreamCaptureModeGlobal));
    set<<<1, N, 0, one>>>(data, 1);
    CHECK(cudaEventRecord(fork, one));
    CHECK(cudaStreamWaitEvent(two, fork, 0));
    set<<<1, N, 0, two>>>(data, 2);
    require(cudaStreamEndCapture(one, &graph) == cudaErrorStreamCaptureUnjoined, "not joined");
    cudaStreamCaptureStatus status;
    CHECK(cudaStreamIsCapturing(two, &status));
    require(status == cudaStreamCaptureStatusNone, "the capture is over");
}

int main() {
    unjoined();
    captured();
    nodes();
    both();
    std::puts("graph_memory: right");
}
