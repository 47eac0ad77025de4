//! The library as a whole: checkpoints, real models, launches that overlap, a dependent crate, and what holds
//! for the code of all kernels.

mod block_products;
mod ceiling;
mod checkpoints;
mod dependent_launches;
mod expert_parallel;
mod family_target;
mod kernel_code;
mod mutants;
mod outside_crate;
mod real_model;
mod tensor_parallel;
