//! The launch on a GPU: candle's memory is lent to it, the cache's to be changed.

use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, DType, InplaceOp1, Layout, Shape, Storage, Tensor,
};
use nvfp4::buffer::DeviceBuffer;

use super::super::cache::KeyValues;
use super::super::step::Fused;
use super::OneToken;
use crate::Engine;
use crate::cuda::{Failed, Halves, Ids, into, lend, new_halves};
use crate::engine::kept;
use crate::error::{shape, wrap};

type Result<T, E = candle_core::Error> = std::result::Result<T, E>;

/// The result of [`OneToken::forward`] on a GPU.
pub(super) fn launch(
    of: &OneToken,
    projected: &Tensor,
    step: &Fused,
    cache: &KeyValues,
) -> Result<Tensor> {
    projected.contiguous()?.apply_op1_no_bwd(&Launch { of, step, cache }).map(kept)
}

/// The operation on a GPU, as one of candle's.
struct Launch<'a> {
    of: &'a OneToken,
    step: &'a Fused,
    cache: &'a KeyValues,
}

impl CustomOp1 for Launch<'_> {
    fn name(&self) -> &'static str {
        "nvfp4-attention"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        unreachable!("tensors on the CPU are emulated")
    }

    fn cuda_fwd(&self, x: &CudaStorage, x_layout: &Layout) -> Result<(CudaStorage, Shape)> {
        let Self { of, step, cache } = *self;
        let engine = &of.engine;
        let [heads, _, dim] = of.heads;
        let [texts, _] = cache.sizes();
        let plan = of.plan(step, cache).map_err(wrap)?;
        let tensors = of.tensors(step);
        let projected = Halves::of(x, x_layout, engine)?;
        let [keys, values] = cache.tensors();
        let storage = new_halves(engine, x, texts * heads * dim, |y| {
            projected.lend(engine, |projected| {
                let rest: Vec<&Tensor> = tensors.all().map(|(_, tensor)| tensor).collect();
                lend_each(engine, &rest, &[], &|given| {
                    in_place(keys, &|keys, layout| {
                        into(engine, keys, layout, |keys, _| {
                            in_place(values, &|values, layout| {
                                into(engine, values, layout, |values, _| {
                                    let cache = [keys, values];
                                    let operands = tensors.operands(given, projected, cache);
                                    Ok(plan.attention.launch(&operands, y)?)
                                })
                            })
                            .map_err(Failed)
                        })
                    })
                    .map_err(Failed)
                })
            })
        })?;
        Ok((storage, Shape::from((texts, 1, heads * dim))))
    }
}

/// Lends the memory of tensors on a GPU, in their order, behind what is `given` already.
fn lend_each(
    engine: &Engine,
    rest: &[&Tensor],
    given: &[&DeviceBuffer],
    launch: &dyn Fn(&[&DeviceBuffer]) -> Result<(), Failed>,
) -> Result<(), Failed> {
    let Some((first, rest)) = rest.split_first() else { return launch(given) };
    let (storage, layout) = first.storage_and_layout();
    let Storage::Cuda(storage) = &*storage else {
        return Err(shape("a tensor of the attention", "on the GPU", "elsewhere").into());
    };
    let with = |buffer: &DeviceBuffer| {
        let given: Vec<&DeviceBuffer> = given.iter().copied().chain([buffer]).collect();
        lend_each(engine, rest, &given, launch)
    };
    match first.dtype() {
        DType::U32 => Ids::of(storage, layout)?.lend(engine, with),
        _ => lend(engine, storage, layout, with),
    }
}

/// Calls `change` with the memory of a tensor on a GPU.
fn in_place(
    tensor: &Tensor,
    change: &dyn Fn(&mut CudaStorage, &Layout) -> Result<()>,
) -> Result<()> {
    struct Change<'a>(&'a dyn Fn(&mut CudaStorage, &Layout) -> Result<()>);

    impl InplaceOp1 for Change<'_> {
        fn name(&self) -> &'static str {
            "nvfp4-attention-cache"
        }

        fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
            unreachable!("tensors on the CPU are emulated")
        }

        fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
            (self.0)(storage, layout)
        }
    }
    tensor.inplace_op1(&Change(change))
}
