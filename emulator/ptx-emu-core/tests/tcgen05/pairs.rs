//! CTA pairs, and who is signalled: products issued by either CTA, allocation and commit
//! through every kind of address.

use crate::async_support::Case;
use crate::tensor_cores::tmem::{CELLS, Program, Tmem};
use crate::tensor_cores::{Layout, Matrix, Random, Sum, Ty, dot, words};
use ptx_emu_core::Schedule;

const SOME: [Schedule; 4] =
    [Schedule::Eager, Schedule::Lazy, Schedule::Random(1), Schedule::Random(2)];

/// A product of f16 into zeros, and tensor memory behind it.
fn product(group: usize) -> (Program, Vec<Tmem>) {
    let mut random = Random::new(8);
    let (rows, n) = (128, 32);
    let b = Matrix::new(Ty::F16, n, 16, &mut random);
    let (la, lb) = (
        Layout::new(Ty::F16, false, 128, rows, 0),
        Layout::new(Ty::F16, false, 128, n / group, 32768),
    );
    let (mut images, mut tmem, mut expected) = (Vec::new(), Vec::new(), Vec::new());
    for rank in 0..group {
        let a = Matrix::new(Ty::F16, rows, 16, &mut random);
        let columns = rank * n / group * 16..(rank + 1) * n / group * 16;
        let own = Matrix { rows: n / group, codes: b.codes[columns].to_vec(), ..b };
        let mut image = Vec::new();
        la.store(&a, &mut image);
        lb.store(&own, &mut image);
        images.push(image);
        let before = Tmem::distinct(rank as u32);
        let mut after = before.clone();
        for (row, column) in (0..rows).flat_map(|row| (0..n).map(move |column| (row, column))) {
            let sum = dot(&a, &b, (row, column), 0..16, |_| (1.0, 1.0));
            after.put(row, column, Sum::F32.round(sum));
        }
        tmem.push(before);
        expected.push(after);
    }
    let shape = 1 << 4 | (n / 8) << 17 | (rows * group / 16) << 24;
    let issue = format!(
        "mov.b64 %d10, {:#x}; mov.b64 %d11, {:#x}; mov.b32 %r10, {shape:#x};
        setp.ne.u32 %p5, 0, 0;
        tcgen05.mma.cta_group::{group}.kind::f16 [%r50], %d10, %d11, %r10, %p5;\n",
        la.descriptor(1024, true),
        lb.descriptor(1024, true),
    );
    (Program::new(group, images, tmem, issue), expected)
}

/// Runs a program with some of its text replaced.
#[track_caller]
fn edited(program: &Program, expected: &[Tmem], edits: &[(&str, &str)]) {
    let mut case = program.case();
    for (from, to) in edits {
        assert!(case.body.contains(from), "{from}");
        case.body = case.body.replace(from, to);
    }
    for schedule in SOME {
        let (out, _) = case.launch(schedule).unwrap_or_else(|error| panic!("{edits:?}: {error}"));
        for (rank, (actual, expected)) in words(&out).chunks(CELLS).zip(expected).enumerate() {
            assert!(actual == expected.0, "{edits:?}, {schedule}, CTA {rank}");
        }
    }
}

#[test]
fn either_cta_of_a_pair_issues() {
    let (program, expected) = product(2);
    edited(&program, &expected, &[]);
    edited(&program, &expected, &[("setp.ne.u32 %p2, %rank, 0;", "setp.ne.u32 %p2, %rank, 1;")]);
}

#[test]
fn addresses_of_commit_and_alloc() {
    let (program, expected) = product(1);
    let form = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%b];";
    let generic = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64";
    edited(&program, &expected, &[(form, &format!("{generic} [%b];"))]);
    let cast = "cvt.u64.u32 %d20, %b; cvta.shared.u64 %d20, %d20;";
    edited(&program, &expected, &[(form, &format!("{cast} {generic} [%d20];"))]);
    let alloc = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r49], 512;";
    let cast = "cvt.u64.u32 %d20, %r49; cvta.shared.u64 %d20, %d20;";
    let generic = "tcgen05.alloc.cta_group::1.sync.aligned.b32 [%d20], 512;";
    edited(&program, &expected, &[(alloc, &format!("{cast} {generic}"))]);
    let wide = "mov.u32 %r48, 512;
        tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%b+8], %r48;";
    edited(&program, &expected, &[(alloc, wide)]);
}

/// Two CTAs; the first one's shift is committed to `to`, and `waits` says who waits.
fn signals(commit: &str, waits: [bool; 2]) -> Case {
    let wait = |rank: usize| {
        if waits[rank] {
            format!(
                "setp.eq.u32 %p6, %rank, {rank};
                W{rank}: mbarrier.try_wait.parity.shared::cta.b64 %p7, [%b], 0;
                not.pred %p7, %p7; and.pred %p7, %p7, %p6; @%p7 bra W{rank};"
            )
        } else {
            String::new()
        }
    };
    let mut case = Case::new(&format!(
        "setp.eq.u32 %leader, %tid, 0;
        @%leader mbarrier.init.shared::cta.b64 [%b], 1; fence.mbarrier_init.release.cluster;
        add.u32 %r49, %b, 8;
        tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r49], 32;
        barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
        setp.eq.and.u32 %p5, %rank, 0, %leader; mapa.shared::cluster.u32 %r10, %b, 1;
        @!%p5 bra ISSUED; tcgen05.shift.cta_group::1.down [0]; {commit} ISSUED:
        {} {}
        barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
        tcgen05.dealloc.cta_group::1.sync.aligned.b32 0, 32;",
        wait(0),
        wait(1),
    ))
    .cluster(2);
    case.sm100 = true;
    case
}

#[test]
fn commits_tell_other_ctas() {
    let one = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64";
    let many =
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64";
    signals(&format!("{one} [%b];"), [true, false]).passes();
    signals(&format!("{one} [%r10];"), [false, true]).passes();
    signals(&format!("mov.u16 %h1, 2; {many} [%b], %h1;"), [false, true]).passes();
    signals(&format!("mov.u16 %h1, 3; {many} [%b], %h1;"), [true, true]).passes();
    // Nobody signalled the other one.
    for (commit, waits) in [
        (format!("{one} [%b];"), [false, true]),
        (format!("{one} [%r10];"), [true, false]),
        (format!("mov.u16 %h1, 1; {many} [%b], %h1;"), [true, true]),
    ] {
        for schedule in SOME {
            let text = signals(&commit, waits).fails(schedule).to_string();
            assert!(text.contains("deadlock"), "{text}");
        }
    }
}
