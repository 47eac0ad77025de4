#!/bin/sh
# Fuzzes a target (loader, configuration, operands, gguf, mlx, tokenizer, orders) for some seconds with the stable compiler:
#     fuzz/run.sh TARGET [SECONDS] [libFuzzer's options]
# Inputs that reach new code are kept in fuzz/corpus/TARGET, those that fail in fuzz/artifacts.
set -eu
cd "$(dirname "$0")"
target=$1
seconds=${2:-60}
shift $(($# < 2 ? $# : 2))
host=$(rustc -vV | sed -n 's/^host: //p')
# What cargo-fuzz passes, without a sanitizer, which takes the nightly compiler.
export RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing"
cargo build --release --quiet --target "$host" --bin "$target"
mkdir -p "corpus/$target" "artifacts/$target"
# One thread, so that the same input always covers the same code.
RAYON_NUM_THREADS=1 exec "target/$host/release/$target" "corpus/$target" "seeds/$target" \
    -max_total_time="$seconds" -artifact_prefix="artifacts/$target/" -rss_limit_mb=2048 \
    -timeout=10 -print_final_stats=1 "$@"
