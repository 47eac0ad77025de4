//! GEMMs: dense, gated, grouped and mixed, of both architectures.

mod batches;
mod block_results;
mod budgets;
mod checksums;
mod chosen;
mod contest;
mod dependent;
mod devices;
mod dual;
mod few_tokens;
mod fp8;
mod group_budgets;
mod grouped;
mod grouped_refused;
mod harness;
mod launches;
mod mixed;
mod multicast;
mod mutants;
mod options;
mod refused;
mod results;
mod stores;
mod stream_k;
mod tiles;
mod tuned;
