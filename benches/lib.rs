//! Nothing: the benches are the other files here, `cargo bench -p nvfp4-benches`.
