"""Which version of ONNX is written: the operator set, and the version of the file format that goes with it; and the
integer types of ONNX Runtime's kernels, where they are fewer than ONNX's (tested with version 1.31).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import onnx
import onnx.parser

from ...engines import FOR_RUNTIME
from ...errors import DestinationError
from ...model import DTYPES
from .constants import onnx_dtype

if TYPE_CHECKING:
    from ...model import Model


OLDEST = 13
"""The first opset whose QuantizeLinear has an axis."""

NEWEST = 26
"""The newest opset that this module has been tested with."""

WITHOUT_RUNTIME = 21
"""The default if no ONNX Runtime is installed: the first opset with 4 and 16 bits, which runtimes of 2024 accept."""


OTHER_SUMS = 19
"""The first opset whose AveragePool ONNX Runtime sums differently: ties are rounded differently."""


WITHOUT_KERNELS = ("GlobalLpPool", "MaxRoiPool", "RandomUniformLike", "RoiAlign")
"""Operators of which ONNX Runtime has kernels up to opset 21 only."""


class Lacks(Exception):
    """ONNX, or the requested opset, cannot express a node; the argument is the reason."""


def candidates(opset: int | None, model: Model) -> list[int]:
    """The requested opset, or the newest ones with which the installed ONNX Runtime runs such a model, best first.

    The opsets of operators that qfmt does not know come last.
    """
    if opset is None:
        quantized = [tensor for tensor in model.tensors.values() if tensor.quantization is not None]
        old_types = all(tensor.dtype in ("int8", "uint8", "int32") for tensor in quantized)
        kept = [node.outputs[0] for node in model.nodes if node.operator == "ai.onnx.QuantizeLinear" and node.outputs]
        stored = (*quantized, *(model.tensors[name] for name in kept if name))
        signed = any(tensor.dtype == "int8" and not tensor.is_constant for tensor in stored)
        foreign = {node.version for node in model.nodes if node.operator.startswith("ai.onnx.")}
        own = [version for version in sorted(foreign, reverse=True) if OLDEST <= version < newest()]
        former = [OTHER_SUMS - 1] if _averages_as_before(model) else []
        has_kernels = all(node.operator.removeprefix("ai.onnx.") not in WITHOUT_KERNELS for node in model.nodes)
        best = min(newest(signed and old_types), NEWEST if has_kernels else 21)
        return list(dict.fromkeys([*former, best, newest(), *own]))
    top = min(NEWEST, onnx.defs.onnx_opset_version())
    if not OLDEST <= opset <= top:
        raise DestinationError(f"ONNX opset {opset} cannot be written", hint=f"choose one from {OLDEST} to {top}")
    return [opset]


def _averages_as_before(model: Model) -> bool:
    """Whether a model came from an ONNX opset in which one of its AveragePools was computed differently."""
    written = model.source.get("format_version", "")
    is_number = written.isdecimal() and len(written) < 5  # it may come from anyone
    older = model.source.get("format") == "onnx" and is_number and int(written) < OTHER_SUMS
    return older and any(node.operator == "AveragePool" for node in model.nodes)


@cache
def newest(signed: bool = False) -> int:
    """The newest opset that the installed ONNX Runtime loads, found by loading models.

    The optimizer of version 1.31 breaks networks of int8 activations with opset 21 or later (when it moves
    DequantizeLinear after a Transpose, output_dtype and zero point disagree): `signed` tests for that, too.
    """
    os.environ.update(FOR_RUNTIME)
    try:
        from onnxruntime import InferenceSession, SessionOptions
    except ImportError:
        return WITHOUT_RUNTIME
    options = SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1  # these are loaded, not run
    for opset in range(min(NEWEST, onnx.defs.onnx_opset_version()), OLDEST, -1):
        try:
            InferenceSession(_probe(opset, signed), options, providers=["CPUExecutionProvider"])
        except Exception:  # it has no error type for this
            continue
        return opset
    return OLDEST


def _probe(opset: int, signed: bool) -> bytes:
    """The smallest network; of `signed` ones the smallest that is optimized as described above."""
    text = """
    agraph (float[2, 2] x, int8[2, 2] q) => (float[2, 2] y)
    <float s = {0.5}, int8 z = {1}> { REAL  t = Transpose(r)  y = MatMul(t, x) }"""
    real = "r = DequantizeLinear(q, s, z)" if signed else "r = Identity(x)"
    graph = onnx.parser.parse_graph(text.replace("REAL", real))
    imports = [onnx.helper.make_opsetid("", opset)]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=ir_version({"": opset}))
    data: bytes = model.SerializeToString()
    return data


def ir_version(opsets: dict[str, int]) -> int:
    """The first version of the file format that has these opsets: older versions have more readers."""
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return int(onnx.helper.find_min_ir_version_for(imports, ignore_unknown=True))


def schema(operator: str, opset: int) -> Any:
    """ONNX's schema of an operator in that opset; None if there is none with that name."""
    return _schema(operator, opset) if operator in _names() else None  # a file may have any names, which would be kept


@cache
def _names() -> frozenset[str]:
    return frozenset(each.name for each in _versions() if not each.domain)


@cache
def _schema(operator: str, opset: int) -> Any:
    try:
        return onnx.defs.get_schema(operator, min(opset, onnx.defs.onnx_opset_version()), "")  # it requires an int32
    except onnx.defs.SchemaError:
        return None


class Signature(NamedTuple):
    """The types of an operator's inputs and outputs: a name of one, a variable of `allowed`, or None for any."""

    inputs: tuple[str | None, ...]
    outputs: tuple[str | None, ...]
    allowed: Mapping[str, frozenset[str]]

    @staticmethod
    def of(parameters: tuple[str | None, ...], index: int) -> str | None:
        """The type of one of them; the last one may be there several times."""
        return parameters[min(index, len(parameters) - 1)] if parameters else None


def signature(operator: str, opset: int) -> Signature | None:
    """The types of ONNX's operator in that opset; None if there is none with that name."""
    return None if schema(operator, opset) is None else _signature(operator, opset)


@cache
def _signature(operator: str, opset: int) -> Signature:
    definition = schema(operator, opset)
    inputs, outputs = (
        tuple(each.type_str if each.is_homogeneous else None for each in parameters)
        for parameters in (definition.inputs, definition.outputs)
    )
    allowed = {each.type_param_str: frozenset(each.allowed_type_strs) for each in definition.type_constraints}
    return Signature(inputs, outputs, allowed)


def takes(definition: Any, parameter: Any, dtype: str) -> bool:
    """Whether a parameter of an operator may have that element type."""
    spelled = f"tensor({onnx_dtype(dtype).name.lower()})"
    return bool(parameter.type_str == spelled) or any(
        constraint.type_param_str == parameter.type_str and spelled in constraint.allowed_type_strs
        for constraint in definition.type_constraints
    )


def has_cast(opset: int, dtype: str) -> bool:
    """Whether the Cast of an opset has an element type: those of less than 8 bits came later."""
    cast = schema("Cast", opset)
    return takes(cast, cast.inputs[0], dtype)


def since(operator: str) -> str:
    """Why an operator is not in an opset."""
    first = min((each.since_version for each in _versions() if each.name == operator and not each.domain), default=0)
    return f"ONNX supports it from opset {first} on" if first else "ONNX does not have it"


@cache
def _versions() -> tuple[Any, ...]:
    return tuple(onnx.defs.get_all_schemas_with_history())


BYTES_ONLY = ("MaxPool", "DepthToSpace", "SpaceToDepth")
"""Operators that support only integers of 8 bits."""

BYTES_AND_INT32 = ("Clip", "GlobalMaxPool", "Pad", "ReduceMax", "ReduceMin", "Relu")
"""Operators that support integers of 8 and 32 bits, or are expressed by such. Others support all of 8 bits and more."""

NO_TYPE = "none"


def working_type(operator: str, dtype: str) -> str:
    """The type that integers are cast to before they are moved; empty: they are not; NO_TYPE: there is none."""
    bits, kind = DTYPES[dtype].bits, DTYPES[dtype].kind
    if bits < 8:
        return "int8" if kind == "i" else "uint8"
    if operator in BYTES_ONLY and bits > 8:
        return NO_TYPE
    return "int32" if operator in BYTES_AND_INT32 and bits == 16 else ""
