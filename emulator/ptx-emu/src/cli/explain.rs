//! `ptx-emu explain`.

use clap::Args;
use ptx_emu::{Kind, Model};
use std::fmt::Write as _;

/// Explains a kind of finding, or lists all of them.
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// Kind, as findings name it.
    kind: Option<Kind>,
}

/// Returns the text for standard output.
pub(crate) fn run(args: &ExplainArgs) -> String {
    match args.kind {
        Some(kind) => kind.explanation(),
        None => list(),
    }
}

fn list() -> String {
    let width = Kind::ALL.iter().map(|kind| kind.name().len()).max().unwrap_or(0);
    let mut text = format!("{:width$}  hardware  ptx    what\n", "kind");
    for kind in Kind::ALL {
        let [hardware, ptx] =
            [Model::Hardware, Model::Ptx].map(|model| kind.level(model).to_string());
        let level = if kind.is_fatal() { "ends it" } else { hardware.as_str() };
        let _ = writeln!(text, "{:width$}  {level:<8}  {ptx:<5}  {}", kind.name(), kind.title());
    }
    text.push_str("ends it: the run cannot go on; the others have the level that --allow, --warn and --deny say");
    text
}
