"""Writes golden.gguf with the package gguf 0.19.0 (numpy 2.4.6): each tensor beside the values that it reads.

python make.py golden.gguf
"""
import sys

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter, quants

rng = np.random.default_rng(7)
writer = GGUFWriter(sys.argv[1], "llama")
writer.add_name("golden")
writer.add_block_count(2)
writer.add_float32("golden.float", 0.5)
writer.add_bool("golden.bool", True)
writer.add_array("golden.names", ["a", "", "\u00e9"])
writer.add_array("golden.numbers", [1, -2, 3])
rows, cols = 3, 128
values = rng.standard_normal((rows, cols)).astype(np.float32)
for kind in (Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.MXFP4):
    packed = quants.quantize(values, kind)
    name = f"{kind.name.lower()}.weight"
    writer.add_tensor(name, packed, raw_dtype=kind)
    writer.add_tensor(name + ".values", quants.dequantize(packed, kind).astype(np.float32))
blocks = rng.integers(0, 256, (rows, cols // 64, 36), dtype=np.uint8)
blocks[:, :, :4] = rng.integers(0, 0x7F, (rows, cols // 64, 4))
packed = blocks.reshape(rows, -1)
writer.add_tensor("nvfp4.weight", packed, raw_dtype=Type.NVFP4)
writer.add_tensor("nvfp4.weight.values", quants.dequantize(packed, Type.NVFP4).astype(np.float32))
writer.add_tensor("nvfp4.scale", np.array([0.25], np.float32))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
