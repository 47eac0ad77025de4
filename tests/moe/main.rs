//! Mixtures of experts: layers, their steps, the kernels around the products.

mod e4m3;
mod expert_checksums;
mod expert_mutants;
mod invariant;
mod layers;
mod layers_refused;
mod quantized;
mod refused;
mod several_devices;
mod steps;
