//! Every kind of finding has a page in `docs/findings` and a program beside it that must have it,
//! and whose twin must not. Programs of the same kind with other causes have a suffix.

use crate::programs::{check_failures, check_twins, programs};
use ptx_emu_core::Kind;
use std::collections::BTreeSet;

const FOLDER: &str = "../docs/findings";

#[test]
fn every_kind_has_a_program_and_a_page() {
    let covered: BTreeSet<Option<Kind>> = programs(FOLDER).iter().map(|p| p.kind).collect();
    assert_eq!(covered, Kind::ALL.into_iter().map(Some).collect());
    for kind in Kind::ALL {
        let page = kind.page();
        assert!(page.starts_with("# ") && !kind.title().is_empty(), "{kind}");
        for part in ["\n## Rule\n", "\n## Hardware\n", "\n## Mending\n", "PTX ISA"] {
            assert!(page.contains(part), "{kind}: no {part:?}");
        }
        assert!(kind.program().contains(&format!("// kind: {kind}\n")), "{kind}");
    }
}

#[test]
fn programs_fail_as_they_say() {
    check_failures(&programs(FOLDER));
}

#[test]
fn twins_run() {
    check_twins(&programs(FOLDER));
}
