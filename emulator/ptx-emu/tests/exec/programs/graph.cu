// Two streams captured in a graph, which is launched three times.
#include "check.h"

const int N = 256;

__global__ void add(int* data, int value) { data[threadIdx.x] += value; }

static void CUDART_CB note(void* argument) { ++*(int*)argument; }

int main() {
    int *a, *b, host[N], result[N], noted = 0;
    for (int i = 0; i < N; i++) host[i] = i;
    CHECK(cudaMalloc(&a, sizeof host));
    CHECK(cudaMalloc(&b, sizeof host));
    cudaStream_t one, two;
    cudaEvent_t fork, join;
    CHECK(cudaStreamCreate(&one));
    CHECK(cudaStreamCreate(&two));
    CHECK(cudaEventCreate(&fork));
    CHECK(cudaEventCreate(&join));
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    CHECK(cudaMemset(b, 0, sizeof host));
    CHECK(cudaStreamBeginCapture(one, cudaStreamCaptureModeGlobal));
    CHECK(cudaMemcpyAsync(a, host, sizeof host, cudaMemcpyHostToDevice, one));
    CHECK(cudaEventRecord(fork, one));
    CHECK(cudaStreamWaitEvent(two, fork, 0));
    add<<<1, N, 0, two>>>(b, 100);
    add<<<1, N, 0, one>>>(a, 1);
    CHECK(cudaLaunchHostFunc(one, note, &noted));
    CHECK(cudaEventRecord(join, two));
    CHECK(cudaStreamWaitEvent(one, join, 0));
    CHECK(cudaStreamEndCapture(one, &graph));
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    CHECK(cudaMemcpy(result, b, sizeof host, cudaMemcpyDeviceToHost));
    require(noted == 0 && result[0] == 0, "nothing runs while it is captured");
    for (int launch = 0; launch < 3; launch++) {
        host[7] = 10 * launch;
        CHECK(cudaGraphLaunch(executable, one));
        CHECK(cudaStreamSynchronize(one));
        CHECK(cudaMemcpy(result, a, sizeof host, cudaMemcpyDeviceToHost));
        require(result[7] == 10 * launch + 1 && result[8] == 9, "copied and added");
    }
    CHECK(cudaMemcpy(result, b, sizeof host, cudaMemcpyDeviceToHost));
    require(result[0] == 300 && noted == 3, "three launches");
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphDestroy(graph));
    std::puts("graph: right");
}
