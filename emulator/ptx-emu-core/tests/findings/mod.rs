//! Findings, and behaviour that real programs rely on, which is none.

mod kinds;
mod hardware;
mod known_faults;
mod relied_on;
mod requirements;
mod triton;
