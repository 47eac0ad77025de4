//! Loading and running mutated programs never panics and always ends.

use proptest::prelude::*;
use ptx_emu::{GlobalMemory, Gpu, Launch, Module, Schedule};

const TEXTS: [&str; 2] =
    [include_str!("data/programs.ptx"), include_str!("../benches/gemv_like.ptx")];

/// Replaces some tokens by others of the same text, or by numbers.
fn mutate(text: &str, edits: &[(usize, usize, u64)]) -> String {
    let boundary = |c: char| c.is_whitespace() || ",;[]{}()".contains(c);
    let mut tokens: Vec<String> = text.split_inclusive(boundary).map(str::to_owned).collect();
    // The header stays, or nothing would be loaded.
    let body = tokens.iter().position(|t| t.contains("entry")).unwrap_or(0);
    for &(at, from, value) in edits {
        let at = body + at % (tokens.len() - body);
        let from = body + from % (tokens.len() - body);
        tokens[at] = match value % 4 {
            0 => format!("{value} "),
            1 => String::new(),
            _ => tokens[from].clone(),
        };
    }
    tokens.concat()
}

fn attempt(text: &str, schedule: Schedule) {
    let Ok(module) = Module::load(text, &Gpu::h200()) else {
        return;
    };
    let kernels: Vec<_> = module.entries().cloned().collect();
    for kernel in kernels {
        let mut memory = GlobalMemory::new();
        let Ok(buffer) = memory.alloc_from("buffer", &[1; 8192]) else {
            return;
        };
        let params: Vec<u8> =
            buffer.to_le_bytes().into_iter().cycle().take(kernel.param_bytes as usize).collect();
        // Whether it succeeds does not matter.
        let _ = module.launch(
            &mut memory,
            &Launch {
                entry: &kernel.name,
                grid: [2, 1, 1],
                block: kernel.reqntid.unwrap_or([64, 1, 1]),
                cluster: None,
                dynamic_shared: 512,
                params: &params,
                schedule,
                threads: Some(1),
                instruction_limit: Some(5000),
            },
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..Default::default() })]

    #[test]
    fn mutated_programs_load_and_run_without_panicking(
        which in 0..TEXTS.len(),
        edits in prop::collection::vec((any::<usize>(), any::<usize>(), any::<u64>()), 0..6),
        seed in any::<u64>(),
    ) {
        attempt(&mutate(TEXTS[which], &edits), Schedule::Random(seed));
    }
}
