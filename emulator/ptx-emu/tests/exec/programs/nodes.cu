// A graph whose nodes are added one by one, and changed before the second launch.
#include "check.h"

const int N = 64;

__global__ void add(int* data, int value) { data[threadIdx.x] += value; }

static void CUDART_CB note(void* argument) { ++*(int*)argument; }

int main() {
    int *data, value = 5, result[N], noted = 0;
    CHECK(cudaMalloc(&data, sizeof result));
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    cudaGraphNode_t fill, kernel, copy, host, join;
    CHECK(cudaGraphCreate(&graph, 0));
    cudaMemsetParams memset = {};
    memset.dst = data;
    memset.value = 7;
    memset.elementSize = 4;
    memset.width = N;
    memset.height = 1;
    CHECK(cudaGraphAddMemsetNode(&fill, graph, nullptr, 0, &memset));
    void* arguments[] = {&data, &value};
    cudaKernelNodeParams launch = {};
    launch.func = (void*)add;
    launch.gridDim = 1;
    launch.blockDim = N;
    launch.kernelParams = arguments;
    CHECK(cudaGraphAddKernelNode(&kernel, graph, &fill, 1, &launch));
    CHECK(cudaGraphAddMemcpyNode1D(&copy, graph, &kernel, 1, result, data, sizeof result,
                                   cudaMemcpyDeviceToHost));
    cudaHostNodeParams function = {note, &noted};
    CHECK(cudaGraphAddHostNode(&host, graph, &kernel, 1, &function));
    CHECK(cudaGraphAddEmptyNode(&join, graph, nullptr, 0));
    CHECK(cudaGraphAddDependencies(graph, &host, &join, nullptr, 1));
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    CHECK(cudaGraphLaunch(executable, 0));
    CHECK(cudaDeviceSynchronize());
    for (int i = 0; i < N; i++) require(result[i] == 12, "filled and added");
    value = 100;
    CHECK(cudaGraphExecKernelNodeSetParams(executable, kernel, &launch));
    CHECK(cudaGraphLaunch(executable, 0));
    CHECK(cudaDeviceSynchronize());
    require(result[N - 1] == 107 && noted == 2, "another value");
    CHECK(cudaGraphAddDependencies(graph, &join, &fill, nullptr, 1));
    require(cudaGraphInstantiate(&executable, graph, 0) == cudaErrorInvalidValue, "a circle");
    std::puts("nodes: right");
}
