// Compares row_sums with sums of the host. The values are whole numbers, so that any order of additions
// gives the same.
#include "row_sums.cuh"
#include <cstdio>
#include <vector>

static bool ok(cudaError_t error) {
    if (error != cudaSuccess) std::printf("%s\n", cudaGetErrorString(error));
    return error == cudaSuccess;
}

int main() {
    const int rows = 5, columns = 300;
    std::vector<float> matrix(rows * columns), expected(rows), actual(rows);
    for (int row = 0; row < rows; row++) {
        for (int column = 0; column < columns; column++) {
            const float value = float((row * 31 + column * 7) % 17 - 8);
            matrix[row * columns + column] = value;
            expected[row] += value;
        }
    }
    float *from, *to;
    const size_t bytes = matrix.size() * sizeof(float);
    if (!ok(cudaMalloc(&from, bytes)) || !ok(cudaMalloc(&to, rows * sizeof(float)))) return 2;
    if (!ok(cudaMemcpy(from, matrix.data(), bytes, cudaMemcpyHostToDevice))) return 2;
    row_sums<<<rows, THREADS>>>(from, to, columns);
    if (!ok(cudaMemcpy(actual.data(), to, rows * sizeof(float), cudaMemcpyDeviceToHost))) return 2;
    for (int row = 0; row < rows; row++) {
        if (actual[row] != expected[row]) {
            std::printf("row %d: expected %g, actual %g\n", row, expected[row], actual[row]);
            return 1;
        }
    }
    std::printf("row_sums: right\n");
    return 0;
}
