//! Recordings of CUDA graphs on a GPU, in a separate program, since an allocation of any other thread disturbs
//! a recording.

mod moe_graph;
mod stream_gpu;
