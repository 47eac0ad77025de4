//! An instruction loads for the targets and versions for which ptxas takes it, and for no others:
//! `tests/data/ptx/targets.txt`, one statement at a time.

use ptx_emu_core::{Gpu, LoadError, Module};

const TABLE: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/data/ptx/targets.txt"));

/// Versions of PTX, in order.
const VERSIONS: [&str; 22] = [
    "6.3", "6.4", "6.5", "7.0", "7.1", "7.2", "7.3", "7.4", "7.5", "7.6", "7.7", "7.8", "8.0",
    "8.1", "8.2", "8.3", "8.4", "8.5", "8.6", "8.7", "8.8", "9.0",
];

/// The beginnings of statements that are not modelled.
const NOT_MODELLED: [&str; 11] = [
    "alloca",
    "fence.acquire.sync_restrict",
    "fma.rn.oob",
    "membar.proxy",
    "multimem",
    "st.async.release.global",
    "stackrestore",
    "stacksave",
    "vabsdiff4",
    "vadd4",
    "vset4",
];

/// A kernel with the statement; the same as in `targets.py`.
fn module(version: &str, target: &str, statement: &str) -> String {
    let (mut directives, body) = match statement.strip_prefix('.') {
        Some(_) => (statement.trim_end_matches(';').to_owned(), ""),
        None => (".maxntid 128".to_owned(), statement),
    };
    if !directives.contains("ntid") {
        directives += " .maxntid 128";
    }
    if body.contains("setmaxnreg") {
        directives += " .maxnreg 64";
    }
    let wide = if body.contains("%q") { ".reg .b128 %q<4>;" } else { "" };
    format!(
        ".version {version}\n.target {target}\n.address_size 64
.func (.reg .b32 result) callee(.reg .b32 x) {{ mov.b32 result, x; ret; }}
.visible .entry k(.param .align 16 .b8 in[128]) {directives} {{
    .shared .align 1024 .b8 s[1024]; .shared .align 8 .b64 bar; .local .align 16 .b8 l[64];
    .param .align 16 .b8 arg[16]; .reg .pred %p<10>; .reg .b8 %b<9>; .reg .b16 %h<10>;
    .reg .b32 %r<140>; .reg .b64 %d<40>; {wide} {body} NEXT: ret; }}"
    )
}

/// A machine that runs the target.
fn machine(target: &str) -> Gpu {
    Gpu::for_module(&format!(".version 9.0\n.target {target}"))
}

/// Whether the target has the statement; an error if it has but is not modelled.
fn has(version: &str, target: &str, statement: &str, gpu: &Gpu) -> Result<bool, LoadError> {
    match Module::load(&module(version, target, statement), gpu) {
        Ok(_) => Ok(true),
        Err(LoadError::Unsupported(items))
            if items.iter().all(|item| item.why.starts_with("target for ")) =>
        {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

#[test]
fn instructions_load_for_the_targets_that_have_them() {
    let mut wrong = Vec::new();
    let mut lines = TABLE.lines();
    let columns = lines.by_ref().find_map(|line| line.strip_prefix("# sm_75 ")).expect("targets");
    let columns: Vec<&str> = std::iter::once("sm_75").chain(columns.split(' ')).collect();
    let mut firsts: Vec<&str> = Vec::new();
    let mut count = 0;
    for line in lines {
        let Some(statement) = line.strip_prefix("  ") else {
            firsts = line.split(' ').collect();
            assert_eq!(firsts.len(), columns.len(), "{line}");
            continue;
        };
        count += 1;
        for (target, first) in columns.iter().zip(&firsts) {
            let gpu = machine(target);
            let at = VERSIONS.iter().position(|version| version == first);
            let cases = match at {
                None => vec![("9.0", false)],
                // The version before need not have the target.
                Some(0) => vec![(*first, true)],
                Some(at) => vec![(*first, true), (VERSIONS[at - 1], false)],
            };
            for (version, expected) in cases {
                match has(version, target, statement, &gpu) {
                    Ok(found) if found == expected => {}
                    Err(LoadError::Version { .. }) if !expected => {}
                    Err(error) if NOT_MODELLED.iter().any(|name| statement.starts_with(name)) => {
                        assert!(matches!(error, LoadError::Unsupported(_)), "{error}");
                    }
                    found => {
                        wrong.push(format!("{statement} {target} {version}: {found:?}"));
                    }
                }
            }
        }
    }
    assert!(count > 600, "{count}");
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn later_machines_run_earlier_targets_alike() {
    let copy = "cp.async.cg.shared.global [s], [%d9], 16;";
    let wait = "mbarrier.try_wait.parity.shared.b64 %p1, [bar], 0;";
    for gpu in Gpu::ALL {
        assert_eq!(has("7.0", "sm_80", copy, &gpu), Ok(true), "{}", gpu.name);
        // The module's target counts, not the machine.
        assert_eq!(has("8.0", "sm_80", wait, &gpu), Ok(false), "{}", gpu.name);
        let runs = gpu.accepts("sm_90");
        assert_eq!(has("8.0", "sm_90", wait, &gpu).is_ok(), runs, "{}", gpu.name);
    }
}

/// Statements that came after the PTX of ptxas 13.0, with their first version by ptxas 13.5.37. They are in
/// no plain target, and in all of Blackwell's with a suffix, if not only in those of sm_120.
#[test]
fn later_versions_have_more_conversions_and_scales() {
    let product = "mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X\
        .f32.e2m1.e2m1.f32.ue8m0 {%r1, %r2, %r3, %r4}, {%r10, %r11, %r12, %r13}, {%r20, %r21}, \
        {%r1, %r2, %r3, %r4}, %r30, {0, 0}, %r31, {0, 0};";
    for (statement, first, everywhere) in [
        (product, "9.1", false),
        ("cvt.rn.satfinite.e2m1x2.bf16x2 %b1, %r1;", "9.1", true),
        ("cvt.rn.satfinite.relu.e2m3x2.bf16x2 %h1, %r1;", "9.1", true),
        ("cvt.rn.satfinite.e3m2x2.f16x2 %h1, %r1;", "9.1", true),
        ("cvt.rn.satfinite.e4m3x2.bf16x2 %h1, %r1;", "9.1", true),
        ("cvt.rn.bf16x2.e2m1x2 %r1, %b1;", "9.2", true),
        ("cvt.rn.relu.bf16x2.e2m3x2 %r1, %h1;", "9.2", true),
        ("cvt.rn.bf16x2.e4m3x2 %r1, %h1;", "9.2", true),
    ] {
        for (target, blackwell, twelve) in [
            ("sm_90a", false, false),
            ("sm_100", false, false),
            ("sm_100a", true, false),
            ("sm_100f", true, false),
            ("sm_103f", true, false),
            ("sm_120", false, false),
            ("sm_120a", true, true),
            ("sm_120f", true, true),
            ("sm_121f", true, true),
        ] {
            let expected = if everywhere { blackwell } else { twelve };
            let found = |version| has(version, target, statement, &machine(target));
            assert_eq!(found(first), Ok(expected), "{statement} {target}");
            let before = if first == "9.1" { "9.0" } else { "9.1" };
            assert_eq!(found(before), Ok(false), "{statement} {target}");
        }
    }
}

/// `wgmma` and `tcgen05` are not in compute capability 12, and the error says for which target.
#[test]
fn products_of_warpgroups_and_of_tensor_memory_are_no_part_of_sm_120() {
    for gpu in [Gpu::rtx5090(), Gpu::rtx_pro_6000(), Gpu::dgx_spark()] {
        for (statement, needs) in [
            ("wgmma.fence.sync.aligned;", "wgmma: required sm_90a with PTX 8.0"),
            (
                "tcgen05.fence::before_thread_sync;",
                "tcgen05: required sm_100a, sm_101a, sm_103a, sm_110a with PTX 8.6",
            ),
        ] {
            for target in [gpu.arch.to_owned(), gpu.arch.replace('a', "f")] {
                let text = module("9.0", &target, statement);
                let message = Module::load(&text, &gpu).expect_err(statement).to_string();
                assert!(message.contains(needs), "{message}");
                let actual = format!("actual {target} with PTX 9.0");
                assert!(message.ends_with(&actual), "{message}");
            }
        }
    }
}

#[test]
fn faults_name_the_instruction_and_its_targets() {
    let refused = |version: &str, target: &str, statement: &str| {
        let text = module(version, target, statement);
        Module::load(&text, &machine(target)).expect_err(statement).to_string()
    };
    let message = refused("7.1", "sm_86", "mapa.shared::cluster.u32 %r1, %r2, %r3;");
    assert!(message.contains("mapa.shared::cluster.u32 %r1, %r2, %r3;"), "{message}");
    assert!(
        message.ends_with(
            "target for mapa: required sm_90 or higher with PTX 7.8, actual sm_86 with PTX 7.1"
        ),
        "{message}"
    );
    let message = refused("7.0", "sm_86", "ret;");
    assert_eq!(message, ".version: required 7.1 or later for sm_86, actual 7.0");
    let message = refused("8.0", "sm_90", "wgmma.fence.sync.aligned;");
    assert!(
        message
            .ends_with("target for wgmma: required sm_90a with PTX 8.0, actual sm_90 with PTX 8.0"),
        "{message}"
    );
    let message = refused("9.0", "sm_90a", "cvt.rn.f16x2.e2m1x2 %r1, %b1;");
    assert!(
        message.contains("sm_100a, sm_101a, sm_103a, sm_110a, sm_120a, sm_121a with PTX 8.6, or"),
        "{message}"
    );
    let message = refused("8.0", "sm_89", ".reqnctapercluster 2, 1, 1;");
    assert!(message.contains("target for .reqnctapercluster: required sm_90"), "{message}");
    let message = refused("8.0", "sm_89", "mov.u32 %r1, %cluster_ctarank;");
    assert!(message.contains("target for %cluster_ctarank: required sm_90"), "{message}");
}
