#!/usr/bin/env bash
# ptxas 13.0.88 takes cvt.rn.satfinite.e2m1x2.f16x2 from PTX 8.6 on, though PTX ISA has that source type from 9.1 on
# only. ptxas 13.5.37 refuses the same file, and takes the conversion if .version is 9.1 or later.
#
# So PTX that one assembler has accepted, at a .version that later ones still read, need not assemble with them, nor
# with the compiler in a later driver. Test a kernel's PTX with the newest ptxas, not only with the oldest.
# Seen, for sm_100a and sm_120a alike: 13.0.88 takes 8.7 and 9.0; 13.5.37 refuses both, and takes 9.1.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

install() { # VERSION: the path of its ptxas
    python3 -m venv "venv-$1"
    "venv-$1/bin/pip" install -q "nvidia-cuda-nvcc==$1"
    echo "venv-$1"/lib/python3*/site-packages/nvidia/cu13/bin/ptxas
}

answer() { # PTXAS TARGET VERSION: "taken" or "refused"
    cat > kernel.ptx <<PTX
.version $3
.target sm_$2
.address_size 64
.visible .entry convert(.param .u64 data) {
    .reg .b64 p;
    .reg .b32 x;
    .reg .b16 h;
    .reg .b8 b;
    ld.param.u64 p, [data];
    ld.global.b32 x, [p];
    cvt.rn.satfinite.e2m1x2.f16x2 b, x;
    cvt.u16.u8 h, b;
    st.global.b16 [p], h;
    ret;
}
PTX
    if "$1" -arch="sm_$2" kernel.ptx -o kernel.cubin > said 2>&1; then
        echo taken
    elif grep -q "cvt" said; then
        echo refused
    else
        cat said >&2
        exit 1
    fi
}

old=$(install 13.0.88)
new=$(install 13.5.37)
for target in 100a 120a; do
    for case in "8.7 $old taken" "9.0 $old taken" "8.7 $new refused" "9.0 $new refused" "9.1 $new taken"; do
        read -r version ptxas expected <<< "$case"
        actual=$(answer "$ptxas" "$target" "$version")
        echo "sm_$target, PTX $version, $("$ptxas" --version | grep -o 'V[0-9][0-9.]*'): $actual"
        [ "$actual" = "$expected" ] || { echo "was: $expected"; cat said; exit 1; }
    done
done
