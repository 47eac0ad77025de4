//! Faults that published kernels had, reduced in our own words: each must be found, and its mended
//! twin be clean. `README.md` beside this lists them with their sources.

use crate::programs::{check_failures, check_twins, programs};

const FOLDER: &str = "findings/known_faults";

#[test]
fn every_fault_is_found() {
    check_failures(&programs(FOLDER));
}

#[test]
fn mended_twins_are_clean() {
    check_twins(&programs(FOLDER));
}

#[test]
fn the_list_has_every_program() {
    let list = include_str!("README.md");
    for program in programs(FOLDER) {
        let kind = program.kind.expect("a kind");
        let row = format!("| `{}` | `{kind}` |", program.file);
        assert!(list.contains(&row), "no row that begins {row}");
    }
    assert_eq!(programs(FOLDER).len(), list.matches(".ptx` |").count());
}
