//! Checkpoints: layouts, conversions, what exporters write, damage.

mod circulation;
mod damage;
mod exporters;
mod files;
mod fuzz;
mod golden;
mod layouts;
mod shared;
mod support;
