"""Run one quantized convolution in TFLite (the wheel ai-edge-litert, in a separate environment):

    python tools/run_litert.py KERNELS given.npz y.npy

`given.npz` contains x [1, H, W, C] int8 and w [O, kh, kw, C] int8 (zero point 0), b [O] int32, the scales and zero
points `x_scale`, `x_zero`, `w_scale` [O], `y_scale`, `y_zero`, and `relu`. Strides are 1, the padding is SAME.
KERNELS are "reference", "built-in" (optimized, without a delegate) or "XNNPACK" (the default). tools/engines.py calls
this.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

try:
    import flatbuffers
    import numpy as np
    from ai_edge_litert import schema_py_generated as schema
    from ai_edge_litert.interpreter import Interpreter, OpResolverType
except ImportError as error:
    sys.exit(f"{__doc__}\n{error}")

KERNELS = {
    "reference": OpResolverType.BUILTIN_REF,
    "built-in": OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    "XNNPACK": OpResolverType.BUILTIN,
}


def tensor(name: str, shape: tuple[int, ...], dtype: int, buffer: int, scale: Any, zero_points: Any) -> Any:
    """A quantized tensor; multiple scales are along axis 0."""
    quantization = schema.QuantizationParametersT()
    quantization.scale = [float(each) for each in np.atleast_1d(scale)]
    quantization.zeroPoint = [int(each) for each in np.broadcast_to(zero_points, len(quantization.scale))]
    quantization.quantizedDimension = 0
    made = schema.TensorT()
    made.name, made.shape, made.type, made.buffer, made.quantization = name, list(shape), dtype, buffer, quantization
    return made


def flatbuffer(given: Any) -> bytes:
    """The convolution as a .tflite file."""
    x, w, b = given["x"], given["w"], given["b"]
    buffers = [schema.BufferT() for _ in range(3)]
    buffers[1].data, buffers[2].data = np.frombuffer(w.tobytes(), np.uint8), np.frombuffer(b.tobytes(), np.uint8)
    int8, int32 = schema.TensorType.INT8, schema.TensorType.INT32
    convolution = schema.Conv2DOptionsT()
    convolution.padding, convolution.strideW, convolution.strideH = schema.Padding.SAME, 1, 1
    convolution.dilationWFactor = convolution.dilationHFactor = 1
    kinds = schema.ActivationFunctionType
    convolution.fusedActivationFunction = kinds.RELU if given["relu"] else kinds.NONE
    operator = schema.OperatorT()
    operator.opcodeIndex, operator.inputs, operator.outputs = 0, [0, 1, 2], [3]
    operator.builtinOptionsType, operator.builtinOptions = schema.BuiltinOptions.Conv2DOptions, convolution
    graph = schema.SubGraphT()
    graph.tensors = [
        tensor("x", x.shape, int8, 0, given["x_scale"], given["x_zero"]),
        tensor("w", w.shape, int8, 1, given["w_scale"], 0),
        tensor("b", b.shape, int32, 2, given["x_scale"].astype(np.float64) * given["w_scale"], 0),
        tensor("y", (*x.shape[:3], len(b)), int8, 0, given["y_scale"], given["y_zero"]),
    ]
    graph.inputs, graph.outputs, graph.operators = [0], [3], [operator]
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.CONV_2D
    code.version = 3  # int8
    model = schema.ModelT()
    model.version, model.operatorCodes, model.subgraphs, model.buffers = 3, [code], [graph], buffers
    builder = flatbuffers.Builder(1 << 20)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def run(content: bytes, x: Any, kernels: Any) -> Any:
    interpreter = Interpreter(model_content=content, experimental_op_resolver_type=kernels, num_threads=1)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", choices=KERNELS)
    parser.add_argument("given", metavar="given.npz")
    parser.add_argument("result", metavar="y.npy")
    options = parser.parse_args()
    given = np.load(options.given)
    np.save(options.result, run(flatbuffer(given), given["x"], KERNELS[options.kernels]))


if __name__ == "__main__":
    main()
