// Ends the program with what is wrong.
#pragma once
#include <cstdio>
#include <cstdlib>

inline void require(bool right, const char* what) {
    if (!right) {
        std::printf("wrong: %s\n", what);
        std::exit(4);
    }
}
