"""Small ONNX models for tests, and how they are converted and compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import qfmt
from qfmt.model import Model

f32 = np.float32

OPSET = 21

Arrays = Mapping[str, np.ndarray]


def proto(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, Sequence[Any]]],
    outputs: Sequence[str] | Mapping[str, int],
    constants: Mapping[str, Any] | None = None,
    *,
    opset: int = OPSET,
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    """A model of these nodes. `inputs`: name → (element type, shape); `constants`: arrays or TensorProtos."""
    kinds = outputs if isinstance(outputs, Mapping) else dict.fromkeys(outputs, TensorProto.FLOAT)
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in kinds.items()],
        [_constant(name, value) for name, value in (constants or {}).items()],
    )
    domains = {node.domain for node in nodes if node.domain} | {function.domain for function in functions}
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in sorted(domains))]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=functions)


def _constant(name: str, value: Any) -> TensorProto:
    if isinstance(value, TensorProto):
        value.name = name
        return value
    return numpy_helper.from_array(np.asarray(value), name)


node = helper.make_node


def small(kind: int, values: Any) -> TensorProto:
    """A tensor of int4, uint4, int2, … from one number per value."""
    array = np.asarray(values)
    return helper.make_tensor("", kind, array.shape, array.reshape(-1).tolist())


def operators(model: Model) -> Counter[str]:
    """The number of occurrences of each operator with its rule: "Conv@integer_bias"."""
    return Counter(f"{each.operator}@{each.rule}" if each.rule else each.operator for each in model.nodes)


def random_inputs(model: onnx.ModelProto, seed: int = 0) -> dict[str, np.ndarray]:
    """For each input, normally distributed floats or integers in the whole range of its type; unknown sizes are
    2."""
    rng = np.random.default_rng(seed)
    stored = {tensor.name for tensor in model.graph.initializer}
    feeds = {}
    for value in model.graph.input:
        if value.name in stored:
            continue
        kind = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        shape = [size.dim_value or 2 for size in value.type.tensor_type.shape.dim]
        if kind.kind in "iu":
            limits = np.iinfo(kind)
            feeds[value.name] = rng.integers(limits.min, limits.max + 1, shape).astype(kind)
        else:
            feeds[value.name] = rng.normal(0, 2, shape).astype(kind)
    return feeds


def through_file(model: Model, folder: Any) -> Model:
    """The model, saved to a `.qfb` and loaded."""
    path = folder / "m.qfb"
    qfmt.save(model, path)
    return qfmt.load(path)


FLOAT, U8, I8, I32 = TensorProto.FLOAT, TensorProto.UINT8, TensorProto.INT8, TensorProto.INT32


def q(x: str, name: str, y: str, domain: str = "", **attributes: Any) -> onnx.NodeProto:
    return node("QuantizeLinear", [x, f"{name}.s", f"{name}.z"], [y], domain=domain, **attributes)


def dq(x: str, name: str, y: str, domain: str = "", **attributes: Any) -> onnx.NodeProto:
    return node("DequantizeLinear", [x, f"{name}.s", f"{name}.z"], [y], domain=domain, **attributes)


def grids(**named: tuple[Any, Any]) -> dict[str, np.ndarray]:
    """name → (scale, zero point): the constants of both, by their names in the model."""
    result = {}
    for name, (scale, point) in named.items():
        result[f"{name}.s"], result[f"{name}.z"] = np.asarray(scale, f32), np.asarray(point)
    return result


def conv_net(rng: np.random.Generator, *, relu: bool = True, bias: str = "int32") -> onnx.ModelProto:
    """x → Q → DQ → Conv (per channel) → Relu → Q → DQ → y, with u8 activations and s8 weights."""
    sw = rng.uniform(0.001, 0.02, 4).astype(f32)
    constants = {
        **grids(x=(0.05, np.uint8(117)), w=(sw, np.zeros(4, np.int8)), y=(0.11, np.uint8(40))),
        "w": rng.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8),
        "b.s": f32(0.05) * sw,
        "b.z": np.zeros(4, np.int32),
        "b": rng.integers(-2000, 2000, 4).astype(np.int32),
        "fb": rng.normal(0, 1, 4).astype(f32),
    }
    last = "c"
    nodes = [q("x", "x", "xq"), dq("xq", "x", "xd"), dq("w", "w", "wd", axis=0)]
    if bias == "int32":
        nodes.append(dq("b", "b", "bd", axis=0))
    names = ["xd", "wd"] + {"int32": ["bd"], "float": ["fb"], "none": []}[bias]
    nodes.append(node("Conv", names, ["c"], "conv", pads=[1, 1, 1, 1]))
    if relu:
        nodes.append(node("Relu", ["c"], ["r"]))
        last = "r"
    nodes += [q(last, "y", "yq"), dq("yq", "y", "y")]
    return proto(nodes, {"x": (FLOAT, [2, 3, 9, 9])}, ["y"], constants)
