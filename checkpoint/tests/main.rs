//! Checkpoints: layouts, conversions, what exporters write, damage.

mod calibration;
mod circulation;
mod damage;
mod deepseek;
mod experts;
mod exporters;
mod files;
mod fuzz;
mod gguf;
mod golden;
mod layouts;
mod mlx;
mod named;
mod producers;
mod repair;
mod shared;
mod support;
