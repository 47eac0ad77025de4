//! The laboratory: the program `nvfp4`, oracle, reports, examples, captured launches.

mod capture;
mod cli;
mod cli_checkpoint;
mod cli_damaged;
mod cli_experts;
mod cli_gemm;
mod cli_layers;
mod cli_messages;
mod cli_rows;
mod examples;
mod gemv;
mod oracle;
mod report;
mod report_browser;
mod selftest;
mod shape;
#[path = "../../checkpoint/tests/support/mod.rs"]
mod support;
