"""How each operator is written in ONNX.

Most are ONNX's own, with its inputs and attributes; a function is registered for the others, and for those that an
older opset lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir

from ...model import DTYPES, Node, Quantization, Tensor, numpy_dtype
from ...ops import OPERATORS, Operator, Trait
from ...ops.registry import ByName
from .constants import onnx_dtype
from .foreign import write_foreign
from .fused import NEUTRAL, changes_nothing
from .opsets import NO_TYPE, Lacks, has_cast, schema, since, takes, working_type
from .qdq import has_infinite, kept_apart

if TYPE_CHECKING:
    from .builder import Builder


class Site:
    """One node of the model that is being written, and its builder."""

    def __init__(self, builder: Builder, node: Node, operator: Operator) -> None:
        self.builder, self.node, self.operator = builder, node, operator
        self.attributes: dict[str, Any] = dict(node.attributes)
        self.name = node.label
        self.on_integers = False
        self.working = ""

    @property
    def only_moves(self) -> bool:
        """Whether the outputs contain only integers of the inputs."""
        return Trait.MOVE in self.operator.traits

    @property
    def opset(self) -> int:
        return self.builder.opset

    def has(self, index: int) -> bool:
        """Whether an optional input is present."""
        return index < len(self.node.inputs) and bool(self.node.inputs[index])

    def tensor(self, index: int) -> Tensor:
        return self.builder.model.tensors[self.node.inputs[index]]

    def output(self, index: int = 0) -> Tensor:
        return self.builder.model.tensors[self.node.outputs[index]]

    def rank(self, index: int) -> int:
        """How many dimensions an input has; Lacks if that is not known."""
        shape = self.tensor(index).shape
        if shape is None:
            raise Lacks("has an input of unknown rank")
        return len(shape)

    def real(self, index: int) -> ir.Value | None:
        """The real numbers of an input, or its integers if the node works on integers; None if it is absent."""
        if not self.on_integers:
            return self.builder.real(self.node.inputs[index]) if self.has(index) else None
        value = self.stored(index)
        if self.working and value is not None and self.tensor(index).quantization is not None:
            return self.to(self.working, value)
        return value

    @property
    def x(self) -> ir.Value:
        """The first input, as `real`."""
        value = self.real(0)
        assert value is not None
        return value

    @property
    def grid(self) -> Quantization:
        """The quantization of the output, which has one."""
        grid = self.output().quantization
        assert grid is not None
        return grid

    def define(self, name: str, value: ir.Value) -> None:
        """Define an output that was computed on integers, in the type that they were cast to."""
        if self.working:
            value = self.to(self.builder.model.tensors[name].dtype, value)
        self.builder.define(name, value)

    def stored(self, index: int) -> ir.Value | None:
        """An input in its stored form; None if it is absent."""
        return self.builder.stored(self.node.inputs[index]) if self.has(index) else None

    def cast(self, index: int, dtype: str) -> ir.Value:
        """The real numbers of an input as another type; a constant is written as that. Lacks if they may not fit."""
        tensor = self.tensor(index)
        mixed = Lacks(f"computes with {dtype} and {tensor.dtype}, which ONNX does not mix")
        if tensor.is_constant and tensor.quantization is None:
            with np.errstate(over="ignore", invalid="ignore"):
                values = tensor.array.astype(numpy_dtype(dtype))
            if DTYPES[dtype].is_integer and (values.astype(tensor.array.dtype) != tensor.array).any():
                raise mixed
            key = (tensor.name, dtype)
            return self.builder.once(key, lambda: self.builder.constant(f"{tensor.name}_{dtype}", values, dtype))
        own, other = DTYPES[tensor.dtype], DTYPES[dtype]
        if tensor.quantization is None and other.is_integer and (own.kind == "f" or own.bits > other.bits):
            raise mixed
        return self.to(dtype, self.real(index))

    def to(self, dtype: str, value: ir.Value | None) -> ir.Value:
        """A value cast to an element type; Lacks for types that the Cast of this opset does not have."""
        held = None if value is None or value.dtype is None else value.dtype.name.lower()
        for each in (held, onnx_dtype(dtype).name.lower()):
            if each and not has_cast(self.opset, each):
                raise Lacks(f"computes with {each}, which the Cast of that opset does not have")
        return self.emit("Cast", value, to=int(onnx_dtype(dtype)))

    def integers(self, index: int, what: str) -> list[int]:
        """The numbers of an input that must be constant in this opset."""
        tensor = self.tensor(index)
        if not tensor.is_constant:
            raise Lacks(f"supports computed {what} only in later opsets")
        return [int(each) for each in tensor.array.reshape(-1)]

    def emit(self, operator: str, *inputs: ir.Value | None, domain: str = "", **attributes: Any) -> ir.Value:
        """A node with one output, named after the node of the model."""
        return self.builder.emit(operator, *inputs, name=f"{self.name}_{operator}", domain=domain, **attributes)

    def emit_several(
        self, operator: str, inputs: Sequence[ir.Value | None], count: int, **attributes: Any
    ) -> list[ir.Value]:
        """A node with multiple outputs."""
        names = [f"{self.name}_{operator}"] * count
        return self.builder.emit_several(operator, inputs, names, attributes=attributes)

    def constant(self, what: str, array: Any) -> ir.Value:
        """An initializer named after the node of the model."""
        return self.builder.constant(f"{self.name}.{what}", np.asarray(array))


TRIVIAL = {"dilations": 1, "strides": 1, "pads": 0, "output_padding": 0}
"""ONNX's default for each dimension."""

VARIADIC = onnx.defs.OpSchema.FormalParameterOption.Variadic

Lower = Callable[[Site], "ir.Value | Sequence[ir.Value] | None"]
"""Emits a node and returns the real numbers of its outputs. None: it has defined the outputs itself."""

Write = Callable[[Site], "ir.Value | Sequence[ir.Value]"]

Sum = Callable[[Site], ir.Value]

lowers: ByName[Lower] = ByName()
"""Writers of operators that are not ONNX's own, or have another form there."""

lowers_before: ByName[Lower] = ByName()
"""Writers for opsets that do not have the operator yet."""

by_integers: ByName[Write] = ByName()
"""Writers of operators on integers, in the form qoperator; they raise Lacks before they write anything."""

adds_up: ByName[Sum] = ByName()
"""Writers of nodes that output exact sums of integers, as int32."""

among_integers: ByName[Lower] = ByName()
"""Writers of operators that move or clamp integers, in integer-only networks; None: nothing."""


EXTREMES = ("GlobalMaxPool", "ReduceMax", "ReduceMin")
"""Operators that have a result also of no elements: the end of the range."""


def _sums(site: Site) -> None:
    if site.node.operator not in adds_up:
        raise Lacks("computes integer sums that no ONNX operator computes")
    value = adds_up[site.node.operator](site)
    site.builder.name(value, site.name)
    site.builder.define(site.node.outputs[0], value)


def lower(builder: Builder, node: Node) -> None:
    """Write one node; Lacks if ONNX cannot express it."""
    operator = OPERATORS.get(node.operator)
    if operator is None or node.version > operator.version:
        return write_foreign(builder, node)
    site = Site(builder, node, operator)
    if node.operator in EXTREMES and _is_quantized(site) and 0 in (site.tensor(0).shape or ()):
        raise Lacks("reduces no elements, and ONNX's result would be outside the range of the output")
    if node.rule in operator.sum_rules:
        return _sums(site)
    moves_only_integers = _moves_only_integers(site)
    if (builder.is_integer_only or moves_only_integers) and _is_quantized(site):
        made = _among_integers(site)
        if made is not None and not site.on_integers and moves_only_integers:
            raise Lacks(f"moves {site.tensor(0).dtype}, which ONNX's operator does not; nor can real numbers be moved")
    elif _computed_on_integers(site):
        return None
    else:
        site.on_integers = _moves_integers(site)
        made = _real(site)
    if made is None:
        return None
    values = [made] if isinstance(made, ir.Value) else list(made)
    builder.name(values[0], site.name)
    for name, value in zip(node.outputs, values, strict=True):
        if name and site.on_integers:
            site.define(name, value)
        elif name:
            builder.define_real(name, value, inside=site.only_moves)
    return None


def _is_quantized(site: Site) -> bool:
    """Whether a node has quantized inputs and outputs."""
    return bool(site.node.inputs) and None not in (site.tensor(0).quantization, site.output().quantization)


def _moves_only_integers(site: Site) -> bool:
    """Whether a node moves integers, and cannot move their real numbers: float32 does not represent them, they are
    infinite, or there are many scales, which stay where they are along their axis."""
    moves = site.operator.moves or (site.node.operator in among_integers and not site.node.rule)
    if not moves or not site.node.inputs:
        return False
    x, grid = site.tensor(0), site.tensor(0).quantization
    return DTYPES[x.dtype].bits >= 32 or has_infinite(x) or (grid is not None and len(grid.scale) > 1)


def _among_integers(site: Site) -> ir.Value | Sequence[ir.Value] | None:
    """A node of an integer-only network, in which integers must not become floats."""
    dtype = site.tensor(0).dtype
    site.working = working_type(site.node.operator, dtype)
    site.on_integers = True
    among = among_integers.get(site.node.operator)
    made = among(site) if among is not None else None
    if made is not None:
        return made
    site.on_integers = site.only_moves and site.working != NO_TYPE
    site.working = site.working if site.on_integers else ""
    if not site.on_integers and _computed_on_integers(site):
        return None
    return _real(site)


def _real(site: Site) -> ir.Value | Sequence[ir.Value] | None:
    """Use the registered writer of the operator; else ONNX's operator of that name."""
    name = site.node.operator
    if name in lowers_before and schema(name, site.opset) is None:
        return lowers_before[name](site)
    return lowers.get(name, one_to_one)(site)


def _computed_on_integers(site: Site) -> bool:
    """Whether a node has been written by an operator on integers."""
    writer = by_integers.get(site.node.operator)
    if site.builder.form != "qoperator" or writer is None or site.output().quantization is None:
        return False
    try:
        made = writer(site)
    except Lacks:
        return False
    (value,) = [made] if isinstance(made, ir.Value) else made
    site.builder.name(value, site.name)
    site.builder.define(site.node.outputs[0], clamped(site, value))
    return True


def clamped(site: Site, value: ir.Value) -> ir.Value:
    """Integers inside [quant_min, quant_max]: operators on integers clamp to the whole range of their type."""
    output, low, high = site.output(), site.grid.quant_min, site.grid.quant_max
    limits = DTYPES[output.dtype]
    if (low, high) == (limits.minimum, limits.maximum):
        return value
    bounds = (
        site.builder.constant(f"{output.name}.{what}", np.array(limit), output.dtype)
        for what, limit in (("quant_min", low), ("quant_max", high))
    )
    return site.emit("Clip", value, *bounds)


def _moves_integers(site: Site) -> bool:
    """Whether a node works on integers, in the form qoperator: of 8 bits, as ONNX Runtime has all kernels for them."""
    if not site.only_moves or not site.node.inputs or site.builder.form != "qoperator":
        return False
    x, definition = site.tensor(0), schema(site.node.operator, site.opset)
    if x.quantization is None or DTYPES[x.dtype].bits != 8:
        return False
    return definition is not None and takes(definition, definition.inputs[0], x.dtype)


def one_to_one(site: Site, attributes: Mapping[str, Any] | None = None) -> Sequence[ir.Value]:
    """An operator of ONNX with the same inputs, and the same attributes if no others are given."""
    _check_types(site)
    made = plain(site, typed_inputs(site), attributes or site.attributes)
    name = site.node.operator
    is_removed = name in NEUTRAL and changes_nothing(name, site.tensor(0), site.tensor(1))
    if is_removed and real_type(site, site.output()) == "float32":
        return [kept_apart(site.builder, site.name, made[0])]
    return made


def _check_types(site: Site) -> None:
    """Lacks if an input is of a type that ONNX's operator does not have: a product of Booleans."""
    definition = schema(site.node.operator, site.opset)
    if definition is None or site.working:
        return
    cast = _one_type(site)
    for index in filter(site.has, range(len(site.node.inputs))):
        parameter = definition.inputs[min(index, len(definition.inputs) - 1)]
        dtype = real_type(site, site.tensor(index))
        if index not in cast and not takes(definition, parameter, dtype):
            raise Lacks(f"has an input of {dtype}, which ONNX's {site.node.operator} does not have in that opset")


def typed_inputs(site: Site) -> list[ir.Value | None]:
    """The real numbers of the inputs, cast to a common type where ONNX requires one."""
    wanted, indices = _one_type(site), range(len(site.node.inputs))
    return [site.cast(index, wanted[index]) if index in wanted else site.real(index) for index in indices]


def _one_type(site: Site) -> dict[int, str]:
    """The element types of inputs that ONNX does not allow in combination with the others."""
    definition = schema(site.node.operator, site.opset)
    if definition is None or not definition.inputs:
        return {}
    groups: dict[str, list[int]] = {}
    for index in filter(site.has, range(len(site.node.inputs))):
        parameter = definition.inputs[min(index, len(definition.inputs) - 1)]
        groups.setdefault(parameter.type_str, []).append(index)
    wanted: dict[int, str] = {}
    for variable, indices in groups.items():
        dtypes = {index: real_type(site, site.tensor(index)) for index in indices}
        if len(set(dtypes.values())) > 1:
            follows = definition.outputs[0].type_str == variable
            dtype = real_type(site, site.output()) if follows else _common(dtypes.values())
            wanted |= {index: dtype for index in indices if dtypes[index] != dtype}
    return wanted


def _common(dtypes: Collection[str]) -> str:
    """The type in which `run` computes: the widest of real numbers, or one that holds all integers."""
    reals = [dtype for dtype in dtypes if DTYPES[dtype].kind == "f"]
    if reals:
        return max(reals, key=lambda dtype: DTYPES[dtype].bits)
    return str(np.result_type(*map(numpy_dtype, dtypes)).name)


def real_type(site: Site, tensor: Tensor) -> str:
    """The element type of a tensor that the node reads or outputs."""
    return tensor.dtype if tensor.quantization is None or site.on_integers else "float32"


def plain(
    site: Site, inputs: Sequence[ir.Value | None], attributes: Mapping[str, Any], name: str = ""
) -> Sequence[ir.Value]:
    """The operator of that name in the opset that is written; Lacks if its signature differs there.

    Attributes at their defaults are omitted. An input that was an attribute in an older opset is written as one.
    """
    name = name or site.node.operator
    definition = schema(name, site.opset)
    if definition is None:
        raise Lacks(since(name))
    given, written = list(inputs), _without_defaults(site, attributes)
    variadic = definition.inputs and definition.inputs[-1].option == VARIADIC
    while len(given) > len(definition.inputs) and not variadic:
        if given.pop() is not None:
            parameter = site.operator.inputs[len(given)].name
            written[parameter] = site.integers(len(given), parameter)
    for key, value in written.items():
        if key not in definition.attributes:
            raise Lacks(f"has no {key} in that opset")
        if isinstance(value, str) and definition.attributes[key].type == onnx.defs.OpSchema.AttrType.INT:
            written[key] = int(onnx_dtype(value))
    names = [f"{site.name}_{name}" if output else "" for output in site.node.outputs]
    return site.builder.emit_several(name, given, names, attributes=written)


def written_attributes(site: Site) -> dict[str, Any]:
    """The attributes of a node that are not at their defaults."""
    return _without_defaults(site, site.attributes)


def _without_defaults(site: Site, attributes: Mapping[str, Any]) -> dict[str, Any]:
    known = site.operator.attributes

    def is_default(key: str, value: Any) -> bool:
        if key in TRIVIAL:
            return set(value) <= {TRIVIAL[key]}
        return key in known and bool(value == known[key].default) and (value == () or not isinstance(value, tuple))

    return {key: value for key, value in attributes.items() if not is_default(key, value)}
