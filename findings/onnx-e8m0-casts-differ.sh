#!/usr/bin/env bash
# ONNX's Cast to FLOAT8E8M0 gives other codes in ONNX's own reference than in onnxruntime.
#
# onnx 1.23.2 (ReferenceEvaluator) and onnxruntime 1.32.0 (CPU), opset 24, on the same model. By the defaults (round_mode up,
# saturate 1) both round 1.25 up to 2. Of -3 the reference takes the magnitude, onnxruntime makes 2^-127; of infinity the
# reference makes NaN, onnxruntime the largest power; 2^-127, which code 0 is, becomes 2^-126 in the reference. With saturate 0
# onnxruntime makes NaN of zero, negative and tiny numbers, the reference does not: a block of zeros is harmless in one and NaN
# in the other. A scale of MXFP4 that a graph computes by a cast must be a normal positive power of two to be sure of its code.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q onnx==1.23.2 onnxruntime==1.32.0 ml_dtypes==0.6.0 numpy==2.4.6

cat > casts.py <<'PY'
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

values = np.array([1, 1.25, 3, 2.0**-127, 2.0**-130, 0, -3, np.inf], np.float32)


def model(saturate, back):
    nodes = [helper.make_node("Cast", ["x"], ["q"], to=TensorProto.FLOAT8E8M0, round_mode="up", saturate=saturate)]
    if back:
        nodes.append(helper.make_node("Cast", ["q"], ["y"], to=TensorProto.FLOAT))
    name, kind = ("y", TensorProto.FLOAT) if back else ("q", TensorProto.FLOAT8E8M0)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, values.shape)]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info(name, kind, values.shape)])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
    onnx.checker.check_model(made, full_check=True)
    return made


for saturate in (1, 0):
    codes = ReferenceEvaluator(model(saturate, False)).run(None, {"x": values})[0].view(np.uint8)
    print("saturate", saturate, "reference  ", *codes)
    session = onnxruntime.InferenceSession(
        model(saturate, True).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    back = session.run(None, {"x": values})[0].astype(np.float64)
    codes = [255 if np.isnan(one) else round(np.log2(one)) + 127 for one in back]
    print("saturate", saturate, "onnxruntime", *codes)
PY
found=$(venv/bin/python casts.py 2>/dev/null)
echo "codes of 1, 1.25, 3, 2^-127, 2^-130, 0, -3 and infinity:"
echo "$found"
expected="saturate 1 reference   127 128 129 1 1 0 129 255
saturate 1 onnxruntime 127 128 129 0 0 0 0 254
saturate 0 reference   127 128 129 1 1 0 129 255
saturate 0 onnxruntime 127 128 129 0 255 255 255 255"
[ "$found" = "$expected" ] || { echo "this has changed; it was:"; echo "$expected"; exit 1; }
