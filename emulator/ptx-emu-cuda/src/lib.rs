//! Stands in for the CUDA driver (`libcuda.so.1`) and the CUDA runtime (`libcudart.so.13`): a
//! program that was built for them runs its kernels on [`ptx_emu_core`]. `ptx-emu exec` lets programs
//! find this library instead of theirs.
//!
//! # Modelled
//!
//! One device, the machine that `--gpu` names. Launches and copies run in the order of the calls,
//! whatever their streams, when they are called; a launch whose kernel lets dependent ones begin
//! (`griddepcontrol.launch_dependents`) runs with the next call, together with the dependent launch
//! if that is one. Launches that have been begun are therefore over when a call returns, but errors
//! of a launch are answered as a GPU's driver does: by later calls, all of them, until
//! `cudaDeviceReset`.
//!
//! | | |
//! |---|---|
//! | modules | PTX, and PTX in fat binaries, whatever their compression; machine code is refused |
//! | memory | device, pinned, registered, managed (see `memory`); the device's size is what the host has |
//! | launches | all forms; clusters, programmatic dependence, cooperative grids |
//! | graphs | captured or of nodes of all kinds but conditional ones and external semaphores, cloned, changed and updated; nodes run one by one in an order that their dependencies allow; memory that a graph allocates has the same address in each launch |
//! | tensor maps | tiled ones |
//! | attributes of kernels | registers and local memory are 0 unless PTX states them |
//! | occupancy | by threads, shared memory, CTAs, and registers where PTX states them |
//!
//! All other functions are exported too: they answer `CUDA_ERROR_NOT_SUPPORTED` and say once on
//! standard error that they are not modelled. `cuGetProcAddress` does not find them.
//!
//! # Differences from a GPU
//!
//! * The elapsed time between two events is NaN: an emulator has no times of a GPU.
//! * Launches in different streams never overlap. A kernel that waits for one that is launched
//!   later is a deadlock here.
//! * The program must not use pinned or managed memory while a launch uses it, nor wait for a
//!   kernel to change it without a call of CUDA.
//! * Contexts share the device's memory, and destroying one frees nothing.
//!
//! # Unsafe code
//!
//! All of it is in `abi`: the program's pointers are read and written there.

#![allow(non_snake_case, reason = "exported functions have CUDA's names")]

mod abi;
mod arguments;
mod capture;
mod device;
mod driver;
mod errors;
mod graphs;
mod launch;
mod lookup;
mod memory;
mod modules;
mod names;
mod occupancy;
mod report;
mod runtime;
mod settings;
mod shared;
mod state;
mod streams;
