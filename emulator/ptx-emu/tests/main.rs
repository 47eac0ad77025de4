//! The tools as programs and as a library: bundles, findings, mutants, traces, captures.

#[path = "../../ptx-emu-core/tests/async_support/mod.rs"]
mod async_support;
#[path = "support/bundles.rs"]
mod bundles;

mod arguments_cli;
mod bound_cli;
mod capture;
mod check_cli;
mod cli;
mod conformance_cli;
mod coverage;
mod exec;
mod exec_explore;
mod explore;
mod findings_cli;
mod hardware;
mod model_cli;
mod mutants;
mod mutate_cli;
mod readable;
mod replay;
mod sarif;
mod tensor_map_cli;
mod trace;
