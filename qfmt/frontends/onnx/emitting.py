"""Nodes and tensors of a Model that is being made of an ONNX graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ...arrays import Array
from ...budget import AT_ONCE, Budget
from ...errors import QfmtError, SourceError
from ...interpreter import execute
from ...model import DTYPES, Attribute, Node, Shape, Tensor, static_shape
from ...ops import OPERATORS, Inference, Operand, Operator, Trait, UnknownRank, has
from ...ops.quantization import is_static
from ...ops.shapes import tells_sizes
from ...passes.constants import unused
from .tensors import shape_of

_NOT_COMPUTED = ("ai.onnx.DequantizeLinear", "ai.onnx.QuantizeLinear")
"""Of constants: the passes make quantized constants of them."""


class Call(NamedTuple):
    """A node of ONNX: names of tensors ("" for absent ones) and attributes as Python values."""

    operator: str
    domain: str
    opset: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    name: str

    def input(self, position: int) -> str:
        """The name of an input, "" for one that is absent."""
        return self.inputs[position] if position < len(self.inputs) else ""

    @property
    def full_name(self) -> str:
        """The operator with its domain, as an opaque node states it."""
        return f"{self.domain or 'ai.onnx'}.{self.operator}"


class Emitter:
    """Collects nodes and tensors; known constants and shapes are computed immediately."""

    def __init__(self, outputs: set[str], taken: set[str], budget: Budget) -> None:
        self.outputs = outputs
        self.budget = budget
        self._taken = taken
        self.nodes: list[Node] = []
        self.tensors: dict[str, Tensor] = {}
        self.values: dict[str, Any] = {}
        """Values of onnx-ir by name, for the types and shapes that the model states."""
        self.preferred: dict[str, str] = {}
        """New tensors → the names of the file that they take if nothing else has these in the end."""
        self.call_ = Call("", "", 1, (), (), {}, "")
        """The node of ONNX that nodes are emitted for."""

    def emit(
        self,
        operator: str,
        inputs: Sequence[str],
        outputs: Sequence[str] | str = "",
        attributes: Mapping[str, Attribute] | None = None,
    ) -> str:
        """Add a node; the name of its first output. `outputs` are names, or the start of a new one.

        A node over constants is computed now, but for what dequantizes.
        """
        self.budget.node(len(inputs))
        self.budget.tensor(0 if isinstance(outputs, str) else len(outputs) - 1)
        entry = OPERATORS[operator]
        inputs = list(inputs)
        while inputs and not inputs[-1]:
            inputs.pop()
        _check_arity(entry, inputs)
        names = [self.fresh(outputs or operator.lower())] if isinstance(outputs, str) else list(outputs)
        names = [name or self.fresh(f"{operator.lower()}_unused") for name in names]
        complete = entry.complete(attributes or {})
        shapes = self._infer(operator, inputs, complete)
        for position, name in enumerate(names):
            dtype = self._dtype(operator, inputs, complete, position)
            shape = shapes[min(position, len(shapes) - 1)]
            self.tensors[name] = Tensor(name, dtype, self._refined(name, shape))
        node = Node(
            operator=operator,
            inputs=tuple(inputs),
            outputs=tuple(names),
            attributes=complete,
            name=self.call_.name,
            version=entry.version,
            source_operator=f"{self.call_.domain}.{self.call_.operator}".lstrip("."),
        )
        if not self._computed(node):
            self.nodes.append(node)
        return names[0]

    def constant(self, array: Any, name: str, dtype: str = "", aliases: Sequence[str] = ()) -> str:
        """A new constant, of that name or one like it; `dtype` where it is not that of the array."""
        own, array = self.fresh(name), np.asarray(array)
        self.budget.allocate(array.nbytes)
        self.tensors[own] = Tensor.constant(own, array, dtype=dtype or None, aliases=tuple(aliases))
        return own

    def value(self, name: str) -> Array | None:
        """The array of a constant; None if the tensor is computed or absent."""
        tensor = self.tensors.get(name)
        return tensor.array if tensor is not None and tensor.data is not None else None

    def shape(self, name: str) -> Shape:
        return self.tensors[name].shape

    def rank(self, name: str) -> int | None:
        shape = self.tensors[name].shape
        return None if shape is None else len(shape)

    def fresh(self, base: str) -> str:
        """A name that no tensor has."""
        name = unused(base, self._taken)
        self._taken.add(name)
        return name

    def _infer(self, operator: str, inputs: Sequence[str], attributes: Mapping[str, Any]) -> list[Shape]:
        missing = [None] * (len(OPERATORS[operator].inputs) - len(inputs))
        shapes = [self.tensors[name].shape if name else None for name in inputs]
        arrays = [self.value(name) if name and tells_sizes(self.tensors[name]) else None for name in inputs]
        try:
            return OPERATORS[operator].infer(Inference([*shapes, *missing], attributes, [*arrays, *missing]))
        except UnknownRank:
            return [None]

    def _refined(self, name: str, shape: Shape) -> Shape:
        """An inferred shape, and where that knows nothing what the model says of the value."""
        value = self.values.get(name)
        stated = None if value is None else shape_of(value)
        if shape is None or stated is None or len(shape) != len(stated):
            return stated if shape is None else shape
        return tuple(b if a is None else a for a, b in zip(shape, stated, strict=True))

    def _dtype(self, operator: str, inputs: Sequence[str], attributes: Mapping[str, Any], position: int) -> str:
        dtypes = [self.tensors[name].dtype if name else None for name in inputs]
        first = next((dtype for dtype in dtypes if dtype), "float32")
        return OPERATORS[operator].output_dtype(position, dtypes, attributes) or first

    def _computed(self, node: Node) -> bool:
        """Whether all inputs are constants, so that the outputs became constants, too."""
        if node.operator in _NOT_COMPUTED or not node.inputs:
            return False
        tensors = [self.tensors[name] if name else None for name in node.inputs]
        if any(tensor is not None and tensor.data is None for tensor in tensors):
            return False
        if node.operator == "Clip" and tensors[0] is not None and DTYPES[tensors[0].dtype].is_quantizable:
            return False  # the range of a weight: `passes.grids` makes quant_min and quant_max of it
        if any(name in self.outputs for name in node.outputs) or not self._is_affordable(node):
            return False
        operands = [None if tensor is None else Operand(tensor.array, None) for tensor in tensors]
        results = execute(node, operands, [self.tensors[name] for name in node.outputs])
        first = tensors[0]
        moved = has(node, Trait.ANY_MOVE) and first is not None
        aliases = (*first.aliases, first.name) if moved and first is not None else ()
        self.budget.spend(len(aliases))
        for name, array in zip(node.outputs, results, strict=True):
            dtype = self.tensors[name].dtype
            self.tensors[name] = Tensor.constant(name, array, dtype=dtype, aliases=tuple(sorted(set(aliases))))
        return True

    def _is_affordable(self, node: Node) -> bool:
        """Whether the budget pays for computing a node over constants. What is not computed stays a node.

        Half of what is left may go into one node, so that those behind it can still be read.
        """
        sizes = self._sizes(node)
        if sizes is None:
            return False
        operator, outputs = OPERATORS[node.operator], [self.tensors[name] for name in node.outputs]
        nbytes = sum(-(-size * DTYPES[each.dtype].bits // 8) for size, each in zip(sizes, outputs, strict=True))
        read = [prod(static_shape(self.tensors[name])) for name in node.inputs if name]
        work = operator.work(read, sizes)
        if 2 * nbytes > self.budget.bytes - self.budget.spent_bytes:
            return False
        if 2 * (work // AT_ONCE) > self.budget.operations - self.budget.spent_operations:
            return False
        self.budget.compute(work, nbytes)
        return True

    def _sizes(self, node: Node) -> list[int] | None:
        """How many elements each output of a node over constants has, at most; None if that is not known."""
        first = static_shape(self.tensors[node.inputs[0]]) if node.inputs[0] else ()
        if node.operator in ("NonZero", "Compress"):  # not known before, but not more than all of the input
            return [prod(first) * (len(first) if node.operator == "NonZero" else 1)]
        shapes = [self.tensors[name].shape for name in node.outputs]
        if any(shape is None or None in shape for shape in shapes):
            entry = OPERATORS[node.operator]
            missing = [None] * (len(entry.inputs) - len(node.inputs))
            known = [self.tensors[name].shape if name else None for name in node.inputs]
            arrays = [self.value(name) if name else None for name in node.inputs]
            try:
                inferred = entry.infer(Inference([*known, *missing], node.attributes, [*arrays, *missing]))
            except (QfmtError, UnknownRank):
                return None
            shapes = [inferred[min(index, len(inferred) - 1)] for index in range(len(node.outputs))]
        counts = [prod(shape) for shape in shapes if is_static(shape)]
        return counts if len(counts) == len(shapes) else None


def _check_arity(operator: Operator, inputs: Sequence[str]) -> None:
    """SourceError for more inputs than an operator has, or fewer than it needs."""
    wanted = operator.inputs
    if len(inputs) > len(wanted) and not wanted[-1].variadic:
        raise SourceError(f"has {len(inputs)} inputs, but {operator.name} has {len(wanted)}")
    given = len([parameter for parameter in wanted if not parameter.variadic])
    for index in range(max(len(inputs), given)):
        parameter = wanted[min(index, len(wanted) - 1)]
        if not parameter.optional and not (index < len(inputs) and inputs[index]):
            raise SourceError(f"its input {parameter.name} is absent")
