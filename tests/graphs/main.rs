//! Recordings of CUDA graphs on a GPU: a program of its own, since an allocation of any other thread disturbs
//! a recording.

mod moe_graph;
mod stream_gpu;
