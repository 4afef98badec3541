"""The one lifter: a stream of torch calls becomes the nodes and tensors of a Model.

Every torch frontend (TorchScript archives, modules in memory, FX graphs, exported programs) replays its
source as calls `(target, arguments, place)`. A call is looked up in this order: the functions registered
with `@lifts` (the modules beside this one), then the spellings of the operators. While lifting, every
tensor has a number; names are given at the end, when it is known which module made which calls.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ...errors import QfmtError, SourceError, UnsupportedOperators
from ...interpreter import execute
from ...model import (
    DTYPES,
    Attribute,
    Dimension,
    Graph,
    Model,
    Node,
    Quantization,
    Shape,
    Tensor,
    static_shape,
)
from ...ops import OPERATORS, Inference, Operand, Quantized, UnknownRank
from ...ops.shapes import axis_of, same
from ..stored import StoredTensor
from .calls import Place, Value
from .names import name_tensors, renamed
from .promotion import operands
from .sizes import Size
from .spelling import spellings
from .values import (
    RANK_NAMES,
    InputSpec,
    Refine,
    StoredData,
    TensorValue,
    Unsupported,
    narrowest,
    stored_quantization,
)

LIFTS: dict[str, Callable[..., Any]] = {}
"""What the modules beside this one register: torch target → function (lifter, *arguments) → result."""


def lifts(*targets: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as the meaning of torch calls; its parameters carry torch's names."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for target in targets:
            LIFTS[target] = function
        return function

    return register


class Lifter:
    """Collects nodes and tensors; implements `calls.Recorder`. `names` maps keys of tensors to names, once finished."""

    def __init__(self, engine: str, assumed_rank: int = 4) -> None:
        self.engine = engine
        self.assumed_rank = assumed_rank
        self.calls = 0
        self.confirmed: set[str] = set()
        self.nodes: list[Node] = []
        self.tensors: dict[str, Tensor] = {}
        self.inputs: list[str] = []
        self.names: dict[str, str] = {}
        self.dynamic: dict[str, Value] = {}
        """Keys of tensors that were quantized on a grid of the moment → that grid: see `decomposed`."""
        self.place = Place("", "", 0, "")
        self.target = ""
        self.fused_relu = False
        self._stored: dict[tuple[int, str, Quantization | None], TensorValue] = {}
        self._keep_alive: list[object] = []
        self._wanted: dict[str, str] = {}
        self._unsupported: dict[str, list[str]] = {}

    # -- what frontends call ---------------------------------------------------------------------

    def add_input(self, spec: InputSpec) -> TensorValue:
        """A graph input, in the order of `forward`'s arguments."""
        value = self._new(spec.dtype, spec.shape, spec.quantization, origin=spec.name)
        self.inputs.append(value.key)
        self._wanted[value.key] = spec.name
        return value

    def call(self, target: str, args: Sequence[Any], kwargs: Mapping[str, Any], place: Place) -> Any:
        """One torch call, e.g. ("quantized::conv2d", (x, packed, 0.1, 3), {}). See `calls.Recorder`."""
        self.place, self.target = place, target
        self.calls += 1
        if _holds_unsupported(args) or _holds_unsupported(kwargs.values()):
            return self._after_unsupported(target, args)
        try:
            return self._dispatch(target, args, kwargs)
        except SourceError as error:
            if not error.where:
                error.at(_where(place))
            raise
        except QfmtError as error:
            raise SourceError(f"{target}: {error.what}", where=_where(place), hint=error.hint) from None

    def finish(self, outputs: Sequence[Any], **description: Any) -> Model:
        """The model: names given, what no output needs dropped. Raises UnsupportedOperators, all at once."""
        if self._unsupported:
            hint = "`qfmt ops` lists what is supported"
            raise UnsupportedOperators(self._unsupported, hint=hint)
        keys = tuple(self.tensor(value).key for value in outputs)
        nodes = _needed(self.nodes, keys)
        used = {name for node in nodes for name in (*node.inputs, *node.outputs)} | {*keys, *self.inputs}
        names = self.names = name_tensors(nodes, used, self._wanted)
        graph = Graph(
            inputs=tuple(names[key] for key in self.inputs),
            outputs=tuple(names[key] for key in keys),
            nodes=[renamed(node, names) for node in nodes],
            tensors={
                names[key]: replace(self.tensors[key], name=names[key])
                for key in sorted(used - {""}, key=names.__getitem__)
            },
        )
        return Model(graph, arithmetic=self.engine, **description)

    # -- what the registered functions call ---------------------------------------------------------

    def emit(
        self,
        operator: str,
        inputs: Sequence[Any],
        attributes: Mapping[str, Attribute] | None = None,
        *,
        quantization: Quantization | None = None,
        dtype: str | None = None,
        outputs: int = 1,
        like: str = "",
        rule: str = "",
        fold: bool = True,
    ) -> Any:
        """Add a node. Inputs may be TensorValue, StoredTensor, array, number or None (absent).

        Its rounding rule, where it has one, is that of the engine for the operator, or for the operator `like`, or
        `rule`.
        The result is a TensorValue, or a list of `outputs` of them. Nodes over constants are computed now, but with
        `fold=False`.
        """
        entry = OPERATORS[operator]
        values = [None if value is None else self.tensor(value) for value in inputs]
        complete = entry.complete(attributes or {})
        shapes = self._infer(operator, values, complete)
        kinds = [dtype or self._dtype(operator, values, complete, i) for i in range(outputs)]
        first = values[0]
        origin = first.origin if first is not None and entry.shape is same else ""
        has_weights = any(value is not None and value.quantization is not None for value in values)
        rounds = has_weights if entry.quantized is Quantized.WEIGHTS else quantization is not None
        rule = (rule or OPERATORS[like or operator].engines.get(self.engine, "")) if rounds else ""
        if entry.quantized is Quantized.MOVES:
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
            arithmetic=rule,
            scope=self.place.scope,
            source_operator=self.target,
        )
        folded = self._fold(node) if fold else None
        if folded is not None:
            return folded if outputs > 1 else folded[0]
        self.nodes.append(node)
        return results if outputs > 1 else results[0]

    def tensor(self, value: Any) -> TensorValue:
        """Anything that a torch call takes for a tensor, as a tensor of the graph."""
        if isinstance(value, TensorValue):
            return value
        if isinstance(value, StoredTensor):
            return self.stored(value)
        if isinstance(value, bool | int | float | np.ndarray | np.generic):
            return self.constant(value)
        raise SourceError(f"{self.target} is called with {type(value).__name__} where a tensor is needed")

    def constant(self, value: Any, quantization: Quantization | None = None) -> TensorValue:
        """A constant that the lifter makes itself; Python floats become float32, integers int64."""
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

        `quantization` is what its integers mean, where the archive itself does not say.
        """
        key = (id(value), dtype, quantization)
        if key in self._stored:
            return self._stored[key]
        quantization = quantization or stored_quantization(value)
        result = self._new(dtype or value.dtype, value.shape, quantization)
        known = dict.fromkeys((*value.names, *aliases))
        wanted = name or next(iter(known), "")
        self.tensors[result.key] = replace(
            self.tensors[result.key],
            data=StoredData(value, result.dtype),
            aliases=tuple(sorted(known.keys() - {wanted, ""})),
        )
        self._wanted[result.key] = wanted
        self._stored[key] = result
        self._keep_alive.append(value)
        return result

    def name_like(self, value: TensorValue, source: TensorValue) -> None:
        """A constant that was computed from a tensor of the source takes over its name and its aliases."""
        self._wanted[value.key] = self._wanted.get(source.key, "")
        self.tensors[value.key] = replace(self.tensors[value.key], aliases=self.tensors[source.key].aliases)

    def quantized(self, value: Any) -> tuple[TensorValue, Quantization]:
        """An argument that has to be quantized, and its quantization."""
        x = self.tensor(value)
        if x.quantization is not None:
            return x, x.quantization
        what = "gets an input that is not quantized"
        if x.origin:
            in_python = f"in Python, input_quantization={{{x.origin!r}: (scale, zero_point, 'uint8')}}"
            hint = f"a quantized input is declared with --input-quantization {x.origin}=SCALE,ZERO_POINT; {in_python}"
            raise SourceError(what, hint=hint)
        raise SourceError(what)

    def indices(self, value: Any) -> TensorValue:
        """An argument that counts rows or elements: integers. An input becomes int64 by that."""
        x = self.tensor(value)
        if DTYPES[x.dtype].is_integer and x.quantization is None:
            return x
        source = self._before_moves(x.key)
        if source in self.inputs:
            raise Refine(self._wanted[source], self.tensors[source].shape, dtype="int64")
        raise SourceError(f"gets {x.dtype} where integers are needed to count with")

    def reshaped_constant(
        self, value: TensorValue, reshape: Callable[[tuple[int, ...]], tuple[int, ...]]
    ) -> TensorValue:
        """The same constant seen with another shape; it stays one tensor of the graph."""
        tensor = self.tensors[value.key]
        shape = reshape(static_shape(tensor))
        self.tensors[value.key] = replace(tensor, shape=shape)
        value.shape = shape
        return value

    def quantization(self, scale: Any, zero_point: Any, dtype: str) -> Quantization:
        """Of an output, with the fused ReLU of the present call as its quant_min."""
        scale, zero_point = float(self.number(scale)), int(self.number(zero_point))
        low = zero_point if self.fused_relu else None
        return Quantization.per_tensor(scale, zero_point, dtype, quant_min=low, scale_dtype=narrowest(scale))

    SHAPE_HINT = (
        "give the shape of the input with --input-shape NAME=1,3,224,224; "
        "in Python, input_shapes={'NAME': (1, 3, 224, 224)}"
    )

    def alias(self, value: TensorValue) -> TensorValue:
        """Another handle on the same tensor: an in-place operator on the one leaves the other alone."""
        return TensorValue(value.key, value.dtype, value.shape, value.quantization, value.origin)

    def _before_moves(self, key: str) -> str:
        """The tensor whose elements these are: followed back through operators that only move them."""
        makers = {output: node for node in self.nodes for output in node.outputs}
        while key in makers and OPERATORS[makers[key].operator].quantized is Quantized.MOVES:
            key = makers[key].inputs[0]
        return key

    def rank(self, value: TensorValue) -> int:
        """The number of dimensions; where an input of which nothing is known decides on it, that is assumed."""
        if value.shape is None:
            unknown = [self._wanted[key] for key in self.inputs if self.tensors[key].shape is None]
            if value.origin or unknown:
                raise Refine(value.origin or unknown[0], RANK_NAMES[self.assumed_rank], assumed=True)
            raise SourceError("needs the number of dimensions of its input", hint=self.SHAPE_HINT)
        return len(value.shape)

    def size(self, value: TensorValue, axis: int) -> int | Size:
        """The size of a dimension, counted from 0: a number where it is fixed, else something to compute with."""
        dimension = value.shape[axis_of(axis, len(value.shape))] if value.shape is not None else None
        if isinstance(dimension, int):
            return dimension
        source = TensorValue(value.key, value.dtype, value.shape, value.quantization, value.origin)
        build = partial(self.emit, "Shape", [source], {"start": axis, "end": axis + 1})
        return Size(build, (value.key, axis), dimension)

    def shape_tensor(self, sizes: Sequence[Any]) -> TensorValue:
        """Numbers and sizes as one int64 tensor of rank 1."""
        pieces: list[TensorValue] = []
        run: list[int] = []
        for size in sizes:
            if isinstance(size, Size):
                if run:
                    pieces.append(self.constant(np.array(run, np.int64)))
                    run = []
                pieces.append(size.build())
            else:
                run.append(self.whole(size))
        if run or not pieces:
            pieces.append(self.constant(np.array(run, np.int64)))
        joined: TensorValue = pieces[0] if len(pieces) == 1 else self.emit("Concat", pieces, {"axis": 0})
        return joined

    def reshape(self, value: TensorValue, sizes: Sequence[Any]) -> TensorValue:
        """Reshape with as little as possible left to compute: 0 copies a dimension, one -1 is the rest."""
        target = [size if isinstance(size, Size) else self.whole(size) for size in sizes]
        for axis, size in enumerate(target):
            if isinstance(size, Size) and self._is_dimension(size, value, axis):
                target[axis] = 0
        dynamic = [axis for axis, size in enumerate(target) if isinstance(size, Size)]
        if len(dynamic) == 1 and -1 not in [size for size in target if isinstance(size, int)]:
            target[dynamic[0]] = -1
        result: TensorValue = self.emit("Reshape", [value, self.shape_tensor(target)])
        if not self.is_constant(result):
            self.know(result, [self._resulting(size, value, axis) for axis, size in enumerate(target)])
        return result

    @staticmethod
    def _resulting(size: int | Size, value: TensorValue, axis: int) -> Dimension:
        """What the result of a reshape has for an element of its target."""
        if isinstance(size, Size):
            return size.dimension
        if size == 0:
            return None if value.shape is None else value.shape[axis]
        return None if size < 0 else size

    def know(self, value: TensorValue, shape: Sequence[Dimension]) -> None:
        """What is known of a shape beside what its operator could infer."""
        inferred = value.shape or (None,) * len(shape)
        value.shape = tuple(a if a is not None else b for a, b in zip(inferred, shape, strict=True))
        self.tensors[value.key] = replace(self.tensors[value.key], shape=value.shape)

    @staticmethod
    def _is_dimension(size: Size, value: TensorValue, axis: int) -> bool:
        if size.source == (value.key, axis):
            return True
        known = value.shape is not None and axis < len(value.shape)
        return known and size.dimension is not None and value.shape[axis] == size.dimension  # type: ignore[index]

    def scalar_like(self, value: TensorValue, number: float) -> TensorValue:
        """A scalar constant of the dtype of a tensor, on its grid if it has one."""
        if value.quantization is None:
            return self.constant(np.array(number, value.dtype))
        scalar = self.constant(np.array(number, np.float32))
        result: TensorValue = self.emit("QuantizeLinear", [scalar], quantization=value.quantization, dtype=value.dtype)
        return result

    def operands(self, a: Any, b: Any) -> tuple[TensorValue, TensorValue]:
        """Two operands in the type in which torch computes with them: a Python number takes that of the tensor beside
        it, if it is of that kind (truth value, integer, float); of two tensors, one without dimensions does so."""
        return operands(self, a, b)

    def unused_result(self) -> Unsupported:
        """A second result that networks do not read; if one does, the call is reported as unsupported."""
        return Unsupported()

    @staticmethod
    def grid(value: TensorValue) -> Quantization | None:
        """The grid of a tensor for a result that is put on it: over the whole range, whatever ReLU it had."""
        if value.quantization is None:
            return None
        limits = DTYPES[value.dtype]
        return replace(value.quantization, quant_min=limits.minimum, quant_max=limits.maximum)

    def number(self, value: Any) -> int | float:
        """A scalar that is known now: a number, or a stored tensor of one element."""
        if isinstance(value, StoredTensor):
            value = value.item()
        if isinstance(value, TensorValue) and self.is_constant(value):
            value = self.tensors[value.key].array.reshape(-1)[0].item()
        if isinstance(value, bool | int | float):
            return value
        raise SourceError(f"{self.target} takes a number here that is known only when the network runs")

    def whole(self, value: Any) -> int:
        """A whole number that is known now."""
        number = self.number(value)
        if number != number or abs(number) == float("inf") or int(number) != number:
            raise SourceError(f"{self.target} is called with {number} where a whole number is needed")
        return int(number)

    def flag(self, value: Any) -> int:
        """A truth value that is known now, as the attribute of an operator: 0 or 1."""
        return int(bool(self.number(value)))

    def is_constant(self, value: TensorValue) -> bool:
        return self.tensors[value.key].data is not None

    def need(self, value: TensorValue, shape: tuple[Dimension, ...]) -> None:
        """Tell what the present call requires of a tensor; what is learnt about an input restarts the lift."""
        known = value.shape
        if known is not None and len(known) != len(shape):
            return  # the shape rule of the operator says what is wrong
        if value.origin:
            self.confirmed.add(value.origin)
            base = RANK_NAMES.get(len(shape), (None,) * len(shape)) if known is None else known
            learnt = tuple(b if a is None or isinstance(b, int) else a for a, b in zip(shape, base, strict=True))
            if learnt != known:
                raise Refine(value.origin, learnt)
        elif known is None:
            value.shape = shape
            self.tensors[value.key] = replace(self.tensors[value.key], shape=shape)

    def within(self, module: str) -> None:
        """The present call is that of `module`, though the source, flattened, does not say so."""
        if module.startswith(self.place.scope):
            self.place = self.place._replace(scope=module)

    def unsupported(self, target: str) -> Unsupported:
        """Note a call without a meaning; `finish` reports all of them."""
        self._unsupported.setdefault(target, []).append(_where(self.place))
        return Unsupported()

    # -- within ------------------------------------------------------------------------------------

    def _after_unsupported(self, target: str, args: Sequence[Any]) -> Any:
        """A call on the result of an unsupported one: it matters only if it is unsupported, too."""
        if target == "prim::ListUnpack":
            return [Unsupported()] * args[1]
        if target.startswith(("prim::", "aten::__")) or is_known(target):
            return Unsupported()
        return self.unsupported(target)

    def _dispatch(self, target: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        for name, relu in _variants(target):
            self.fused_relu = relu
            result = self._one(name, args, kwargs)
            if result is not NotImplemented:
                if _is_in_place(target) and isinstance(args[0], TensorValue) and isinstance(result, TensorValue):
                    args[0].become(result)
                return result
        return self.unsupported(target)

    def _one(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if name in LIFTS:
            function = LIFTS[name]
            try:
                inspect.signature(function).bind(self, *args, **kwargs)
            except TypeError:
                raise SourceError(f"{name} is called in a form that qfmt does not know") from None
            result = function(self, *args, **kwargs)
            if result is not NotImplemented:
                return result
        for spelling in spellings().get(name, ()):
            bound = spelling.bind(name, args, kwargs)
            if bound is not None:
                return self._spelled(spelling.operator, bound)
        return NotImplemented

    def _spelled(self, operator: Any, bound: dict[str, Any]) -> Any:
        inputs = [bound.get(parameter.name) for parameter in operator.inputs]
        if operator.inputs[-1].variadic:
            inputs = bound[f"{operator.inputs[-1].name}*"]
        while inputs and inputs[-1] is None:
            inputs.pop()
        attributes = {
            name: _attribute(bound[name], spec.kind) for name, spec in operator.attributes.items() if name in bound
        }
        first = self.tensor(inputs[0])
        quantization = None
        if "$scale" in bound:
            quantization = self.quantization(bound["$scale"], bound["$zero_point"], first.dtype)
        elif first.quantization is not None and operator.dtype == "same":
            quantization = self.grid(first)
        return self.emit(operator.name, inputs, attributes, quantization=quantization)

    def _new(self, dtype: str, shape: Shape, quantization: Quantization | None, origin: str = "") -> TensorValue:
        key = f"%{len(self.tensors)}"
        self.tensors[key] = Tensor(key, dtype, shape, quantization=quantization)
        return TensorValue(key, dtype, shape, quantization, origin)

    def _infer(self, operator: str, values: Sequence[TensorValue | None], attributes: Mapping[str, Any]) -> list[Shape]:
        known = [None if v is None else self.tensors[v.key] for v in values]
        arrays = [t.array if t is not None and t.data is not None and t.dtype == "int64" else None for t in known]
        pad = [None] * (len(OPERATORS[operator].inputs) - len(values))
        shapes: list[Shape] = [None if v is None else v.shape for v in values]
        try:
            return OPERATORS[operator].infer(Inference([*shapes, *pad], attributes, [*arrays, *pad]))
        except UnknownRank:
            return [None]

    def _dtype(
        self, operator: str, values: Sequence[TensorValue | None], attributes: Mapping[str, Any], index: int
    ) -> str:
        dtypes = [None if value is None else value.dtype for value in values]
        known = next(dtype for dtype in dtypes if dtype is not None) if any(dtypes) else "float32"
        return OPERATORS[operator].output_dtype(index, dtypes, attributes) or known

    def _fold(self, node: Node) -> list[TensorValue] | None:
        """The outputs of a node all of whose inputs are constants, as constants."""
        tensors = [self.tensors[key] if key else None for key in node.inputs]
        if not tensors or any(tensor is not None and tensor.data is None for tensor in tensors):
            return None
        operands = [None if tensor is None else Operand(tensor.array, tensor.quantization) for tensor in tensors]
        arrays = execute(node, operands, [self.tensors[key] for key in node.outputs])
        folded = []
        for key, array in zip(node.outputs, arrays, strict=True):
            tensor = self.tensors[key]
            constant = Tensor.constant(key, array, tensor.quantization)
            self.tensors[key] = constant
            folded.append(TensorValue(key, constant.dtype, static_shape(constant), constant.quantization, ""))
        return folded


def _attribute(value: Any, kind: str) -> Attribute:
    """A torch argument as an attribute of the kind that the operator's table says."""
    if len(kind) == 2:
        items = value if isinstance(value, list | tuple) else (value,)
        return tuple(_attribute(item, kind[0]) for item in items)  # type: ignore[return-value]
    if isinstance(value, Value) or not isinstance(value, bool | int | float | str):
        raise SourceError("takes a parameter that is known only when the network runs")
    return float(value) if kind == "f" else str(value) if kind == "s" else int(value)


def is_known(target: str) -> bool:
    """Whether a call has a meaning here, in some form of its arguments at least."""
    return any(name in LIFTS or name in spellings() for name, _ in _variants(target))


def _variants(target: str) -> list[tuple[str, bool]]:
    """The names under which a call may be known: itself, without the in-place `_`, without a fused ReLU."""
    name = target.removesuffix("_") if _is_in_place(target) else target
    variants = [(target, False)]
    if name != target:
        variants.append((name, False))
    if name.endswith("_relu") and name.startswith("quantized::"):
        variants.append((name.removesuffix("_relu"), True))
    return variants


def _is_in_place(target: str) -> bool:
    return target.endswith("_") and not target.endswith("__")


def _holds_unsupported(values: Any) -> bool:
    return any(
        isinstance(value, Unsupported) or (isinstance(value, list | tuple) and _holds_unsupported(value))
        for value in values
    )


def _where(place: Place) -> str:
    where = f"{place.file}:{place.line}" if place.file else ""
    return f"module {place.scope} ({where})" if place.scope and where else place.scope or where


def _needed(nodes: Sequence[Node], outputs: Sequence[str]) -> list[Node]:
    """The nodes that an output depends on, in their order."""
    wanted = set(outputs)
    kept = []
    for node in reversed(nodes):
        if wanted.intersection(node.outputs):
            wanted.update(node.inputs)
            kept.append(node)
    return kept[::-1]
