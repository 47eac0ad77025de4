//! `--coverage`, and what test runs note for `ptx-emu coverage`: exact files, sums over launches
//! and schedules, launches that go wrong.

use ptx_emu::coverage::{Coverage, FOLDER};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Lines 5 to 16: `k` has a branch that no thread of 64 takes; a half of them stores. `other` is
/// not launched.
const PLAIN: &str = "\
.version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out) {
    .reg .b64 %o; .reg .b32 %t; .reg .pred %p, %q;
    ld.param.u64 %o, [out]; mov.u32 %t, %tid.x;
    mad.wide.u32 %o, %t, 4, %o;
    setp.ge.u32 %p, %t, 64; setp.lt.u32 %q, %t, 32;
    @%p bra $far;
    @%q st.global.u32 [%o], %t;
    @!%q st.global.u32 [%o], 7;
    ret;
$far:
    st.global.u32 [%o], 1;
    trap;
}
.visible .entry other() { ret; }
";

/// The coverage of 64 threads of `k`.
const PLAIN_INFO: &str = "\
TN:
SF:PTX
FN:6,k
FNDA:64,k
FNF:1
FNH:1
DA:6,64
DA:7,64
DA:8,64
DA:9,0
DA:10,32
DA:11,32
DA:12,64
DA:14,0
DA:15,0
LF:9
LH:6
end_of_record
";

/// Two files of source, and an instruction of neither.
const LOCATED: &str = "\
.version 9.0
.target sm_90a
.address_size 64
.file 1 \"a.cu\"
.file 2 \"b.cuh\"
.visible .entry k(.param .u64 out) {
    .reg .b64 %o; .reg .b32 %t; .reg .pred %p;
    ld.param.u64 %o, [out];
    .loc 1 10 5
    mov.u32 %t, %tid.x;
    .loc 2 3 1
    mad.wide.u32 %o, %t, 4, %o;
    .loc 1 11 5
    setp.ge.u32 %p, %t, 8;
    @%p bra $end;
    .loc 1 12 5
    st.global.u32 [%o], %t;
$end:
    .loc 1 10 1
    ret;
}
";

const LOCATED_INFO: &str = "\
TN:
SF:a.cu
FNF:0
FNH:0
DA:10,64
DA:11,64
DA:12,8
LF:3
LH:3
end_of_record
TN:
SF:b.cuh
FNF:0
FNH:0
DA:3,64
LF:1
LH:1
end_of_record
TN:
SF:k.ptx
FN:8,k
FNDA:64,k
FNF:1
FNH:1
DA:8,64
LF:1
LH:1
end_of_record
";

/// A folder with the module, its arguments and a place for files.
struct Scratch(PathBuf);

impl Scratch {
    fn new(test: &str, ptx: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("coverage-{test}"));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a folder");
        let scratch = Self(folder);
        std::fs::write(scratch.path("k.ptx"), ptx).expect("writable");
        let args = r#"[{"buffer": {"bytes": 256}}]"#;
        std::fs::write(scratch.path("args.json"), args).expect("writable");
        scratch
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Runs the program in the folder.
    fn run(&self, words: &str) -> Output {
        self.program(words).output().expect("the program starts")
    }

    fn program(&self, words: &str) -> Command {
        let mut program = Command::new(env!("CARGO_BIN_EXE_ptx-emu"));
        program.current_dir(&self.0).args(words.split_whitespace()).env_remove(FOLDER);
        program
    }

    fn info(&self) -> String {
        std::fs::read_to_string(self.path("out.info")).expect("written")
    }
}

const RUN: &str = "run k.ptx --entry k --args args.json --grid 1 --block 64 --coverage out.info";

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

/// Each count `times` as large.
fn multiplied(info: &str, times: u64) -> String {
    let line = |line: &str| match line.split_once([':', ',']) {
        Some(("FNDA", rest)) => {
            let (count, name) = rest.split_once(',').expect("a name");
            format!("FNDA:{},{name}\n", count.parse::<u64>().expect("a count") * times)
        }
        Some(("DA", rest)) => {
            let (at, count) = rest.split_once(',').expect("a count");
            format!("DA:{at},{}\n", count.parse::<u64>().expect("a count") * times)
        }
        _ => format!("{line}\n"),
    };
    info.lines().map(line).collect()
}

#[test]
fn a_branch_that_is_not_taken() {
    let scratch = Scratch::new("branch", PLAIN);
    let output = scratch.run(RUN);
    assert_eq!(code(&output), Some(0), "{output:?}");
    assert_eq!(scratch.info(), PLAIN_INFO.replace("PTX", "k.ptx"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("out.info: 6 of 9 lines are reached"), "{said}");
}

#[test]
fn lines_of_source() {
    let scratch = Scratch::new("source", LOCATED);
    let output = scratch.run(RUN);
    assert_eq!(code(&output), Some(0), "{output:?}");
    assert_eq!(scratch.info(), LOCATED_INFO);
}

#[test]
fn launches_and_schedules_add_up() {
    let scratch = Scratch::new("sums", PLAIN);
    assert_eq!(code(&scratch.run(RUN)), Some(0));
    assert_eq!(code(&scratch.run(RUN)), Some(0));
    let once = PLAIN_INFO.replace("PTX", "k.ptx");
    assert_eq!(scratch.info(), multiplied(&once, 2));
    // Eager, lazy and three seeds.
    let output = scratch.run(&format!("{RUN} --explore 3"));
    assert_eq!(code(&output), Some(0), "{output:?}");
    assert_eq!(scratch.info(), multiplied(&once, 7));
}

#[test]
fn bundles_one_by_one() {
    let scratch = Scratch::new("bundles", PLAIN);
    for name in ["all/1", "all/2"] {
        let mut bundle = crate::bundles::thread_indices(PLAIN, "k");
        bundle.expected.clear();
        bundle.write(&scratch.path(name)).expect("writable");
    }
    let output = scratch.run("replay all --coverage out.info");
    assert_eq!(code(&output), Some(0), "{output:?}");
    let of = |name: &str| PLAIN_INFO.replace("PTX", &format!("all/{name}/module.ptx"));
    assert_eq!(scratch.info(), of("1") + &of("2"));
    let output = scratch.run("replay all/1 --explore 1 --coverage out.info");
    assert_eq!(code(&output), Some(0), "{output:?}");
    assert_eq!(scratch.info(), multiplied(&of("1"), 4) + &of("2"));
}

#[test]
fn a_launch_that_goes_wrong_reached_something() {
    let scratch = Scratch::new("wrong", &PLAIN.replace("%t, 64;", "%t, 33;"));
    let output = scratch.run(RUN);
    assert_eq!(code(&output), Some(1), "{output:?}");
    let coverage: Coverage = scratch.info().parse().expect("a tracefile");
    // One warp stores, of the other 31 threads go to the trap.
    assert!(scratch.info().contains("\nDA:9,31\n"), "{}", scratch.info());
    assert!(scratch.info().contains("\nDA:15,31\n"), "{}", scratch.info());
    assert!(coverage.lines().0 > 6, "{coverage}");
}

#[test]
fn files_that_cannot_be_added_to_are_refused_before_the_launch() {
    let scratch = Scratch::new("refused", PLAIN);
    std::fs::write(scratch.path("out.info"), "notes of mine\n").expect("writable");
    let output = scratch.run(&RUN.replace("k.ptx", "k.ptx --trace out.trace"));
    assert_eq!(code(&output), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("out.info: line 1"), "{output:?}");
    assert_eq!(scratch.info(), "notes of mine\n");
    assert!(!scratch.path("out.trace").exists(), "nothing ran");
    let output = scratch.run(&RUN.replace("out.info", "nowhere/out.info"));
    assert_eq!(code(&output), Some(2), "{output:?}");
}

#[test]
fn test_runs_are_summed_up_by_function() {
    let scratch = Scratch::new("journal", PLAIN);
    let run = RUN.replace(" --coverage out.info", "");
    // Each process has its own file; the second reaches less than the first.
    for block in ["64", "16"] {
        let words = run.replace("--block 64", &format!("--block {block}"));
        let output = scratch.program(&words).env(FOLDER, "reached").output().expect("it starts");
        assert_eq!(code(&output), Some(0), "{output:?}");
    }
    assert_eq!(std::fs::read_dir(scratch.path("reached")).expect("a folder").count(), 2);
    let output = scratch.run("coverage reached k.ptx");
    let text = String::from_utf8_lossy(&output.stdout);
    let expected = "\
not reached:
sm_90a k:9: @%p bra $far;
sm_90a k:14: st.global.u32 [%o], 1;
sm_90a k:15: trap;

reached:
  0.00 %       0 of      1  sm_90a other
 72.73 %       8 of     11  sm_90a k
coverage: 66.67 %, 8 of 12 instructions; guarded branches among the others: 1
";
    assert_eq!((text.as_ref(), code(&output)), (expected, Some(0)));
    let output = scratch.run("coverage reached k.ptx --launched --aim 72.8");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("others\ncoverage: 72.73 %, 8 of 11 instructions; "), "{text}");
    assert_eq!(code(&output), Some(1));
    assert_eq!(code(&scratch.run("coverage reached k.ptx --launched --aim 72.7")), Some(0));
    // A kernel of that name with another text is another.
    std::fs::write(scratch.path("k.ptx"), PLAIN.replace("%t, 32;", "%t, 31;")).expect("writable");
    let text = scratch.run("coverage reached k.ptx").stdout;
    assert!(String::from_utf8_lossy(&text).contains(" 0 of 12 instructions; "), "{text:?}");
    assert_eq!(code(&scratch.run("coverage nowhere k.ptx")), Some(2));
}

#[test]
fn a_folder_that_cannot_be_written_is_an_error() {
    let scratch = Scratch::new("unwritable", PLAIN);
    let run = RUN.replace(" --coverage out.info", "");
    let output = scratch.program(&run).env(FOLDER, "k.ptx/reached").output().expect("it starts");
    assert_eq!(code(&output), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains(FOLDER), "{output:?}");
}

/// Returns the report of a list of reasons for [`PLAIN`] after 16 threads, of which none goes far
/// and all store.
fn explained(scratch: &Scratch, list: &str) -> (String, Option<i32>) {
    std::fs::write(scratch.path("list.txt"), list).expect("writable");
    let output = scratch.run("coverage reached k.ptx --explained list.txt");
    (String::from_utf8_lossy(&output.stdout).trim_end().to_owned(), code(&output))
}

#[test]
fn reasons_are_of_what_was_not_reached() {
    let scratch = Scratch::new("explained", PLAIN);
    let run = RUN.replace(" --coverage out.info", "").replace("--block 64", "--block 16");
    let output = scratch.program(&run).env(FOLDER, "reached").output().expect("it starts");
    assert_eq!(code(&output), Some(0), "{output:?}");
    let (text, result) = explained(&scratch, "# nothing\n");
    let all = "sm_90a k:9: @%p bra $far;\nsm_90a k:11: @!%q st.global.u32 [%o], 7;\n\
        sm_90a k:14: st.global.u32 [%o], 1;\nsm_90a k:15: trap;\n\n";
    assert!(text.starts_with(&format!("not reached, nor explained:\n{all}")), "{text}");
    assert!(text.ends_with("; explained: 0.00 %, 0; neither: 41.67 %, 5"), "{text}");
    assert_eq!(result, Some(0));

    // Behind a branch that is never taken nothing else is needed, nor behind the store before a trap.
    let branch = "k | setp.lt.u32 %q, %t, *; @%p bra $; | never so far\n";
    let (text, result) = explained(&scratch, branch);
    let rest = "not reached, nor explained:\nsm_90a k:11: @!%q st.global.u32 [%o], 7;\n\n";
    assert!(text.starts_with(rest), "{text}");
    assert!(text.contains("sm_90a k, 27.27 % explained\n"), "{text}");
    assert!(text.ends_with("; explained: 25.00 %, 3; neither: 16.67 %, 2"), "{text}");
    assert_eq!(result, Some(0));
    // A trap explains its straight-line piece, and that no branch leads there.
    let (text, _) = explained(&scratch, "* | trap; | it is none\n");
    assert!(text.starts_with(rest), "{text}");
    let (text, _) = explained(&scratch, "k | @*st.global.u32 [%o], *; #2 | all are few\n");
    assert!(!text.contains("k:11:") && text.contains("k:9:"), "{text}");

    // Reasons of nothing, and of what was reached in one place or in all.
    for (list, fault) in [
        (
            "k | st.global.u64*; | none",
            Some("\nlist.txt:1: no such place, or none that was not reached"),
        ),
        ("g* | trap; | of another", Some("\nlist.txt:1: no such place")),
        ("k | @%q st*; | reached", Some("\nlist.txt:1: no such place")),
        ("k | *st*; | a few", Some("\nlist.txt:1: a place of k was reached")),
        ("~k | *st*; | a few", None),
    ] {
        let (text, result) = explained(&scratch, list);
        assert!(fault.is_none_or(|fault| text.contains(fault)), "{list}: {text}");
        assert_eq!(text.contains("list.txt:"), fault.is_some(), "{list}: {text}");
        assert_eq!(result, Some(i32::from(fault.is_some())), "{list}: {text}");
    }
    let output = scratch.run("coverage reached k.ptx --launched --explained list.txt");
    assert_eq!(code(&output), Some(0), "{output:?}");
    for list in ["k | trap;", "k | trap | no end", " | trap; | no kernel", "k | ; | "] {
        let (_, result) = explained(&scratch, list);
        assert_eq!(result, Some(2), "{list}");
    }
}
