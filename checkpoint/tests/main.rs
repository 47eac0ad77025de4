//! Checkpoints: layouts, conversions, what exporters write, damage.

mod calibration;
mod circulation;
mod damage;
mod exporters;
mod files;
mod fuzz;
mod gguf;
mod golden;
mod layouts;
mod mlx;
mod named;
mod producers;
mod shared;
mod support;
