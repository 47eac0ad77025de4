#!/usr/bin/env bash
# A block of NVFP4 is not one DequantizeLinear in ONNX, and onnxruntime's CPU dequantises no 4-bit floats at all.
#
# onnx 1.23.2 checks and evaluates FLOAT4E2M1 codes with blocks of 32 and e8m0 scales from opset 24 (MXFP4), and with scales in f32, f16
# or bf16, but refuses scales in e4m3: those of NVFP4 must be dequantised by a node of their own first, which also is the place of
# the tensor's scale. The checked models load in no session of onnxruntime 1.32.0 on a CPU: NOT_IMPLEMENTED for FLOAT4E2M1 with
# every type of scale. A model that passes the checker thus says nothing on whether it runs.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q onnx==1.23.2 onnxruntime==1.32.0 ml_dtypes==0.6.0 numpy==2.4.6

cat > nodes.py <<'PY'
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

codes = helper.make_tensor("codes", TensorProto.FLOAT4E2M1, [1, 64], [0, 0.5, 1, 1.5, 2, 3, 4, 6] * 8)


def model(kind, opset, twice):
    scales = helper.make_tensor("scales", kind, [1, 2], [2, 0.5])
    nodes, of_codes = [], "scales"
    initial = [codes, scales]
    if twice:
        initial.append(helper.make_tensor("scale", TensorProto.FLOAT, [], [1]))
        nodes.append(helper.make_node("DequantizeLinear", ["scales", "scale"], ["wide"]))
        of_codes = "wide"
    own = {"axis": 1, "block_size": 32, "output_dtype": TensorProto.FLOAT}
    nodes.append(helper.make_node("DequantizeLinear", ["codes", of_codes], ["y"], **own))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 64])
    graph = helper.make_graph(nodes, "g", [], [y], initial)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=11)


def outcome(of):
    try:
        return of()
    except Exception as error:
        text = str(error)
        return next(word for word in ("unsupported type", "NOT_IMPLEMENTED", "INVALID_GRAPH") if word in text)


for name, kind, opset, twice in [
    ("e8m0, opset 23", TensorProto.FLOAT8E8M0, 23, False),
    ("e8m0, opset 24", TensorProto.FLOAT8E8M0, 24, False),
    ("bf16, opset 24", TensorProto.BFLOAT16, 24, False),
    ("e4m3, opset 24", TensorProto.FLOAT8E4M3FN, 24, False),
    ("e4m3 by a node of its own", TensorProto.FLOAT8E4M3FN, 24, True),
]:
    made = model(kind, opset, twice)

    def reference():
        onnx.checker.check_model(made, full_check=True)
        y = ReferenceEvaluator(made).run(None, {})[0]
        return f"{y[0, 7]:g} {y[0, 63]:g}"

    def session():
        run = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
        return f"{run.run(None, {})[0][0, 7]:g}"

    print(f"{name}: {outcome(reference)}; {outcome(session)}")
PY
found=$(venv/bin/python nodes.py 2>/dev/null)
echo "scales: two elements by the reference; onnxruntime"
echo "$found"
expected="e8m0, opset 23: unsupported type; INVALID_GRAPH
e8m0, opset 24: 12 3; NOT_IMPLEMENTED
bf16, opset 24: 12 3; NOT_IMPLEMENTED
e4m3, opset 24: unsupported type; INVALID_GRAPH
e4m3 by a node of its own: 12 3; NOT_IMPLEMENTED"
[ "$found" = "$expected" ] || { echo "this has changed; it was:"; echo "$expected"; exit 1; }
