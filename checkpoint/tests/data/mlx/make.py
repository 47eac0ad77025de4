"""Writes nvfp4.safetensors, mxfp4.safetensors, nvfp4-experts.safetensors and affine.safetensors with mlx 0.32.4: layers, the
values that MLX reads, and the values before. The last has experts with a tensor-level scale each, as mlx-lm 0.32.2
stores them.

python make.py
"""
import mlx.core as mx
import numpy as np

rng = np.random.default_rng(11)
values = rng.standard_normal((6, 96)).astype(np.float32)
# Ties of both formats, and a block of zeros.
values[0, :16] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5, -6]
values[1, :32] = 0
values = mx.array(values)
for mode, size in (("nvfp4", 16), ("mxfp4", 32)):
    codes, scales = mx.quantize(values, group_size=size, bits=4, mode=mode)
    back = mx.dequantize(codes, scales, group_size=size, bits=4, mode=mode).astype(mx.float32)
    tensors = {"layer.weight": codes, "layer.scales": scales, "layer.values": back, "layer.original": values}
    mx.save_safetensors(f"{mode}.safetensors", tensors, metadata={"format": "mlx"})

values = mx.array(rng.standard_normal((3, 8, 64)).astype(np.float32) * np.array([1, 0.02, 30], np.float32)[:, None, None])
largest = mx.max(mx.abs(values), axis=(-2, -1))
how = {"group_size": 16, "bits": 4, "mode": "nvfp4"}
experts = [mx.quantize(own, **how, global_scale=scale) for own, scale in zip(values, largest)]
codes, scales = (mx.stack(parts) for parts in zip(*experts))
back = mx.stack([
    mx.dequantize(*own, **how, global_scale=scale).astype(mx.float32) for own, scale in zip(experts, largest)
])
tensors = {
    "layer.weight": codes, "layer.scales": scales, "layer.global_scale": largest, "layer.values": back,
    "layer.original": values,
}
mx.save_safetensors("nvfp4-experts.safetensors", tensors, metadata={"format": "mlx"})

# Affine integers: a weight for each number of bits, in groups of 64.
tensors = {}
for bits in (2, 3, 4, 5, 6, 8):
    values = mx.array(rng.standard_normal((3, 128)).astype(np.float32))
    parts = mx.quantize(values, group_size=64, bits=bits)
    tensors |= {f"bits{bits}.{ending}": own for ending, own in zip(("weight", "scales", "biases"), parts)}
    tensors[f"bits{bits}.values"] = mx.dequantize(*parts, group_size=64, bits=bits)
mx.save_safetensors("affine.safetensors", tensors, metadata={"format": "mlx"})
