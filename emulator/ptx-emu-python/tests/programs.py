"""PTX programs of the tests."""

from pathlib import Path

import ptx_emu

#: The checkout.
ROOT = Path(__file__).resolve().parents[3]
#: c[i] = a[i] + b[i] for i < n; parameters a, b, c (u64) and n (u32).
ADD = ROOT / "emulator/ptx-emu/examples/add.ptx"
#: Kernels that Triton compiled, and the script that did.
TRITON = ROOT / "emulator/ptx-emu-core/tests/findings/triton"


def kernel(parameters, body, registers="", target="sm_90a", module=""):
    """A module with one kernel `k`, which has `%t` (the thread's number in the grid) and registers
    %r, %f (32 bits), %h (16), %d (64) and %p."""
    return f"""
        .version 9.0
        .target {target}
        .address_size 64
        {module}
        .visible .entry k({parameters})
        {{
            .reg .pred %p<8>; .reg .b16 %h<16>; .reg .b32 %r<32>; .reg .f32 %f<16>; .reg .b64 %d<32>;
            .reg .b32 %t; {registers}
            mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ntid.x; mov.u32 %t, %tid.x;
            mad.lo.u32 %t, %r0, %r1, %t;
            {body}
            ret;
        }}"""


#: y[i] = a x[i] + y[i]
SAXPY = kernel(
    ".param .f32 a, .param .u64 x, .param .u64 y, .param .u32 n",
    """
    ld.param.f32 %f0, [a]; ld.param.u64 %d0, [x]; ld.param.u64 %d1, [y]; ld.param.u32 %r2, [n];
    setp.ge.u32 %p0, %t, %r2;
    @%p0 ret;
    mad.wide.u32 %d0, %t, 4, %d0; mad.wide.u32 %d1, %t, 4, %d1;
    ld.global.f32 %f1, [%d0]; ld.global.f32 %f2, [%d1];
    fma.rn.f32 %f2, %f0, %f1, %f2;
    st.global.f32 [%d1], %f2;
    """,
)

#: y[i] = a x[i] of f16, a scalar of 16 bits.
HALF = kernel(
    ".param .b16 a, .param .u64 x, .param .u64 y",
    """
    ld.param.b16 %h0, [a]; ld.param.u64 %d0, [x]; ld.param.u64 %d1, [y];
    mad.wide.u32 %d0, %t, 2, %d0; mad.wide.u32 %d1, %t, 2, %d1;
    ld.global.b16 %h1, [%d0];
    mul.rn.f16 %h1, %h0, %h1;
    st.global.b16 [%d1], %h1;
    """,
)

#: out[cta] = the sum of the CTA's elements, one per thread, in dynamic shared memory.
REDUCE = """
    .reg .b32 %x; .reg .b32 %s;
    ld.param.u64 %d0, [x]; ld.param.u64 %d1, [out];
    mov.u32 %x, %tid.x; mov.u32 %s, buffer;
    mad.lo.u32 %s, %x, 4, %s;
    mad.wide.u32 %d0, %t, 4, %d0;
    ld.global.u32 %r2, [%d0];
    st.shared.u32 [%s], %r2;
    bar.sync 0;
    shr.u32 %r3, %r1, 1;
NEXT:
    setp.ge.u32 %p0, %x, %r3;
    @%p0 bra DONE;
    mad.lo.u32 %r4, %r3, 4, %s;
    ld.shared.u32 %r5, [%r4];
    ld.shared.u32 %r6, [%s];
    add.u32 %r6, %r6, %r5;
    st.shared.u32 [%s], %r6;
DONE:
    BARRIER
    shr.u32 %r3, %r3, 1;
    setp.ne.u32 %p1, %r3, 0;
    @%p1 bra NEXT;
    setp.ne.u32 %p0, %x, 0;
    @%p0 ret;
    ld.shared.u32 %r6, [buffer];
    mad.wide.u32 %d1, %r0, 4, %d1;
    st.global.u32 [%d1], %r6;
"""


def reduction(barrier="bar.sync 0;"):
    """The reduction with its barrier between steps, or with something else in its place: without it,
    CTAs of more than two warps have a race."""
    return kernel(
        ".param .u64 x, .param .u64 out",
        REDUCE.replace("BARRIER", barrier),
        module=".extern .shared .align 4 .b8 buffer[];",
    )


#: out[0] = s.count (u32 at 0), out[1] = *s.data (u64 at 8)
STRUCT = kernel(
    ".param .align 8 .b8 s[16], .param .u64 out",
    """
    ld.param.u32 %r2, [s]; ld.param.u64 %d0, [s+8]; ld.param.u64 %d1, [out];
    setp.eq.u64 %p0, %d0, 0;
    mov.u32 %r3, 77;
    @!%p0 ld.global.u32 %r3, [%d0];
    st.global.u32 [%d1], %r2; st.global.u32 [%d1+4], %r3;
    """,
)

#: out[i] += 1 of u32
INCREMENT = kernel(
    ".param .u64 out",
    """
    ld.param.u64 %d0, [out];
    mad.wide.u32 %d0, %t, 4, %d0;
    ld.global.u32 %r2, [%d0]; add.u32 %r2, %r2, 1; st.global.u32 [%d0], %r2;
    """,
)


def scalar(declared, bits):
    """A kernel that stores its parameter `v` of a type to out."""
    return kernel(
        f".param .{declared} v, .param .u64 out",
        f"""
        .reg .b{bits} %v;
        ld.param.b{bits} %v, [v]; ld.param.u64 %d0, [out]; st.global.b{bits} [%d0], %v;
        """,
    )


def explained(kind):
    """The program on a finding's page, which has it, and its twin, which has not."""
    program = ptx_emu.explain(kind).split("```")[1].splitlines()
    twin = []
    for line in program:
        if not line.rstrip().endswith("//-"):
            twin.append(line.replace("//+", "   "))
    return "\n".join(program), "\n".join(twin)
