"""Makes a model one that any runtime can run, and that means what qfmt reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

REQUANT_SHIFT = "RequantShift"

CLIP_TAKES_INPUTS = 11
"""The first opset in which the bounds of Clip are inputs; before, they are attributes."""


def opset_of(proto: Any) -> int:
    """The opset of the default domain; 1 if the model states none."""
    return next((each.version for each in proto.opset_import if each.domain in ("", "ai.onnx")), 1)


def runnable(proto: Any) -> Any:
    """Replace each RequantShift by standard nodes; inputs and outputs keep their names. A MatMulNBits may no longer
    round its inputs."""
    if not any(node.op_type in _SPELLED for node in proto.graph.node):
        return proto
    import onnx

    spelled = onnx.ModelProto()
    spelled.CopyFrom(proto)
    del spelled.graph.node[:]
    opset = opset_of(proto)
    for node in proto.graph.node:
        spell = _SPELLED.get(node.op_type)
        spelled.graph.node.extend([node] if spell is None else spell(node, spelled.graph.initializer, opset))
    return spelled


def _requant_shift(node: Any, initializers: Any, opset: int) -> Iterator[Any]:
    """clip(floor((x · mul + add) / div + 1/2)), in float64: exact for |x · mul + add| < 2^51.

    The format of QuantLab and Deeploy: n_levels (or n_levels_out) levels, starting at 0, or at -n_levels / 2 if
    signed. Attributes are numbers, or tensors of one element.
    """
    import onnx
    from onnx import TensorProto, helper

    given = {each.name: _number(helper.get_attribute_value(each)) for each in node.attribute}
    levels = given.get("n_levels_out", given.get("n_levels", 256.0))
    low = -(levels // 2) if given.get("signed") else 0.0
    own = f"{node.output[0]}.{REQUANT_SHIFT}."

    def constant(name: str, value: float, kind: type[np.floating[Any]] = np.float64) -> str:
        initializers.append(onnx.numpy_helper.from_array(np.array(value, kind), own + name))
        return own + name

    x, mul, add = (f"{own}{name}" for name in ("x", "mul", "add"))
    for name, wide in zip(node.input, (x, mul, add), strict=True):
        yield helper.make_node("Cast", [name], [wide], to=TensorProto.DOUBLE)
    steps = [
        ("Mul", mul),
        ("Add", add),
        ("Div", constant("div", given.get("div", 1.0))),
        ("Add", constant("half", 0.5)),
        ("Floor", ""),
    ]
    value = x
    for index, (operator, operand) in enumerate(steps):
        yield helper.make_node(operator, [value, operand] if operand else [value], [f"{own}{index}"])
        value = f"{own}{index}"
    yield helper.make_node("Cast", [value], [own + "rounded"], to=TensorProto.FLOAT)
    high = low + levels - 1
    if opset < CLIP_TAKES_INPUTS:
        yield helper.make_node("Clip", [own + "rounded"], list(node.output), min=low, max=high)
    else:
        bounds = [constant("low", low, np.float32), constant("high", high, np.float32)]
        yield helper.make_node("Clip", [own + "rounded", *bounds], list(node.output))


def _number(value: Any) -> float:
    if hasattr(value, "dims"):
        import onnx

        value = onnx.numpy_helper.to_array(value)
    return float(np.asarray(value).reshape(-1)[0])


def _matmul_nbits(node: Any, _initializers: Any, _opset: int) -> Iterator[Any]:
    """Without `accuracy_level`: with level 4, ONNX Runtime rounds inputs to blocks of int8."""
    import onnx

    exact = onnx.NodeProto()
    exact.CopyFrom(node)
    del exact.attribute[:]
    exact.attribute.extend(each for each in node.attribute if each.name != "accuracy_level")
    yield exact


_SPELLED: dict[str, Callable[[Any, Any, int], Iterator[Any]]] = {
    REQUANT_SHIFT: _requant_shift,
    "MatMulNBits": _matmul_nbits,
}
