"""Writes the recorded rotations of NVFP4's training recipes, from the projects' own code, and the bytes of
quantising them. Run where PyPI's torch is installed, with checkouts of both projects as arguments:

    python rotation.py PATH/TransformerEngine PATH/ao

Of Transformer Engine, its Python reference runs (`_apply_rht` and `_quantize_blockwise_reference`), which
its own tests compare with the kernels; of TorchAO, `get_rht_matrix`, by which its reference multiplies in
bf16. Both multiply by `diag(signs) H / 4` on the right.
"""
import hashlib, importlib.util, json, os, sys, types
import numpy as np
import torch

from four_over_six import transformer_engine

torch.set_num_threads(1)
HERE = os.path.dirname(os.path.abspath(__file__))
files = {}


def write(name, array):
    array = np.ascontiguousarray(array)
    array.tofile(os.path.join(HERE, name))
    files[name] = {"bytes": array.nbytes, "sha256": hashlib.sha256(array.tobytes()).hexdigest()}


def rows():
    """Rows of small integers, whose sums are exact in any order, then normal values; all are bf16."""
    random = np.random.default_rng(29)
    exact = random.integers(-127, 128, (16, 64)).astype(np.float32)
    normal = torch.from_numpy(random.standard_normal((8, 64)).astype(np.float32))
    return torch.cat([torch.from_numpy(exact), normal.bfloat16().float()])


def torchao(path):
    """The module of the matrix, without the package around it."""
    file = os.path.join(path, "torchao/prototype/moe_training/nvfp4_training/hadamard_utils.py")
    source = open(file).read().split("\nif has_triton():")[0]
    module = types.ModuleType("hadamard_utils")
    exec(compile(source, file, "exec"), module.__dict__)
    return module


def main():
    engine, ao = sys.argv[1:]
    reference = transformer_engine(os.path.join(engine, "transformer_engine"))
    x = rows()
    write("rotation_input.f32le", x.numpy())
    for signs in [False, True]:
        own = types.SimpleNamespace(
            with_rht=True, quant_tile_shape=(1, 16), with_random_sign_mask=signs,
            _build_hadamard_matrix=reference._build_hadamard_matrix)
        y = reference._apply_rht(own, x)
        name = "rotation_signs" if signs else "rotation_plain"
        write(f"{name}.te-ref-d0067d0d.f32le", y.numpy())
        packed, scales = reference._quantize_blockwise_reference(
            y, y.abs().max(), 16, 1, pow_2_scales=False, eps=0.0)
        write(f"{name}.te-ref-d0067d0d.packed.u8", packed.numpy())
        write(f"{name}.te-ref-d0067d0d.scale_e4m3.u8", scales.view(torch.uint8).numpy())
    module = torchao(ao)
    matrix = module.get_rht_matrix(module.DEFAULT_SIGN_VECTOR, "cpu", torch.bfloat16, 16)
    y = (x.bfloat16().reshape(-1, 16) @ matrix).reshape(x.shape)
    write("rotation_signs.torchao-36027d82.bf16le", y.view(torch.int16).numpy())
    path = os.path.join(HERE, "MANIFEST.json")
    manifest = json.load(open(path))
    manifest["rotation"] = {"shape": list(x.shape), "exact_rows": 16, "torch": torch.__version__}
    manifest["files"] = dict(sorted((manifest["files"] | files).items()))
    with open(path, "w") as out:
        json.dump(manifest, out, indent=1)
        out.write("\n")


main()
