"""Writes the checkpoints of this folder: tensors of the formats that amd-quark 0.13 and auto-round 0.16.1 document,
with their configurations, beside the values that the formats give them (`*.values`). Needs nothing but Python.

python make.py
"""
import json
import struct
from pathlib import Path

E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
N, K = 3, 64


def e2m1(code):
    return (-1 if code & 8 else 1) * E2M1[code & 7]


def e4m3(byte):
    exponent, mantissa = byte >> 3 & 15, byte & 7
    magnitude = mantissa / 8 * 2**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -magnitude if byte & 128 else magnitude


def f32(*values):
    return struct.pack(f"<{len(values)}f", *values)


def bf16(value):
    return struct.pack("<f", value)[2:]


def four_bits(seed, block, scale_of_byte, byte_of_block, scale):
    """Codes of [N, K], one byte of scale for each block, and the values."""
    codes = [(7 * at + at // 5 + seed) % 16 for at in range(N * K)]
    packed = bytes(codes[at] | codes[at + 1] << 4 for at in range(0, N * K, 2))
    scales = bytes(byte_of_block(at) for at in range(N * K // block))
    values = [e2m1(code) * scale_of_byte(scales[at // block]) * scale for at, code in enumerate(codes)]
    return packed, scales, f32(*values)


def write(name, tensors, config):
    Path(name).mkdir(exist_ok=True)
    header, data = {}, b""
    for tensor, (dtype, shape, content) in tensors.items():
        header[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    Path(name, "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": K,
              "tie_word_embeddings": False, "quantization_config": config}
    Path(name, "config.json").write_text(json.dumps(config, indent=2) + "\n")


LM_HEAD = {"lm_head.weight": ("BF16", [2, K], b"".join(bf16(at / 8) for at in range(2 * K)))}
UP, Q = "model.layers.0.mlp.up_proj", "model.layers.0.self_attn.q_proj"
MULTIPLIER, INPUT = 2.0**-12, 0.0078125


def spec(dtype, scheme, size=None, dynamic=False, scale_format="float32", of_scales=None):
    return {"dtype": dtype, "is_dynamic": dynamic, "qscheme": scheme, "ch_axis": -1, "group_size": size,
            "symmetric": None, "scale_type": "float32", "scale_format": scale_format, "mx_element_dtype": None,
            "is_scale_quant": of_scales}


def quark(weight, inputs, layers={}):
    layer = {"weight": weight, "input_tensors": inputs, "output_tensors": None, "bias": None}
    return {"quant_method": "quark", "version": "0.13", "quant_mode": "eager_mode", "exclude": ["lm_head"],
            "global_quant_config": layer, "layer_quant_config": layers, "layer_type_quant_config": {},
            "kv_cache_quant_config": {}, "kv_cache_post_rope": False, "algo_config": None, "softmax_quant_spec": None,
            "export": {"kv_cache_group": [], "pack_method": "reorder", "weight_format": "real_quantized"}}


nvfp4 = four_bits(1, 16, e4m3, lambda at: 0x38 + 3 * at, MULTIPLIER)
mxfp4 = four_bits(2, 32, lambda byte: 2.0 ** (byte - 127), lambda at: 118 + at, 1)

scales = spec("fp8_e4m3", "per_tensor", of_scales=True)
write("quark-nvfp4", {
    f"{UP}.weight": ("U8", [N, K // 2], nvfp4[0]),
    f"{UP}.weight_scale": ("F8_E4M3", [N, K // 16], nvfp4[1]),
    f"{UP}.weight_scale_2": ("F32", [], f32(MULTIPLIER)),
    f"{UP}.input_scale_2": ("F32", [], f32(INPUT)),
    f"{UP}.values": ("F32", [N, K], nvfp4[2]), **LM_HEAD,
}, quark([spec("fp4", "per_group", 16), scales], [spec("fp4", "per_group", 16, dynamic=True), scales]))

codes = bytes((37 * at + 5) % 120 for at in range(N * K))
eight = spec("fp8_e4m3", "per_tensor")
write("quark-mxfp4-fp8", {
    f"{UP}.weight": ("U8", [N, K // 2], mxfp4[0]),
    f"{UP}.weight_scale": ("U8", [N, K // 32], mxfp4[1]),
    f"{UP}.values": ("F32", [N, K], mxfp4[2]),
    f"{Q}.weight": ("F8_E4M3", [N, K], codes),
    f"{Q}.weight_scale": ("F32", [], f32(0.25)),
    f"{Q}.input_scale": ("F32", [], f32(INPUT)),
    f"{Q}.values": ("F32", [N, K], f32(*(e4m3(code) * 0.25 for code in codes))), **LM_HEAD,
}, quark(spec("fp4", "per_group", 32, scale_format="e8m0"), spec("fp4", "per_group", 32, True, "e8m0"),
         {"*q_proj": {"weight": eight, "input_tensors": eight, "output_tensors": None, "bias": None}}))


def auto_round(size, data_type, act_data_type):
    return {"quant_method": "auto-round", "packing_format": "auto_round:llm_compressor", "bits": 4,
            "group_size": size, "sym": True, "data_type": data_type, "act_bits": 4, "act_group_size": size,
            "act_sym": True, "act_dynamic": True, "act_data_type": act_data_type, "autoround_version": "0.16.1",
            "block_name_to_quantize": "model.layers",
            "extra_config": {".*self_attn.*": {"bits": 16, "data_type": "float", "act_bits": 16}}}


FLOATS = {f"{Q}.weight": ("BF16", [N, K], b"".join(bf16(at / 16) for at in range(N * K)))}
write("auto-round-nvfp4", {
    f"{UP}.weight_packed": ("U8", [N, K // 2], nvfp4[0]),
    f"{UP}.weight_scale": ("F8_E4M3", [N, K // 16], nvfp4[1]),
    f"{UP}.weight_global_scale": ("F32", [1], f32(1 / MULTIPLIER)),
    f"{UP}.input_global_scale": ("F32", [1], f32(1 / INPUT)),
    f"{UP}.values": ("F32", [N, K], nvfp4[2]), **FLOATS, **LM_HEAD,
}, auto_round(16, "nv_fp", "nv_fp4_with_static_gs"))
write("auto-round-mxfp4", {
    f"{UP}.weight_packed": ("U8", [N, K // 2], mxfp4[0]),
    f"{UP}.weight_scale": ("U8", [N, K // 32], mxfp4[1]),
    f"{UP}.values": ("F32", [N, K], mxfp4[2]), **FLOATS, **LM_HEAD,
}, auto_round(32, "mx_fp", "mx_fp"))
