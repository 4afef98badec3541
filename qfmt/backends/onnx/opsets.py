"""Which version of ONNX is written: the operator set, and the version of the file format that goes with it."""

from __future__ import annotations

from functools import cache
from typing import Any

import onnx

from ...errors import DestinationError

OLDEST = 13
"""The first opset whose QuantizeLinear has an axis."""

NEWEST = 26
"""The newest opset that this module has been tried with."""

WITHOUT_RUNTIME = 21
"""Taken where no ONNX Runtime is installed: the first opset with 4 and 16 bits, which runtimes of 2024 accept."""


def chosen(opset: int | None) -> int:
    """The opset asked for, or the newest that the installed ONNX Runtime accepts."""
    if opset is None:
        return newest()
    top = min(NEWEST, onnx.defs.onnx_opset_version())
    if not OLDEST <= opset <= top:
        raise DestinationError(f"ONNX opset {opset} cannot be written", hint=f"choose one from {OLDEST} to {top}")
    return opset


@cache
def newest() -> int:
    """The newest opset that the installed ONNX Runtime loads; it is asked, as it does not say."""
    try:
        from onnxruntime import InferenceSession, SessionOptions
    except ImportError:
        return WITHOUT_RUNTIME
    options = SessionOptions()
    options.log_severity_level = 4
    for opset in range(min(NEWEST, onnx.defs.onnx_opset_version()), OLDEST, -1):
        try:
            InferenceSession(_smallest(opset), options, providers=["CPUExecutionProvider"])
        except Exception:  # it has no type of error for this
            continue
        return opset
    return OLDEST


def ir_version(opsets: dict[str, int]) -> int:
    """The first version of the file format that has these opsets: the older, the more readers."""
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return int(onnx.helper.find_min_ir_version_for(imports, ignore_unknown=True))


def _smallest(opset: int) -> bytes:
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "", ends[:1], ends[1:])
    imports = [onnx.helper.make_opsetid("", opset)]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=ir_version({"": opset}))
    data: bytes = model.SerializeToString()
    return data


@cache
def schema(operator: str, opset: int) -> Any:
    """What ONNX says of an operator in that opset; None where it has none of that name."""
    try:
        return onnx.defs.get_schema(operator, opset, "")
    except onnx.defs.SchemaError:
        return None


def since(operator: str) -> str:
    """Why an operator is not in an opset."""
    first = min((each.since_version for each in _versions() if each.name == operator and not each.domain), default=0)
    return f"ONNX has it from opset {first} on" if first else "ONNX does not have it"


@cache
def _versions() -> tuple[Any, ...]:
    return tuple(onnx.defs.get_all_schemas_with_history())
