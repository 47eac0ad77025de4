// Ends the program with the text of an error.
#pragma once
#include <cuda_runtime.h>

#include "require.h"

#define CHECK(call)                                                             \
    do {                                                                        \
        cudaError_t error = (call);                                             \
        if (error != cudaSuccess) {                                             \
            std::printf("%s: %s\n", #call, cudaGetErrorString(error));          \
            std::exit(3);                                                       \
        }                                                                       \
    } while (0)
