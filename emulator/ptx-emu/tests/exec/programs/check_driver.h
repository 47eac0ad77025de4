// Ends a program of the driver's interface with the name of an error.
#pragma once
#include <cuda.h>

#include "require.h"

#define CHECK(call)                               \
    do {                                          \
        CUresult error = (call);                  \
        if (error != CUDA_SUCCESS) {              \
            const char* name;                     \
            cuGetErrorName(error, &name);         \
            std::printf("%s: %s\n", #call, name); \
            std::exit(3);                         \
        }                                         \
    } while (0)
