//! `--sarif`: findings as a SARIF log.

use super::console;
use clap::Args;
use ptx_emu::Diagnostic;
use ptx_emu::bundle::OutputReport;
use ptx_emu::sarif::{Fault, Lines, Log};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The file of findings for other programs.
#[derive(Debug, Clone, Args)]
pub(crate) struct SarifArgs {
    /// Write the findings to this file, also if there are none, in the format SARIF 2.1.0.
    #[arg(long, value_name = "FILE")]
    sarif: Option<PathBuf>,
}

impl SarifArgs {
    /// Writes a log of several runs if one was asked for. The exit code: `code`, or what says that the
    /// log could not be written.
    pub(crate) fn write_all(&self, runs: &[Value], code: u8) -> u8 {
        let Some(path) = &self.sarif else { return code };
        match std::fs::write(path, format!("{:#}\n", ptx_emu::sarif::document(runs))) {
            Ok(()) => code,
            Err(error) => {
                console::complain(format_args!("{}: cannot be written: {error}", path.display()));
                2
            }
        }
    }

    /// Writes a log if one was asked for, as [`write_all`](Self::write_all) does.
    pub(crate) fn write(&self, log: &Log, code: u8) -> u8 {
        self.write_all(&[log.run()], code)
    }
}

/// Adds findings of a run of a module.
pub(crate) fn findings<'a>(
    log: &mut Log,
    found: impl IntoIterator<Item = &'a Diagnostic>,
    module: &Path,
    replay: Option<&str>,
) {
    for found in found {
        log.finding(&found.to_json(), Lines::Module(module), replay);
    }
}

/// Adds outputs that are not what is expected.
pub(crate) fn outputs(log: &mut Log, compared: &[OutputReport], module: &Path) {
    for output in compared.iter().filter(|output| output.mismatches != 0) {
        let mut text = String::new();
        super::report::comparison(&mut text, output);
        log.fault(Fault::Outputs, text.trim_start(), module);
    }
}

/// Adds the finding that ended a launch, and the others of it.
pub(crate) fn diagnostic(log: &mut Log, found: &Diagnostic, module: &Path) {
    findings(log, std::iter::once(found).chain(&found.others), module, None);
}
