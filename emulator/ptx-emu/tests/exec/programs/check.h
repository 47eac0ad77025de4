// Ends the program with the text of an error.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

#define CHECK(call)                                                             \
    do {                                                                        \
        cudaError_t error = (call);                                             \
        if (error != cudaSuccess) {                                             \
            std::printf("%s: %s\n", #call, cudaGetErrorString(error));          \
            std::exit(3);                                                       \
        }                                                                       \
    } while (0)

inline void require(bool right, const char* what) {
    if (!right) {
        std::printf("wrong: %s\n", what);
        std::exit(4);
    }
}
