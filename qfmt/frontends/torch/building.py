"""Nodes and tensors of a Model that is being built from torch calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from ...arrays import Array
from ...budget import READ, Budget
from ...engines import TORCH_ENGINES
from ...errors import SourceError
from ...graph import MAXIMUM_RANK
from ...interpreter import execute
from ...memory import Memory, available
from ...model import DTYPES, Attribute, Node, Quantization, Shape, Tensor, static_shape
from ...ops import OPERATORS, Operand, Trait
from ...ops.quantization import is_static
from ...ops.shapes import keeps_shape, tells_sizes
from ..stored import Storage, StoredTensor
from .calls import Place, Value
from .values import InputSpec, Size, StoredData, TensorValue, Unknown, Unsupported, stored_quantization

_COSTLY = {
    "convolution", "dynamic", "integer_products", "pooling", "resize", "sampling", "recurrent", "onnx_recurrent",
    "attention",
}  # fmt: skip
"""Families of operators that are never folded: they cost more than their inputs and outputs indicate."""

_ON_INTEGERS = Trait.MOVE | Trait.SIZES

_ORDERED = {"ArgMax", "ArgMin", "Concat", "DequantizeLinear", "Max", "Min"}
"""Operators with the same results, whether they get integers or the numbers for which these stand on one grid."""

_CHANNELS_LAST = {"BatchNormalization", "Conv", "ConvTranspose"}
"""Operators whose quantized results are channels last in torch, whatever the input is."""

_OTHERWISE = {
    "Celu", "DepthToSpace", "Elu", "Gather", "LayerNormalization", "Reshape", "Slice", "Softmax", "Split", "Tile",
    "TopK", "Transpose",
}  # fmt: skip
"""Operators whose results are not, whatever the input is; those of all others are as the first input is."""

REAL = {
    "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cos", "Cosh", "Erf", "Exp", "Log", "Reciprocal",
    "Sigmoid", "Sin", "Sinh", "Sqrt", "Tan", "Tanh",
}  # fmt: skip
"""Functions of real numbers: torch computes them in float32 if their inputs are integers or bools."""


INPUT = 10
"""Operations of an input, each time that a network is lifted again with new knowledge of one."""


class Builder:
    """Collects nodes and tensors; known constants and shapes are computed immediately."""

    def __init__(self, engine: str, assumed_rank: int, budget: Budget) -> None:
        self.engine = engine
        self.budget = budget
        self.assumed_rank = assumed_rank
        """The assumed rank of an input of unknown rank that a call depends on."""
        self.confirmed: set[str] = set()
        """Inputs whose rank a call required."""
        self.nodes: list[Node] = []
        self.makers: dict[str, Node] = {}
        """Keys of tensors → the nodes that compute them."""
        self.tensors: dict[str, Tensor] = {}
        self.inputs: dict[str, None] = {}
        """Keys of the inputs of the graph, in order."""
        self.reals: dict[str, str] = {}
        """Keys of inputs → those of their real numbers, where the network needs floats."""
        self.undecided: set[str] = set()
        """Keys of inputs whose quantization the user states: torch may need quantized tensors, or floats."""
        self.floats: set[str] = set()
        """Those of which it certainly needs floats."""
        self.asked: set[str] = set()
        """Those whose element type it asks for, which of floats is another one."""
        self.read: set[str] = set()
        """Keys of the tensors that nodes compute with, and not only with their sizes."""
        self.place = Place()
        self.target = ""
        """The call that nodes are emitted for, and its place."""
        self.fused_relu = False
        """Whether that call ends in a ReLU, as "quantized::conv2d_relu" does."""
        self.integers: set[str] = set()
        """Keys of quantized tensors that the source computes with as plain integers, as `quantized_decomposed` does."""
        self.dynamic: dict[str, Value] = {}
        """Keys of tensors that were quantized at run time → scale and zero point: see `operators.qparams`."""
        self.unsupported_calls: dict[str, list[str]] = {}
        """Unsupported calls → their places."""
        self.wanted: dict[str, str] = {}
        """Keys of tensors → their names in the source."""
        self.examples: dict[str, tuple[int, ...]] = {}
        """Key of an input → its shape in the trace."""
        self._stored: dict[tuple[int, str, Quantization | None], TensorValue] = {}
        self.stored_tensors: dict[str, StoredTensor] = {}
        """Constants by key, and the tensors of the archive that they are."""
        self.changed_state: list[tuple[str, Storage]] = []
        """The tensors of the module that calls change, by name: nothing may read them."""
        self.memory = Memory(int(min(4 * budget.bytes, available() // 2)), budget.hint, budget)

    def add_input(self, spec: InputSpec) -> TensorValue:
        """A graph input, in the order of `forward`'s arguments, as the network takes it."""
        self.budget.spend(INPUT)
        value = self._new(spec.dtype, spec.shape, spec.quantization, origin=spec.name)
        self.inputs[value.key] = None
        self.wanted[value.key] = spec.name
        if spec.example is not None:
            self.examples[value.key] = spec.example
        if not spec.is_real:
            if spec.quantization is not None and not spec.typed:
                self.undecided.add(value.key)
            return value
        real = self.emit("DequantizeLinear", [value], dtype="float32")
        self.reals[value.key] = real.key
        self.wanted[real.key] = f"{spec.name}.real"
        return real

    def dtype_like(self, value: TensorValue) -> str:
        """The element type of a new tensor like an existing one. Torch makes none like a quantized tensor, so an input
        is then one of floats."""
        if value.quantization is None:
            return value.dtype
        self.floats |= self.undecided & {value.key}
        return "float32"

    def emit(
        self, operator: str, inputs: Sequence[Any], attributes: Mapping[str, Attribute] | None = None, **options: Any
    ) -> TensorValue:
        """Add a node with one output; see `emit_many`."""
        (result,) = self.emit_many(operator, inputs, attributes, outputs=1, **options)
        return result

    def emit_many(
        self,
        operator: str,
        inputs: Sequence[Any],
        attributes: Mapping[str, Attribute] | None = None,
        *,
        outputs: int,
        quantization: Quantization | None = None,
        dtype: str | None = None,
        like: str = "",
        rule: str = "",
        fold: bool = True,
    ) -> list[TensorValue]:
        """Add a node. Inputs may be TensorValue, StoredTensor, array, number or None (absent).

        Its rounding rule, if it has one, is that of the engine for the operator, or for the operator `like`, or
        `rule`. Nodes over constants are computed now, unless `fold=False`.
        """
        self.budget.node(len(inputs) + outputs)
        entry = OPERATORS[operator]
        values = [None if value is None else self.tensor(value) for value in inputs]
        while len(values) > 1 and values[-1] is None:
            values.pop()
        if operator in REAL:
            values = [None if value is None else self._real(value) for value in values]
        plain = self._check_integers(operator, [value for value in values if value is not None])
        complete = entry.complete(attributes or {})
        given = [None if value is None else self.tensors[value.key] for value in values]
        self.budget.spend(sum(_bytes_read(each) for each in given if each is not None) // READ)
        shapes = entry.inferred(given, complete, tells_sizes)
        as_real = quantization is None and not plain and not entry.moves
        dtypes = [
            None if value is None else "float32" if as_real and value.quantization is not None else value.dtype
            for value in values
        ]
        kinds = [dtype or entry.likely_dtype(i, dtypes, complete) for i in range(outputs)]
        first = values[0]
        origin = first.origin if first is not None and keeps_shape(entry) else ""
        rounds = quantization is not None or entry.has_quantized_weights(given)
        rule = (rule or OPERATORS[like or operator].engines.get(self.engine, "")) if rounds else ""
        if entry.moves:
            quantization, rule = (first.quantization if first is not None else None), ""
        results = [
            self._new(kind, shapes[min(i, len(shapes) - 1)], quantization, origin) for i, kind in enumerate(kinds)
        ]
        node = Node(
            operator=operator,
            inputs=tuple("" if value is None else value.key for value in values),
            outputs=tuple(result.key for result in results),
            attributes=complete,
            version=entry.version,
            rule=rule,
            scope=self.place.scope,
            source_operator=self.target,
        )
        folded = self._fold(node) if fold else None
        if folded is not None:
            return folded
        for result in results:
            result.channels_last = _is_channels_last(operator, quantization is not None, values)
        self.nodes.append(node)
        if not entry.traits & Trait.SIZES:
            self.read.update(node.inputs)
        self.makers.update(dict.fromkeys(node.outputs, node))
        if plain:
            self.integers.update(result.key for result in results if result.quantization is not None)
        return results

    def unless(self, usual: bool, rule: str) -> str:
        """The `rule` of another kernel of PyTorch's engines, unless they take the usual one; "": as the engine does."""
        return rule if not usual and self.engine in TORCH_ENGINES else ""

    def _check_integers(self, operator: str, values: Sequence[TensorValue]) -> bool:
        """Whether a node reads quantized tensors as plain integers. SourceError if that is not what it computes with
        them as quantized tensors."""
        if not any(value.key in self.integers for value in values):
            return False
        grids = [value.quantization for value in values]
        alike = all(grid is not None and grids[0] is not None and grid.same_grid(grids[0]) for grid in grids)
        if not OPERATORS[operator].traits & _ON_INTEGERS and not (operator in _ORDERED and alike):
            what = f"{self.target} computes with integers that were quantized, not with the numbers they stand for"
            raise SourceError(what, hint="dequantize them first")
        return True

    def _real(self, value: TensorValue) -> TensorValue:
        """The value, as float32 if it has integers or bools."""
        return self.emit("Cast", [value], {"to": "float32"}) if value.is_whole else value

    def tensor(self, value: Any) -> TensorValue:
        """Anything that a torch call accepts as a tensor, as a tensor of the graph."""
        if isinstance(value, TensorValue):
            return value
        if isinstance(value, StoredTensor):
            return self.stored(value)
        if isinstance(value, bool | int | float | np.ndarray | np.generic):
            return self.constant(value)
        if isinstance(value, Unsupported):
            raise SourceError(f"{self.target} reads a result that is not supported, such as the indices of a max pool")
        given = "a number that is known only at run time" if isinstance(value, Size | Unknown) else type(value).__name__
        raise SourceError(f"{self.target} is called with {given} where a tensor is needed")

    def constant(self, value: Any, quantization: Quantization | None = None) -> TensorValue:
        """A constant that the lifter creates; Python floats become float32, integers int64."""
        array = np.asarray(value)
        if isinstance(value, float):
            array = array.astype(np.float32)
        result = self._new(array.dtype.name, tuple(array.shape), quantization)
        self.tensors[result.key] = Tensor.constant(result.key, array, quantization)
        return result

    def stored(
        self,
        value: StoredTensor,
        name: str = "",
        aliases: Sequence[str] = (),
        dtype: str = "",
        quantization: Quantization | None = None,
    ) -> TensorValue:
        """A tensor of the archive as a constant of the graph, once, however often it is used; `dtype` narrows it.

        `quantization` defines its integers if the archive itself does not.
        """
        key = (id(value), dtype, quantization)
        if key in self._stored:
            return self._stored[key]
        value.charge(READ)  # to write it, in each of its quantizations
        quantization = quantization or stored_quantization(value)
        result = self._new(dtype or value.dtype, value.shape, quantization)
        known = dict.fromkeys((*value.names, *aliases))
        wanted = name or next(iter(known), "")
        self.tensors[result.key] = replace(
            self.tensors[result.key],
            data=StoredData(value, result.dtype),
            aliases=tuple(sorted(known.keys() - {wanted, ""})),
        )
        self.wanted[result.key] = wanted
        result.memory.kept = True
        self._stored[key] = result
        self.stored_tensors[result.key] = value
        return result

    def name_like(self, value: TensorValue, source: TensorValue) -> None:
        """Give a constant that was computed from a tensor of the source its name and its aliases."""
        self.wanted[value.key] = self.wanted.get(source.key, "")
        self.tensors[value.key] = replace(self.tensors[value.key], aliases=self.tensors[source.key].aliases)

    def reshaped_constant(
        self, value: TensorValue, reshape: Callable[[tuple[int, ...]], tuple[int, ...]]
    ) -> TensorValue:
        """The same constant seen with another shape; it stays one tensor of the graph."""
        tensor = self.tensors[value.key]
        shape = reshape(static_shape(tensor))
        self.tensors[value.key] = replace(tensor, shape=shape)
        value.shape = shape
        return value

    def alias(self, value: TensorValue) -> TensorValue:
        """Another handle on the same tensor: an in-place operator on one does not change the other."""
        other = TensorValue(value.key, value.dtype, value.shape, value.quantization, value.origin)
        other.channels_last = value.channels_last
        return other

    def is_constant(self, value: TensorValue) -> bool:
        return self.tensors[value.key].data is not None

    def known(self, key: str) -> Array | None:
        """The elements of a constant by its key, whose bytes are counted each time; None for other tensors."""
        tensor = self.tensors[key]
        if tensor.data is None:
            return None
        self.budget.spend(tensor.data.nbytes // READ)
        return tensor.array

    def within(self, module: str) -> None:
        """Attribute the current call to `module`, which the flattened source does not state."""
        if module.startswith(self.place.scope):
            self.place = self.place._replace(scope=module)

    def unsupported(self, target: str) -> Unsupported:
        """Record an unsupported call; all of them are reported together at the end."""
        self.budget.allocate(len(self.place.file) + len(self.place.scope))
        self.unsupported_calls.setdefault(target[:200], []).append(self.place.where)
        return Unsupported()

    def _new(self, dtype: str, shape: Shape, quantization: Quantization | None, origin: str = "") -> TensorValue:
        if shape is not None and len(shape) > MAXIMUM_RANK:
            what = f"{len(shape):,} dimensions are more than {MAXIMUM_RANK}"
            raise SourceError(what, where=f"input {origin}" if origin and not self.target else "")
        key = f"%{len(self.tensors)}"
        self.tensors[key] = Tensor(key, dtype, shape, quantization=quantization)
        return TensorValue(key, dtype, shape, quantization, origin)

    def _fold(self, node: Node) -> list[TensorValue] | None:
        """The outputs, as constants, of a node whose inputs are all constants."""
        tensors = [self.tensors[key] if key else None for key in node.inputs]
        if not tensors or any(tensor is not None and tensor.data is None for tensor in tensors):
            return None
        if OPERATORS[node.operator].family in _COSTLY:
            return None
        self._charge(node, [prod(static_shape(tensor)) for tensor in tensors if tensor is not None])
        operands = [None if tensor is None else Operand(tensor.array, tensor.quantization) for tensor in tensors]
        with self.memory.spent():
            arrays = execute(node, operands, [self.tensors[key] for key in node.outputs])
        folded = []
        for key, array in zip(node.outputs, arrays, strict=True):
            if _elements(self.tensors[key]) is None:
                self.budget.allocate(array.nbytes)
            tensor = self.tensors[key]
            constant = Tensor.constant(key, array, tensor.quantization)
            self.tensors[key] = constant
            folded.append(TensorValue(key, constant.dtype, static_shape(constant), constant.quantization, ""))
        return folded

    def _charge(self, node: Node, read: Sequence[int]) -> None:
        """Count the cost of folding a node, before it is computed."""
        outputs = [self.tensors[key] for key in node.outputs]
        written = [_elements(tensor) or 0 for tensor in outputs]
        nbytes = sum(size * _itemsize(tensor) for size, tensor in zip(written, outputs, strict=True))
        self.budget.compute(OPERATORS[node.operator].work(read, written), nbytes)


def _is_channels_last(operator: str, quantized: bool, values: Sequence[TensorValue | None]) -> bool:
    """Whether a result is in torch; of sequences only that of a convolution."""
    if operator in _OTHERWISE or (operator in _CHANNELS_LAST and quantized):
        return operator in _CHANNELS_LAST
    inputs = values if operator == "Concat" else values[:1]
    return bool(inputs) and all(
        value is not None and value.channels_last and (value.shape is None or len(value.shape) > 3) for value in inputs
    )


def _bytes_read(tensor: Tensor) -> int:
    """The bytes of a constant that a shape rule reads."""
    return tensor.data.nbytes if tensor.data is not None and tells_sizes(tensor) else 0


def _elements(tensor: Tensor) -> int | None:
    """How many elements a tensor has; None if that is not known."""
    return prod(tensor.shape) if is_static(tensor.shape) else None


def _itemsize(tensor: Tensor) -> int:
    """Bytes of an element in an array; elements of 4 bits have one, too."""
    return max(DTYPES[tensor.dtype].bits // 8, 1)
