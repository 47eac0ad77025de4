//! Findings, and behaviour that real programs rely on, which is none.

mod hardware;
mod kinds;
mod known_faults;
mod relied_on;
mod requirements;
mod triton;
