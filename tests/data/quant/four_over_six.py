"""Writes the recorded bytes of NVFP4 with adaptive block scaling (4over6), from the projects' own
code, beside the inputs that are here. Run where PyPI's nvidia-modelopt 0.47.0, torch and triton are
installed, with the unpacked wheel of transformer-engine 2.20.2 as the argument:

    python four_over_six.py PATH/transformer_engine

Both projects choose on a GPU in production. Of Transformer Engine, its Python reference runs, which
its own tests compare with the kernels bit for bit. Of ModelOpt, `mtq.quantize` with
`NVFP4_FOUR_OVER_SIX_CFG` runs as it is, its Triton kernel in Triton's interpreter, in which
divisions are rounded correctly.
"""
import contextlib, hashlib, importlib.util, json, os, struct, sys, types
os.environ["TRITON_INTERPRET"] = "1"
import numpy as np
import torch

torch.set_num_threads(1)
HERE = os.path.dirname(os.path.abspath(__file__))
INPUTS = {"single": 25, "wide": 23, "mixed": 512}
bits = lambda x: "0x%08x" % struct.unpack("<I", struct.pack("<f", float(x)))[0]


def mixed():
    """Blocks of many magnitudes in which both candidates are near each other."""
    random = np.random.default_rng(46)
    rows = INPUTS["mixed"]
    values = random.standard_normal((rows, 4, 16)).astype(np.float32)
    values *= np.exp2(random.integers(-14, 3, (rows, 4, 1))).astype(np.float32)
    grid = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    codes = random.integers(0, 8, (rows // 4, 4, 16))
    values[: rows // 4] = grid[codes] * np.where(random.random(codes.shape) < 0.5, 1, -1)
    values[: rows // 4] *= np.exp2(random.integers(-6, 3, (rows // 4, 4, 1))).astype(np.float32)
    values[rows // 4 : rows // 4 + 4, 0] = 0
    values[rows // 4 : rows // 4 + 4, 1] *= np.float32(2.0**-20)
    return values.reshape(rows, 64)


def write(name, array):
    array = np.ascontiguousarray(array)
    array.tofile(os.path.join(HERE, name))
    files[name] = {"bytes": array.nbytes, "sha256": hashlib.sha256(array.tobytes()).hexdigest()}


def transformer_engine(path):
    """The class of the reference, whose module is loaded without the compiled library."""
    for name in ["transformer_engine", "transformer_engine.pytorch"]:
        sys.modules[name] = types.ModuleType(name)
    recipes = types.ModuleType("transformer_engine.pytorch.custom_recipes")
    recipes.gemm = types.SimpleNamespace(
        GEMMType=types.SimpleNamespace(FPROP=None), MMParams=object)
    recipes.reference_utils = types.SimpleNamespace(Fp4Formats=object)
    tensors = types.ModuleType("transformer_engine.pytorch.quantized_tensor")
    tensors.QuantizedTensorStorage = tensors.Quantizer = object
    sys.modules[recipes.__name__], sys.modules[tensors.__name__] = recipes, tensors
    file = os.path.join(path, "pytorch", "custom_recipes", "reference_nvfp4.py")
    spec = importlib.util.spec_from_file_location("reference_nvfp4", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    # Other packages look whether the project is installed.
    for name in [name for name in sys.modules if name.startswith("transformer_engine")]:
        del sys.modules[name]
    return module.NVFP4QuantizerRef


def by_transformer_engine(reference, values, bound, error):
    x = torch.from_numpy(values)
    amax = x.abs().max()
    packed, scales = reference._quantize_blockwise_reference(
        x, amax, 16, 1, pow_2_scales=False, eps=0.0, nvfp4_use_4over6=True,
        nvfp4_e4m3_max=bound, nvfp4_4over6_err_mode=error)
    return packed.numpy(), scales.view(torch.uint8).numpy(), amax.item()


def by_modelopt(values):
    import modelopt.torch.quantization as mtq
    from modelopt.torch.kernels.quantization.common import nvfp4_quant
    from modelopt.torch.kernels.quantization.gemm import fp4_kernel
    from modelopt.torch.quantization import tensor_quant
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    # The kernel is only imported where there is a GPU, and names its device.
    fp4_kernel.IS_AVAILABLE = True
    tensor_quant.triton_kernel = fp4_kernel
    torch.cuda.device = lambda device: contextlib.nullcontext()
    nvfp4_quant.libdevice = types.SimpleNamespace(isnan=lambda x: x != x)
    layer = torch.nn.Linear(values.shape[1], values.shape[0], bias=False)
    layer.weight.data = torch.from_numpy(values.copy())
    model = torch.nn.Sequential(layer)
    mtq.quantize(model, mtq.NVFP4_FOUR_OVER_SIX_CFG, lambda m: None)
    quantizer = model[0].weight_quantizer
    weight = torch.from_numpy(values.copy())
    scale, scale_2 = NVFP4QTensor.get_weights_scaling_factor_from_quantizer(quantizer, weight)
    packed, scale, scale_2 = NVFP4QTensor.quantize(weight, 16, scale, scale_2)
    return packed._quantized_data.numpy(), scale.view(torch.uint8).numpy(), scale_2.item()


if __name__ == "__main__":
    manifest = json.load(open(os.path.join(HERE, "MANIFEST.json")))
    files, recorded = manifest["files"], {}
    write("nvfp4_mixed_input.f32le", mixed())
    reference = transformer_engine(sys.argv[1])
    for name, rows in INPUTS.items():
        values = np.fromfile(os.path.join(HERE, f"nvfp4_{name}_input.f32le"), "<f4")
        values = values.reshape(rows, 64)
        tags = {}
        for bound in (256, 448):
            for error in ("MAE", "MSE"):
                packed, scales, amax = by_transformer_engine(reference, values, bound, error)
                tag = f"te-4over6-{bound}-{error.lower()}-2.20.2"
                tags[tag] = {"global_amax_bits": bits(amax)}
                write(f"nvfp4_{name}.{tag}.packed.u8", packed)
                write(f"nvfp4_{name}.{tag}.scale_e4m3.u8", scales)
        packed, scales, scale_2 = by_modelopt(values)
        tag = "modelopt-4over6-0.47.0"
        tags[tag] = {"weight_scale_2_bits": bits(scale_2)}
        write(f"nvfp4_{name}.{tag}.packed.u8", packed)
        write(f"nvfp4_{name}.{tag}.scale_e4m3.u8", scales)
        recorded[name] = tags
    manifest["four_over_six"] = recorded
    manifest["files"] = dict(sorted(files.items()))
    with open(os.path.join(HERE, "MANIFEST.json"), "w") as out:
        json.dump(manifest, out, indent=1)
        out.write("\n")
    print(torch.__version__, torch.backends.cpu.get_cpu_capability())
