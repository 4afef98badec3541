"""What an operator is, and the table of all of them.

An operator is defined in one place: a function decorated with `@operator`. The function is its exact
reference on real numbers (NumPy, float32), its docstring is its meaning in docs/spec/operators.md, and the decorator
says the rest: signature, attributes, shape rule, what happens on quantized tensors, and, as plain data,
how each ecosystem spells it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ..arrays import Array
from ..engines import TORCH_ENGINES
from ..errors import QfmtError, RunError
from ..model import Attribute, Dimension, Node, Quantization, Shape, attribute_kind
from .shapes import broadcast, same

if TYPE_CHECKING:
    import numpy as np


class Quantized(enum.Enum):
    """What an operator does when its tensors are quantized."""

    FLOAT_ONLY = "takes no quantized tensors"
    MOVES = "moves integers: the output has the quantization of the first input"
    COMPUTES = "dequantizes, computes in float32, quantizes by the stated quantize rule"
    ACCUMULATES = "accumulates exact integers, requantizes by the stated requantize rule"
    OWN = "has integer formulas of its own; by a quantize rule it computes"
    WEIGHTS = "takes quantized weights: real results by the stated rule"
    INTEGERS = "takes integers as they are stored: scales do not count"


QUANTIZE_RULES = ("reciprocal", "divide", "reciprocal_offset", "reciprocal_fma", "premultiplied")
REQUANTIZE_RULES = ("float_bias", "integer_bias", "integer_bias_reciprocal", "affine")
DYNAMIC_RULES = (
    "dynamic_fma",
    "dynamic_add",
    "dynamic_inverse",
    "dynamic_divide",
    "dynamic_reciprocal",
    "dynamic_symmetric",
)
LOOKUP_RULES = ("lookup_float32", "lookup_float16")
SUM_RULES = ("exact", "folded")


class Trait(enum.Flag):
    """What passes, comparisons and backends ask of an operator, whatever its name."""

    NONE = 0
    PRODUCT = enum.auto()
    """It adds up products of its first two inputs."""
    MEAN = enum.auto()
    """A mean of the elements of windows, bins or axes."""
    MOVE = enum.auto()
    """Its outputs hold elements of its first input, and no others."""
    CLAMP = enum.auto()
    """It moves elements and clamps them."""
    FILL = enum.auto()
    """It moves elements and puts in a number of its own."""
    ELEMENTWISE = enum.auto()
    """Each element of its output depends on one element of each input, constants apart."""
    SIZES = enum.auto()
    """It reads only how many elements there are."""
    REQUANTIZE = enum.auto()
    """It brings exact sums to another grid."""

    ANY_MOVE = MOVE | CLAMP | FILL
    """It moves elements, whatever else it does with them: what `Operator.moves` says of all."""


def by_engine(rule: str, *, onnx: str = "divide", pt2e: str = "reciprocal", **others: str) -> dict[str, str]:
    """The rule that each engine uses: `rule` for those of PyTorch, but for the `others` by name.

    `pt2e` names no program but what exported ones state: dequantize, compute in float32, quantize.
    """
    return {**dict.fromkeys(TORCH_ENGINES, rule), **others, "onnx": onnx, "pt2e": pt2e}


QUANTIZE_ENGINES = by_engine("premultiplied")
REQUANTIZE_ENGINES = by_engine(
    "float_bias",
    x86="affine",
    onednn="affine",
    qnnpack="integer_bias_reciprocal",
    onnx="integer_bias",
    pt2e="affine",
)

DYNAMIC_ENGINES = by_engine(
    "dynamic_fma", onednn="dynamic_inverse", qnnpack="dynamic_add", onnx="dynamic_divide", pt2e="dynamic_reciprocal"
)


class Parameter(NamedTuple):
    """An input or output: `X`, optional `B?`, or any number `inputs*` (the last one only)."""

    name: str
    optional: bool
    variadic: bool


class AttributeSpec(NamedTuple):
    """A parameter fixed at conversion. `default` None: required. `kind` as in the file: i, f, s, or a list.

    `may_lack`: a node may lack it, because it only says what is known about the node.
    """

    kind: str
    default: Attribute | None
    meaning: str
    may_lack: bool = False


class Operand(NamedTuple):
    """An input of an integer reference: the stored integers (or floats) and what they mean."""

    array: Array
    quantization: Quantization | None


class Result(NamedTuple):
    """What an integer reference has to produce: dtype, quantization, and the stated rule."""

    dtype: np.dtype[Any]
    quantization: Quantization
    rule: str

    def expect(self, *rules: str) -> None:
        """RunError if the stated rule is none of those that the formula has."""
        if self.rule not in rules:
            hint = f"use one of {', '.join(rules)}, or a quantize rule"
            raise RunError(f"the rounding rule {self.rule!r} is not supported here", hint=hint)


class Sums(NamedTuple):
    """How an operator adds integers up, exactly, without bringing the sums to another grid.

    `function` gives them from the operands, in a type that holds them: `function(x, w, b, rule=…, **attributes)`.
    The first `factors` inputs are the integers that are multiplied or added up. `rules` are those of SUM_RULES that a
    node may state for it.
    """

    function: Callable[..., Array]
    rules: tuple[str, ...] = SUM_RULES
    factors: int = 2


class Inference(NamedTuple):
    """What a shape rule knows: input shapes, attributes, and the values of inputs that are constants.

    An absent optional input has the shape None and the value None.
    """

    shapes: Sequence[Shape]
    attributes: Mapping[str, Any]
    values: Sequence[Array | None]

    def known(self, index: int) -> tuple[Dimension, ...]:
        """The shape of an input whose rank the rule needs; QfmtError if there is none."""
        shape = self.shapes[index]
        if shape is None:
            raise UnknownRank(index)
        return shape


IN_PASSING = (
    "activation", "creation", "elementwise", "functions", "indexing", "layout", "logic", "normalization", "reduction",
    "selection", "softmax",
)  # fmt: skip
"""Families of operators that look at each element a few times; others multiply outputs by as much as an input."""


UNFIT = (ValueError, LookupError, TypeError, ArithmeticError, AttributeError, AssertionError, MemoryError)
"""What a shape rule, or a reference, raises for inputs and attributes that do not go together."""


class UnknownRank(Exception):
    """A shape rule needs the rank of input `index`; the caller may know how to find it."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


ShapeRule = Callable[[Inference], list[Shape]]


@dataclass(frozen=True, slots=True)
class Operator:
    """One entry of the table; see the module docstring and docs/spec/operators.md."""

    name: str
    version: int
    family: str
    meaning: str
    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    attributes: Mapping[str, AttributeSpec]
    quantized: Quantized
    rules: tuple[str, ...]
    engines: Mapping[str, str]
    dtype: str
    shape: ShapeRule
    reference: Callable[..., Any]
    integer: Callable[..., Any] | None
    sums: Sums | None = None
    constants: tuple[str, ...] = ()
    torch: tuple[str, ...] = field(default=())
    traits: Trait = Trait.NONE

    @property
    def sum_rules(self) -> tuple[str, ...]:
        """The rules by which a node gives exact sums, as int32."""
        return () if self.sums is None else self.sums.rules

    @property
    def moves(self) -> bool:
        """Whether its outputs are integers of its first input, clamped or filled up at most."""
        return self.quantized is Quantized.MOVES

    @property
    def accumulates(self) -> bool:
        """Whether it adds up products of integers, and requantizes the sums."""
        return self.quantized is Quantized.ACCUMULATES

    @property
    def takes_weights(self) -> bool:
        """Whether its weights are quantized, and its outputs real."""
        return self.quantized is Quantized.WEIGHTS

    @property
    def takes_integers(self) -> bool:
        """Whether it takes integers as they are stored."""
        return self.quantized is Quantized.INTEGERS

    @property
    def is_real(self) -> bool:
        """Whether its outputs are never quantized."""
        return self.quantized in (Quantized.FLOAT_ONLY, Quantized.WEIGHTS)

    def complete(self, given: Mapping[str, Attribute]) -> dict[str, Attribute]:
        """All attributes that a node has, those not given at their defaults; QfmtError for one missing or unknown."""
        unknown = given.keys() - self.attributes.keys()
        if unknown:
            raise QfmtError(f"{self.name} has no attribute {', '.join(sorted(unknown))}")
        values = {}
        for name, spec in self.attributes.items():
            if spec.may_lack and name not in given:
                continue
            value = given.get(name, spec.default)
            if value is None:
                raise QfmtError(f"{self.name} needs the attribute {name}")
            values[name] = value
        return values

    def infer(self, given: Inference) -> list[Shape]:
        """The shapes of the outputs; QfmtError for inputs and attributes that do not go together, or UnknownRank."""
        try:
            return self.shape(given)
        except UNFIT as error:
            raise QfmtError(f"{self.name} has inputs or attributes that do not fit each other: {error}") from error

    def work(self, read: Sequence[int], written: Sequence[int]) -> int:
        """About how many elements, or products of two, the reference looks at; of how many elements tensors have."""
        if self.family in IN_PASSING:
            return sum(read) + sum(written)
        return sum(written) * max(read, default=1)

    def output_dtype(self, index: int, inputs: Sequence[str | None], attributes: Mapping[str, Any]) -> str | None:
        """The element type of an output that is not quantized; None where it is that of an input that is not known.

        `inputs` are the element types of the inputs, None for an absent one, float32 for a quantized one.
        """
        words = self.dtype.split()
        kind, _, argument = words[min(index, len(words) - 1)].partition(":")
        if kind == "attribute":
            return str(attributes[argument]) or (inputs[0] if inputs else None)
        if kind in ("same", "input"):
            place = int(argument or 0)
            return inputs[place] if place < len(inputs) else None
        return kind


OPERATORS: dict[str, Operator] = {}
"""Every operator by name; filled when `qfmt.ops` is imported."""


def has(node: Node, traits: Trait) -> bool:
    """Whether the operator of a node is known and has one of the traits."""
    entry = OPERATORS.get(node.operator)
    return entry is not None and bool(entry.traits & traits)


Function = TypeVar("Function", bound=Callable[..., Any])


class ByName(dict[str, Function]):
    """Functions by the names of what they are for; called with names, it registers the decorated function for them."""

    def __call__(self, *names: str) -> Callable[[Function], Function]:
        def register(function: Function) -> Function:
            self.update(dict.fromkeys(names, function))
            return function

        return register


def required(kind: str, meaning: str) -> AttributeSpec:
    """An attribute without a default; kind is i, f, s, ii, ff or ss (doubled: a list)."""
    return AttributeSpec(kind, None, meaning)


def optional(default: Attribute, meaning: str) -> AttributeSpec:
    """An attribute with a default, which also tells its kind. Nodes in a file write it all the same."""
    kind = attribute_kind(default)
    return AttributeSpec(kind * 2 if isinstance(default, tuple) else kind, default, meaning)


def operator(
    name: str,
    version: int,
    signature: str,
    *,
    shape: ShapeRule,
    quantized: Quantized,
    attributes: Mapping[str, AttributeSpec] | None = None,
    rules: tuple[str, ...] | None = None,
    engines: Mapping[str, str] | None = None,
    dtype: str = "same",
    integer: Callable[..., Any] | None = None,
    sums: Sums | None = None,
    constants: tuple[str, ...] = (),
    torch: tuple[str, ...] = (),
    traits: Trait = Trait.NONE,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated float reference as an operator.

    `signature`: "X W B? -> Y". `dtype`: of the outputs: "same" as the first input, "input:1" as the second, a dtype
    name, or "attribute:NAME" (where that is empty: as the first input); where outputs differ a word for each, "same
    int64". `engines`: the rule that each engine uses, where it rounds. `constants`: the inputs that are constants in
    every valid model. `traits`: those that do not follow from the rest.
    """

    def register(reference: Callable[..., Any]) -> Callable[..., Any]:
        left, _, right = signature.partition("->")
        default_rules, default_engines = _DEFAULTS[quantized]
        OPERATORS[name] = Operator(
            name=name,
            version=version,
            family=reference.__module__.rpartition(".")[2],
            meaning=_meaning(reference),
            inputs=_parameters(left),
            outputs=_parameters(right),
            attributes=dict(attributes or {}),
            quantized=quantized,
            rules=default_rules if rules is None else rules,
            engines=default_engines if engines is None else engines,
            dtype=dtype,
            shape=shape,
            reference=reference,
            integer=integer,
            sums=sums,
            constants=constants,
            torch=torch,
            traits=traits | _implied(quantized, shape, left, integer, sums),
        )
        return reference

    return register


_DEFAULTS: dict[Quantized, tuple[tuple[str, ...], Mapping[str, str]]] = {
    Quantized.FLOAT_ONLY: ((), {}),
    Quantized.MOVES: ((), {}),
    Quantized.COMPUTES: (QUANTIZE_RULES, QUANTIZE_ENGINES),
    Quantized.ACCUMULATES: (REQUANTIZE_RULES, REQUANTIZE_ENGINES),
    Quantized.OWN: ((), {}),
    Quantized.WEIGHTS: (DYNAMIC_RULES, DYNAMIC_ENGINES),
    Quantized.INTEGERS: ((), {}),
}


def _implied(quantized: Quantized, shape: ShapeRule, inputs: str, integer: object, sums: Sums | None) -> Trait:
    """The traits that follow from the other facts of an entry."""
    told = {
        Trait.PRODUCT: quantized is Quantized.ACCUMULATES,
        Trait.MEAN: sums is not None and sums.factors == 1,
        Trait.MOVE: quantized is Quantized.MOVES and integer is None,
        Trait.ELEMENTWISE: shape is broadcast or (shape is same and len(inputs.split()) == 1),
    }
    return reduce(or_, (trait for trait, holds in told.items() if holds), Trait.NONE)


def _parameters(text: str) -> tuple[Parameter, ...]:
    return tuple(Parameter(word.rstrip("?*"), word.endswith("?"), word.endswith("*")) for word in text.split())


def _meaning(reference: Callable[..., Any]) -> str:
    lines = (reference.__doc__ or "").strip().splitlines()
    return "\n".join(line.strip() for line in lines)
