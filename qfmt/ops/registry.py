"""The definition of an operator, and the table of all operators.

An operator is defined in one place: a function decorated with `@operator`. The function is its exact
reference on real numbers (NumPy, float32), its docstring is its meaning in docs/spec/operators.md, and the decorator
states the rest: signature, attributes, shape rule, treatment of quantized tensors, and, as plain data,
its form in each ecosystem.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from math import isqrt, prod
from operator import or_
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ..arrays import Array
from ..engines import TORCH_ENGINES
from ..errors import QfmtError, RunError, shortened
from ..model import DTYPES, Attribute, Dimension, Node, Quantization, Shape, Tensor, attribute_kind
from .shapes import INDICES, broadcast, same

if TYPE_CHECKING:
    import numpy as np


class Quantized(enum.Enum):
    """How an operator treats quantized tensors."""

    FLOAT_ONLY = "does not support quantized tensors"
    MOVES = "moves integers: the output has the quantization of the first input"
    COMPUTES = "dequantizes, computes in float32, quantizes by the stated quantize rule"
    ACCUMULATES = "accumulates exact integers, requantizes by the stated requantize rule"
    OWN = "has its own integer formulas; with a quantize rule it computes"
    WEIGHTS = "uses quantized weights: real results by the stated rule"
    INTEGERS = "uses stored integers: scales have no effect"


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


def is_usable(quantization: Quantization, rule: str) -> bool:
    """Whether the formula of a rule, which is not a quantize rule, can use integers with that quantization."""
    return quantization.is_affine if rule in LOOKUP_RULES else quantization.is_summable


class Trait(enum.Flag):
    """Properties of operators that passes, comparisons and backends use instead of names."""

    NONE = 0
    PRODUCT = enum.auto()
    """It sums products of its first two inputs."""
    MEAN = enum.auto()
    """A mean of the elements of windows, bins or axes."""
    MOVE = enum.auto()
    """Its outputs contain only elements of its first input."""
    CLAMP = enum.auto()
    """It moves elements and clamps them."""
    FILL = enum.auto()
    """It moves elements and inserts a value."""
    ELEMENTWISE = enum.auto()
    """Each element of its output depends on one element of each input, constants apart."""
    SIZES = enum.auto()
    """It reads only the shape."""
    REQUANTIZE = enum.auto()
    """It requantizes exact sums."""
    PLAIN = enum.auto()
    """Its inputs are integers without quantization, which mean themselves."""

    ANY_MOVE = MOVE | CLAMP | FILL
    """It moves elements, and may modify them, as in `Operator.moves`."""


def by_engine(rule: str, *, onnx: str = "divide", pt2e: str = "reciprocal", **others: str) -> dict[str, str]:
    """The rule that each engine uses: `rule` for those of PyTorch, but for the `others` by name.

    `pt2e` is not an engine but the rules of exported programs: dequantize, compute in float32, quantize.
    """
    return {**dict.fromkeys(TORCH_ENGINES, rule), **others, "onnx": onnx, "pt2e": pt2e}


QUANTIZE_ENGINES = by_engine("premultiplied")
REQUANTIZE_ENGINES = by_engine(
    "float_bias", x86="affine", onednn="affine", qnnpack="integer_bias_reciprocal", onnx="integer_bias", pt2e="affine"
)

DYNAMIC_ENGINES = by_engine(
    "dynamic_fma", onednn="dynamic_inverse", qnnpack="dynamic_add", onnx="dynamic_divide", pt2e="dynamic_reciprocal"
)


COUNTING = {
    "condition": ("bool",),
    "scales": ("float32", "float64"),
    **dict.fromkeys(("axes", "pads", "repeats", "shape", "sizes", "split"), ("int64",)),
    **dict.fromkeys(("axis", "ends", "indices", "offsets"), INDICES),
    **dict.fromkeys(("position_ids", "sequence_lens", "starts", "steps"), INDICES),
    **dict.fromkeys(("start", "limit", "delta", "y_zero_point"), ()),
}  # fmt: skip
"""Names of inputs that choose, count or place elements → their element types, if not any; none is quantized."""


FAMILIES_OF_REALS = ("activation", "attention", "functions", "normalization", "onnx_recurrent", "recurrent", "softmax")
ALSO_OF_INTEGERS = ("Relu", "Clip", "PRelu", "Sign", "Shrink")
OF_REALS = ("Sqrt", "Exp", "Log", "Reciprocal", "Sum", "Mean", "AveragePool", "GlobalAveragePool",
            "qfmt.AdaptiveAveragePool", "LpPool", "GlobalLpPool", "DequantizeLinear")  # fmt: skip
"""Operators, by family and by name, that ONNX has for floats only; and those of these families that it has for more."""


class Parameter(NamedTuple):
    """An input or output: `X`, optional `B?`, or any number `inputs*` (the last one only)."""

    name: str
    optional: bool
    variadic: bool


class AttributeSpec(NamedTuple):
    """A parameter fixed at conversion. `default` None: required. `kind` as in the file: i, f, s, or a list.
    `choices`: the values that it may have; empty: any."""

    kind: str
    default: Attribute | None
    meaning: str
    choices: tuple[Attribute, ...] = ()

    def wrong(self, value: Attribute) -> str:
        """What is wrong with a value that is none of the choices: "is 2, not 0 or 1"; empty if it is one."""
        if not self.choices or value in self.choices:
            return ""
        names = [repr(choice) for choice in self.choices]
        return f"is {shortened(repr(value), 60)}, not {', '.join(names[:-1])} or {names[-1]}"


class Operand(NamedTuple):
    """An input of an integer reference: the stored integers (or floats) and their quantization."""

    array: Array
    quantization: Quantization | None


class Result(NamedTuple):
    """The required result of an integer reference: dtype, quantization, and the stated rule."""

    dtype: np.dtype[Any]
    quantization: Quantization
    rule: str

    def expect(self, *rules: str) -> None:
        """RunError if the formula does not have the stated rule."""
        if self.rule not in rules:
            hint = f"use one of {', '.join(rules)}, or a quantize rule"
            raise RunError(f"the rounding rule {self.rule!r} is not supported here", hint=hint)


class Sums(NamedTuple):
    """How an operator sums integers exactly, without requantizing the sums.

    `function` computes them from the operands, in a type that fits them: `function(x, w, b, rule=…, **attributes)`.
    The first `factors` inputs are the integers that are multiplied or summed. `rules` are those of SUM_RULES that a
    node may state for it.
    """

    function: Callable[..., Array]
    rules: tuple[str, ...] = SUM_RULES
    factors: int = 2


class Inference(NamedTuple):
    """The input of a shape rule: input shapes, attributes, and the values of constant inputs.

    An absent optional input has the shape None and the value None.
    """

    shapes: Sequence[Shape]
    attributes: Mapping[str, Any]
    values: Sequence[Array | None]
    outputs: int | None = None
    """How many outputs the node has; None if the rule should tell it."""

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
"""Families of operators that read each element a few times; the work of others is outputs times inputs."""


PRODUCTS = ("qfmt.Linear", "MatMul", "Gemm", "MatMulInteger", "qfmt.DynamicLinear")
"""Operators that sum products along one dimension of their first two inputs."""

UNFIT = (ValueError, LookupError, TypeError, ArithmeticError, AttributeError, AssertionError, MemoryError)
"""Exceptions of a shape rule, or a reference, for inputs and attributes that do not fit together."""


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
    weights: tuple[int, ...] = ()
    selects: Callable[[Mapping[str, Attribute]], slice] | None = None
    torch: tuple[str, ...] = field(default=())
    traits: Trait = Trait.NONE

    @property
    def sum_rules(self) -> tuple[str, ...]:
        """The rules with which a node outputs exact sums, as int32."""
        return () if self.sums is None else self.sums.rules

    @property
    def moves(self) -> bool:
        """Whether its outputs are integers of its first input, at most clamped or padded."""
        return self.quantized is Quantized.MOVES

    @property
    def accumulates(self) -> bool:
        """Whether it sums products of integers, and requantizes the sums."""
        return self.quantized is Quantized.ACCUMULATES

    @property
    def takes_weights(self) -> bool:
        """Whether its weights are quantized, and its outputs float."""
        return self.quantized is Quantized.WEIGHTS

    def has_quantized_weights(self, inputs: Sequence[Operand | Tensor | None]) -> bool:
        """Of an operator that takes weights: whether one of them is quantized, so that a node states a rule."""
        return any(self.quantized_weights(inputs))

    def quantized_weights(self, inputs: Sequence[Operand | Tensor | None]) -> list[bool]:
        """For each weight of an operator that takes weights: whether it is quantized."""
        places = (self.weights or (0,)) if self.takes_weights else ()
        given = (inputs[index] for index in places if index < len(inputs))
        return [each.quantization is not None for each in given if each is not None]

    @property
    def takes_integers(self) -> bool:
        """Whether it uses stored integers."""
        return self.quantized is Quantized.INTEGERS

    @property
    def is_of_reals(self) -> bool:
        """Whether its first input has real numbers: integers without quantization are none."""
        return self.name in OF_REALS or (self.family in FAMILIES_OF_REALS and self.name not in ALSO_OF_INTEGERS)

    @property
    def is_real(self) -> bool:
        """Whether its outputs are never quantized."""
        if self.quantized is Quantized.COMPUTES:
            return not self.rules  # DequantizeLinear
        return self.quantized in (Quantized.FLOAT_ONLY, Quantized.WEIGHTS)

    def complete(self, given: Mapping[str, Attribute]) -> dict[str, Attribute]:
        """All attributes of a node, including defaults; QfmtError for one missing, unknown, or of a value that it may
        not have."""
        unknown = given.keys() - self.attributes.keys()
        if unknown:
            raise QfmtError(f"{self.name} has no attribute {', '.join(sorted(unknown))}")
        values = {}
        for name, spec in self.attributes.items():
            value = given.get(name, spec.default)
            if value is None:
                raise QfmtError(f"{self.name} needs the attribute {name}")
            if wrong := spec.wrong(value):
                raise QfmtError(f"the attribute {name!r} {wrong}")
            values[name] = value
        return values

    def infer(self, given: Inference) -> list[Shape]:
        """The shapes of the outputs; QfmtError for inputs and attributes that do not fit together, or UnknownRank."""
        try:
            return self.shape(given)
        except UNFIT as error:
            raise QfmtError(f"{self.name} has inputs or attributes that do not fit each other: {error}") from error

    def inferred(
        self, inputs: Sequence[Tensor | None], attributes: Mapping[str, Attribute], reads: Callable[[Tensor], bool]
    ) -> list[Shape]:
        """The shapes of the outputs for these inputs, of which constants that the function `reads` are known; [None]
        if they depend on an unknown rank. Raises what `infer` raises."""
        absent = [None] * (len(self.inputs) - len(inputs))
        shapes = [None if tensor is None else tensor.shape for tensor in inputs]
        once = {id(each): each for each in inputs if each is not None}  # a node may read one constant many times
        known = {at: tensor.array for at, tensor in once.items() if reads(tensor)}
        arrays = [known.get(id(tensor)) for tensor in inputs]
        try:
            return self.infer(Inference([*shapes, *absent], dict(attributes), [*arrays, *absent]))
        except UnknownRank:
            return [None]

    def work(self, read: Sequence[int], written: Sequence[int]) -> int:
        """About how many elements, or products of two, the reference processes, from the sizes of tensors."""
        if self.name == "Einsum":  # of one letter for each input, it reads all elements of the others for each one
            return prod(read)
        if self.family in IN_PASSING and self.name != "LRN":  # which reads each element once for each channel
            return sum(read) + sum(written)
        if self.name in PRODUCTS and len(read) > 1:  # [m, k] · [k, n] = [m, n], also of a batch: k² = mk · kn / mn
            return sum(read) + sum(written) * (isqrt(read[0] * read[1] // max(written[0], 1)) + 1)
        return sum(written) * max(read, default=1)

    def output_dtype(self, index: int, inputs: Sequence[str | None], attributes: Mapping[str, Any]) -> str | None:
        """The element type of an output that is not quantized; None if it is that of an unknown input.

        `inputs` are the element types of the inputs, None for an absent one, float32 for a quantized one.
        """
        kind, _, argument = self._dtype_of(index).partition(":")
        if kind == "attribute":
            return str(attributes[argument]) or (inputs[0] if inputs else None)
        place = self.followed(index)
        if place is not None:
            return inputs[place] if place < len(inputs) else None
        return kind

    def followed(self, index: int) -> int | None:
        """The place of the input whose element type that output has, unless it is quantized; None for other types."""
        kind, _, argument = self._dtype_of(index).partition(":")
        return int(argument or 0) if kind in ("same", "input") else None

    def _dtype_of(self, index: int) -> str:
        words = self.dtype.split()
        return words[min(index, len(words) - 1)]

    def likely_dtype(self, index: int, inputs: Sequence[str | None], attributes: Mapping[str, Any]) -> str:
        """The same; that of the first input for one that is not stated, float32 if there is none."""
        first = next((dtype for dtype in inputs if dtype), "float32")
        return self.output_dtype(index, inputs, attributes) or first


OPERATORS: dict[str, Operator] = {}
"""Every operator by name; filled when `qfmt.ops` is imported."""


def known(node: Node) -> Operator | None:
    """The operator of a node; None if qfmt does not know it in that version: nothing is known of such a node."""
    entry = OPERATORS.get(node.operator)
    return entry if entry is not None and node.version == entry.version else None


def has(node: Node, traits: Trait) -> bool:
    """Whether the operator of a node is known and has one of the traits."""
    entry = known(node)
    return entry is not None and bool(entry.traits & traits)


Function = TypeVar("Function", bound=Callable[..., Any])


class ByName(dict[str, Function]):
    """Functions by name; called with names, it registers the decorated function for them."""

    def __call__(self, *names: str) -> Callable[[Function], Function]:
        def register(function: Function) -> Function:
            self.update(dict.fromkeys(names, function))
            return function

        return register


ELEMENT_TYPES = tuple(DTYPES)
"""The choices of an attribute that is the name of an element type."""


def required(kind: str, meaning: str, choices: tuple[Attribute, ...] = ()) -> AttributeSpec:
    """An attribute without a default; kind is i, f, s, ii, ff or ss (doubled: a list)."""
    return AttributeSpec(kind, None, meaning, choices)


def optional(default: Attribute, meaning: str, choices: tuple[Attribute, ...] = ()) -> AttributeSpec:
    """An attribute with a default, which also determines its kind. Nodes in a file still state it."""
    kind = attribute_kind(default)
    return AttributeSpec(kind * 2 if isinstance(default, tuple) else kind, default, meaning, choices)


def truth(default: int, meaning: str) -> AttributeSpec:
    """An optional attribute that is 0 or 1."""
    return optional(default, meaning, (0, 1))


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
    weights: tuple[int, ...] | None = None,
    selects: Callable[[Mapping[str, Attribute]], slice] | None = None,
    torch: tuple[str, ...] = (),
    traits: Trait = Trait.NONE,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated float reference as an operator.

    `signature`: "X W B? -> Y". `dtype`: of the outputs: "same" as the first input, "input:1" as the second, a dtype
    name, or "attribute:NAME" (if that is empty: as the first input); if outputs differ, one word for each, "same
    int64". `engines`: the rule that each engine uses, where it rounds. `constants`: the inputs that are constants in
    every valid model. `weights`: the places of inputs that are multiplied with the first, or with the state.
    `selects`: the inputs whose elements the output consists of, by the attributes; between equal quantizations it
    moves integers (`only_moves`).
    `traits`: those that do not follow from the rest.
    """

    def register(reference: Callable[..., Any]) -> Callable[..., Any]:
        left, _, right = signature.partition("->")
        default_rules, default_engines = _DEFAULTS[quantized]
        default_weights = (1,) if quantized in (Quantized.ACCUMULATES, Quantized.WEIGHTS) else ()
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
            weights=default_weights if weights is None else weights,
            selects=selects,
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
