#!/bin/sh
# llama.cpp's own code for CPUs generates from models that `nvfp4 quantize --layout gguf` writes, and transformers
# from the same values; and it makes tokens of texts with SentencePiece's tokenizers in them:
#     tests/exporters/llama_cpp/run.sh
# After `cargo xtask test --exporters`, whose models and environments it takes. It builds llama.cpp from the sources in
# the crate llama-cpp-sys-2, with CMake from PyPI and a C++ compiler, once, in target/exporters/llama.cpp: ten minutes
# of a processor.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
work=$root/target/exporters
build=$work/llama.cpp
crate=llama-cpp-sys-2 version=0.1.161
cmake=4.4.5

if [ ! -x "$build/greedy" ] || [ ! -x "$build/tokens" ]; then
    mkdir -p "$build/fetch/src"
    cd "$build/fetch"
    : > src/lib.rs
    printf '[package]\nname = "fetch"\nedition = "2024"\n[workspace]\n[dependencies]\n%s = "=%s"\n' \
        "$crate" "$version" > Cargo.toml
    cargo vendor --quiet vendor > /dev/null
    python3 -m venv --clear "$build/cmake"
    "$build/cmake/bin/pip" install --quiet --disable-pip-version-check "cmake==$cmake"
    sources=$build/fetch/vendor/$crate/llama.cpp
    off=""
    for part in APP COMMON EXAMPLES MTMD SERVER TESTS TOOLS UI; do off="$off -DLLAMA_BUILD_$part=OFF"; done
    # shellcheck disable=SC2086
    "$build/cmake/bin/cmake" -S "$sources" -B "$build/made" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
        -DGGML_CCACHE=OFF $off > "$build/build.log"
    "$build/cmake/bin/cmake" --build "$build/made" --target llama >> "$build/build.log"
    libraries=""
    for library in src/libllama ggml/src/libggml ggml/src/libggml-cpu ggml/src/libggml-base; do
        libraries="$libraries $build/made/$library.a"
    done
    for name in greedy tokens; do
        # shellcheck disable=SC2086
        g++ -O1 -std=c++17 -I "$sources/include" -I "$sources/ggml/include" "$here/$name.cpp" -o "$build/$name" \
            $libraries -lpthread -ldl -lgomp
    done
fi
program=$(cargo build --manifest-path "$root/Cargo.toml" --quiet --release -p nvfp4-lab --bin nvfp4 &&
    echo "$root/target/release/nvfp4")
python=$work/environments/current/bin/python
HF_HUB_OFFLINE=1 "$python" "$here/../vocabularies.py" --nvfp4 "$program" --work "$work/checkpoints/vocabularies" \
    --tokens "$build/tokens"
exec "$python" "$here/compare.py" --nvfp4 "$program" --greedy "$build/greedy" \
    --exports "$work/checkpoints/exports"
