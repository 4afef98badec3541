"""From the nodes of a Model to a torch.fx graph: the table that computes each node, and the form of its tensors.

A table supports some operators and works on tensors of one form: `PLAIN` integers (uint8, int8, …), `CENTRED` ones,
less their zero point, in float32, or `QUANTIZED` tensors of torch (quint8, qint8). Tensors without quantization are
the same in all. An engine is a list of tables; each node goes to the first that supports it, and conversions between
the forms are inserted where necessary.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from keyword import iskeyword
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import fx

from ...arithmetic import EXACT_IN_FLOAT32
from ...budget import Budget
from ...errors import QfmtError, RunError
from ...interpreter import operator_of
from ...model import DTYPES, Dimension, Model, Node, Tensor
from ...ops import Trait, known
from ...ops.registry import is_usable
from ...passes.constants import unused
from . import sizes
from .arithmetic import Grid, centred, stored
from .values import check_input, torch_dtype

PLAIN, CENTRED, QUANTIZED = "plain", "centred", "quantized"

WRITTEN = {"NoneType", "device", "fx_pytree", "getattr", "inf", "nan", "pytree", "self", "slice", "torch"}
"""Words that torch.fx writes into its code. An argument of `forward` with such a name would hide what it means."""

LONGEST = 200
"""The most characters of a variable in the code, which may be read thousands of times."""

FLOAT32 = torch.finfo(torch.float32).max

NUMBER_BYTES = 32
"""A number in the code takes up to that many bytes."""

Value: TypeAlias = "fx.Node"
Emitter: TypeAlias = "Callable[[Site], Any]"
Sizes: TypeAlias = "list[Any] | fx.Node"


class Lacks(Exception):
    """A table does not support this node; the argument is the reason, for `module.report()`."""


class Table(NamedTuple):
    """A table: a name for reports, the form of its tensors, and the emitter of an operator, if it has one.

    `any_grid`: it supports block-wise scales and quantized floats, too.
    """

    name: str
    form: str
    emitter: Callable[[str], Emitter | None]
    any_grid: bool = False


class Engine(NamedTuple):
    """Tables in the order in which they are tried. Those after the first `own` are a fallback, and reported.

    `kernels` names backends of torch's quantized operators, the best first; a `traceable` engine must stay Python for
    torch.export. An `exact` engine skips kernels that can overflow on this processor, or follow another rule than the
    node's.
    """

    name: str
    tables: tuple[Table, ...]
    own: int
    kernels: tuple[str, ...] = ()
    traceable: bool = False
    exact: bool = False


class Row(NamedTuple):
    """A line of a report: the node, its operator, the table that computes it, and why not another."""

    node: str
    operator: str
    computed_by: str
    reason: str


class Builder:
    """Writes the graph of one model for one engine.

    `paths` maps constants to the paths of their buffers in the module, `buffers` has the buffers, `taken` the names
    of the module's attributes.
    """

    def __init__(
        self,
        model: Model,
        engine: Engine,
        paths: Mapping[str, str],
        buffers: Mapping[str, torch.Tensor],
        taken: set[str],
    ) -> None:
        self.model, self.engine, self.paths, self.buffers, self.taken = model, engine, paths, buffers, taken
        self.graph = fx.Graph()
        self.budget = Budget.of(model, "writing a module for a network of")
        self.fallbacks: list[Row] = []
        self.notes: list[Row] = []
        self.derived: dict[str, Any] = {}
        self._values: dict[tuple[str, str], Value] = {}
        self._sizes: dict[str, Sizes] = {}

    def build(self) -> fx.Graph:
        """The graph; afterwards `derived` has the other values that it reads, `fallbacks` the nodes of fallback tables,
        `notes` the kernels that can overflow or were skipped."""
        self._inputs({name: self.model.tensors[name] for name in self.model.graph.inputs})
        for node in self.model.nodes:
            self._node(node)
        outputs = tuple(self.value(name, PLAIN) for name in self.model.graph.outputs)
        self.graph.output(outputs[0] if len(outputs) == 1 else outputs)
        return self.graph

    def value(self, name: str, form: str) -> Value:
        """A tensor of the model in that form, converted if it exists only in another one."""
        tensor = self.model.tensors[name]
        form = PLAIN if tensor.quantization is None else form
        if (name, form) not in self._values:
            self._values[name, form] = self._made(tensor, form)
        return self._values[name, form]

    def _made(self, tensor: Tensor, form: str) -> Value:
        if tensor.name in self._sizes:
            return self.call(torch.tensor, self._sizes[tensor.name], dtype=torch.int64)
        if form == PLAIN and tensor.data is not None:
            return self.buffer(self.paths[tensor.name])
        return self._convert(tensor, form)

    def sizes(self, name: str) -> Sizes:
        """An int64 vector as a list of integers: known now, or computed at run time."""
        tensor = self.model.tensors[name]
        if tensor.data is not None:
            return [int(item) for item in tensor.array.reshape(-1)]
        if name not in self._sizes:
            self._sizes[name] = self.call(sizes.to_list, self.value(name, PLAIN))
        return self._sizes[name]

    def some_form(self, name: str) -> Value:
        """A tensor in an existing form: its sizes are the same in all."""
        there = (form for form in (QUANTIZED, CENTRED) if (name, form) in self._values)
        return self.value(name, next(there, PLAIN))

    def call(self, target: Callable[..., Any], *args: Any, name: str = "", **kwargs: Any) -> Value:
        """One call in the graph."""
        self.budget.allocate(NUMBER_BYTES * sum(len(each) for each in args if isinstance(each, list | tuple)))
        return self.graph.create_node("call_function", target, args, kwargs, name=name or None)

    def derive(self, name: str, value: Any) -> Value:
        """A value computed once from constants: an attribute of the module that is not part of its state."""
        attribute = unused(_word(name), self.taken)
        self.taken.add(attribute)
        self.derived[attribute] = value
        return self.graph.create_node("get_attr", attribute, name=attribute)

    def buffer(self, path: str) -> Value:
        return self.graph.create_node("get_attr", path, name=_word(path))  # fx would call it `self`, if its path is so

    def _inputs(self, tensors: Mapping[str, Tensor]) -> None:
        """Place all arguments first: no other node may get the name of an argument that is read later."""
        words: dict[str, None] = {}
        for name in tensors:
            words[unused(_word(name), words)] = None
        given = [self._argument(word, words) for word in words]
        for tensor, word, value in zip(tensors.values(), words, given, strict=True):
            shape = None if tensor.shape is None else list(tensor.shape)
            q = tensor.quantization
            grid = () if q is None or not len(q.scale) else ((q.scale[0], q.zero_point[0]),)
            kind = torch_dtype(tensor.dtype)
            checked = self.call(check_input, value, tensor.name, kind, shape, *grid, name=word)
            self._values[tensor.name, PLAIN] = checked

    def _argument(self, word: str, others: Collection[str]) -> Value:
        """An argument; fx renames the value if the word has a meaning in Python, like `input`."""
        means_nothing = fx.Graph().placeholder(word).name == word
        name = word if means_nothing else unused(f"{word}_", others)
        return self.graph.create_node("placeholder", word, (None,), name=name)

    def _convert(self, tensor: Tensor, form: str) -> Value:
        """Convert from plain integers, or to them."""
        q = tensor.quantization
        here = next((each for each in (CENTRED, QUANTIZED) if (tensor.name, each) in self._values), PLAIN)
        if q is None or (tensor.data is None and here == PLAIN and (tensor.name, PLAIN) not in self._values):
            raise RunError("is read before it is computed", where=f"tensor {tensor.name}")
        if q.is_per_channel:
            raise Lacks("a computed tensor is quantized per channel")
        grid = Grid.of(q, torch_dtype(tensor.dtype))
        if form == PLAIN and here == QUANTIZED:
            return self.call(torch.ops.aten.int_repr.default, self._values[tensor.name, QUANTIZED])
        if form == PLAIN:
            return self.call(stored, self._values[tensor.name, CENTRED], grid.zero_point, grid.dtype)
        if form == CENTRED:
            if grid.dtype.itemsize > 2:
                raise Lacks("is quantized to more than 16 bits")
            return self.call(centred, self.value(tensor.name, PLAIN), grid, torch.float32)
        if tensor.dtype not in ("uint8", "int8", "int32"):
            raise Lacks(f"torch has no quantized {tensor.dtype}")
        value = self.value(tensor.name, PLAIN)
        return self.call(torch.ops.aten._make_per_tensor_quantized_tensor.default, value, q.scale[0], q.zero_point[0])

    def _node(self, node: Node) -> None:
        try:
            operator_of(node)
        except QfmtError as error:
            raise error.at(f"node {node.title}") from None
        if self._is_about_sizes(node):
            self._sizes[node.outputs[0]] = sizes.EMITTERS[node.operator](Site(self, node, PLAIN))
            return
        reason = beyond = self._beyond_integers(node)
        if is_empty := self._is_empty(node):
            reason = "has no elements"
        for index, table in enumerate(self.engine.tables):
            emitter = table.emitter(node.operator)
            if (beyond and not table.any_grid) or (is_empty and table is not self.engine.tables[-1]):
                continue
            if emitter is None:
                reason = reason or f"has no {node.operator}"
                continue
            site = Site(self, node, table.form)
            mark, derived, notes = len(self.graph.nodes), dict(self.derived), list(self.notes)
            try:
                result = emitter(site)
            except Lacks as lack:
                reason = reason or str(lack)
                self._forget(mark)
                self.taken -= self.derived.keys() - derived.keys()
                self.derived, self.notes = derived, notes
                continue
            except QfmtError as error:
                raise error.at(f"node {node.title}") from None
            self._store(node, result, table.form)
            if index >= self.engine.own:
                self.fallbacks.append(site.row(table.name, reason))
            return
        raise RunError(f"cannot be computed: {reason}", where=f"node {node.title}")

    def _beyond_integers(self, node: Node) -> str:
        """Why only a table with `any_grid` can compute the node; "" if others can."""
        operator = known(node)
        if operator is not None and node.rule in operator.sum_rules:
            return f"does not compute sums with the rule {node.rule!r}"
        for tensor in (self.model.tensors[name] for name in (*node.inputs, *node.outputs) if name):
            if tensor.quantization is not None and not is_usable(tensor.quantization, node.rule):
                return "does not support block-wise scales, or float zero points"
            if DTYPES[tensor.dtype].kind == "f" and (tensor.quantization is not None or DTYPES[tensor.dtype].bits < 8):
                return f"has no quantized {tensor.dtype}"
        return ""

    def _is_empty(self, node: Node) -> bool:
        """Whether operands or results are known to have no elements: torch's kernels refuse many of them."""
        operator, tensors = known(node), self.model.tensors
        operands = 2 if operator is not None and Trait.PRODUCT in operator.traits else 1  # others may be lists of sizes
        others = (name for name in node.inputs[operands:] if name and tensors[name].quantization is not None)
        names = (*node.inputs[:operands], *others, *node.outputs)
        return any(0 in (tensors[name].shape or ()) for name in names if name)

    def _forget(self, mark: int) -> None:
        """Remove the calls that a table wrote before it raised Lacks."""
        written = list(self.graph.nodes)[mark:]
        for node in reversed(written):
            self.graph.erase_node(node)
            self._values = {key: value for key, value in self._values.items() if value is not node}
            self._sizes = {key: value for key, value in self._sizes.items() if value is not node}

    def _store(self, node: Node, result: Any, form: str) -> None:
        results = result if isinstance(result, list | tuple) else [result]
        for name, value in zip(node.outputs, results, strict=True):
            quantized = self.model.tensors[name].quantization is not None
            self._values[name, form if quantized else PLAIN] = value

    def _is_about_sizes(self, node: Node) -> bool:
        """Whether it computes the sizes of a tensor, which are Python integers here and never become tensors."""
        if node.operator == "Shape":
            return True
        known = (name in self._sizes or self._is_int64_constant(name) for name in node.inputs)
        some = any(name in self._sizes for name in node.inputs)
        return some and node.operator in sizes.EMITTERS and all(known)

    def _is_int64_constant(self, name: str) -> bool:
        tensor = self.model.tensors.get(name)
        return (
            tensor is not None and tensor.data is not None and tensor.dtype == "int64" and len(tensor.shape or ()) == 1
        )


def _word(name: str) -> str:
    """A Python identifier similar to a name of the model."""
    word = "".join(c if c.isascii() and c.isalnum() else "_" for c in name[:LONGEST])
    word = f"_{word}" if not word or word[0].isdigit() else word
    return f"{word}_" if iskeyword(word) or word in WRITTEN else word


class Site:
    """One node while it is emitted: its inputs in the form of the table."""

    def __init__(self, builder: Builder, node: Node, form: str) -> None:
        self.builder, self.node, self.form = builder, node, form

    def row(self, computed_by: str, reason: str) -> Row:
        return Row(self.node.label, self.node.operator, computed_by, reason)

    def has(self, index: int) -> bool:
        return index < len(self.node.inputs) and bool(self.node.inputs[index])

    def tensor(self, index: int) -> Tensor:
        return self.builder.model.tensors[self.node.inputs[index]]

    def x(self, index: int) -> Any:
        """The value of an input; None if it is absent."""
        return self.builder.value(self.node.inputs[index], self.form) if self.has(index) else None

    def features(self, index: int = 0, weight: int = 1) -> Any:
        """An input with as many features as a weight has; None if it is absent. Where only the run tells, torch checks
        it: some packed kernels read beyond an input that does not fit, or divide by zero."""
        shape = self.tensor(weight).shape or (None,)
        return self._of_size(index, -1, shape[-1]) if self.has(index) else None

    def channels(self) -> Any:
        """The first input, with as many channels as the weight of a convolution has."""
        shape, is_transposed = self.tensor(1).shape or (None,) * 3, "Transpose" in self.node.operator
        count = shape[0] if is_transposed else shape[1]
        if isinstance(count, int) and not is_transposed:
            count *= self.attribute("group")
        return self._of_size(0, 1, count)

    def _of_size(self, index: int, axis: int, size: Dimension) -> Any:
        shape = self.tensor(index).shape
        is_known = shape is not None and len(shape) > max(axis, 0) and shape[axis] == size
        if is_known or not isinstance(size, int):
            return self.x(index)
        return self.call(torch.ops.aten.unflatten.int, self.x(index), axis, [size])

    def constant(self, index: int) -> torch.Tensor:
        """The buffer of a constant input, which must not be modified."""
        return self.builder.buffers[self.builder.paths[self.node.inputs[index]]]

    def sizes(self, index: int) -> Sizes:
        return self.builder.sizes(self.node.inputs[index])

    def constant_sizes(self, index: int) -> list[int]:
        """Sizes that are known now; Lacks otherwise."""
        if self.tensor(index).data is None:
            raise Lacks("needs sizes that are constant")
        return [int(size) for size in self.tensor(index).array.reshape(-1)]

    def axes(self) -> list[int]:
        """The axes of a reduction, its second input; all axes if there are none. Lacks if it then does nothing."""
        axes = self.constant_sizes(1) if self.has(1) else []
        if not axes and self.attribute("noop_with_empty_axes"):
            raise Lacks("has no axes")
        return axes or list(range(self.rank()))

    def reduction(self) -> tuple[list[int] | None, bool]:
        """The axes of a mean (None: the spatial ones), and whether they keep a size of 1."""
        if "keepdims" in self.node.attributes:
            return self.axes(), bool(self.attribute("keepdims"))
        return None, True

    def scalar(self, index: int) -> float:
        """The only element of a constant input, as a number, an int if it is an integer; Lacks for any other input."""
        tensor = self.tensor(index)
        if tensor.data is None or tensor.array.size != 1:
            raise Lacks("needs a number that is constant")
        is_plain = tensor.quantization is None
        number = (tensor.array if is_plain else tensor.dequantize()).reshape(())
        return int(number) if is_plain and DTYPES[tensor.dtype].is_integer else float(number)

    def grid(self, index: int) -> Grid:
        """The quantization of an input; Lacks if it has none."""
        return self._grid(self.tensor(index))

    @property
    def out(self) -> Tensor:
        return self.builder.model.tensors[self.node.outputs[0]]

    @property
    def out_grid(self) -> Grid:
        return self._grid(self.out)

    @staticmethod
    def _grid(tensor: Tensor) -> Grid:
        if tensor.quantization is None:
            raise Lacks("is not quantized throughout")
        if max(map(abs, tensor.quantization.zero_point), default=0) > EXACT_IN_FLOAT32:
            raise Lacks("has zero points that float32 cannot represent")
        return Grid.of(tensor.quantization, torch_dtype(tensor.dtype))

    @property
    def is_float(self) -> bool:
        """Whether nothing about the node is quantized."""
        names = [name for name in (*self.node.inputs, *self.node.outputs) if name]
        return all(self.builder.model.tensors[name].quantization is None for name in names)

    def attribute(self, name: str) -> Any:
        """An attribute; Lacks for a number that, or whose reciprocal, is beyond float32, which torch refuses."""
        value = self.node.attributes[name]
        if isinstance(value, float) and value and not 1 / FLOAT32 <= abs(value) <= FLOAT32:
            raise Lacks("has numbers beyond float32")
        return list(value) if isinstance(value, tuple) else value

    def rank(self, index: int = 0) -> int:
        shape = self.tensor(index).shape
        if shape is None:
            raise Lacks("the rank of its input is not known")
        return len(shape)

    def call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Value:
        return self.builder.call(target, *args, **kwargs)

    def result(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Value:
        """The call that computes the output: it has the output's name in the code."""
        return self.builder.call(target, *args, name=_word(self.node.outputs[0]), **kwargs)

    def derive(self, what: str, value: Any) -> Value:
        """A value computed once from constants, named after the output."""
        return self.builder.derive(f"{self.node.outputs[0]}_{what}", value)

    def value_of(self, derived: Any) -> torch.Tensor:
        """The value that `derive` got, from the call that reads it."""
        value: torch.Tensor = self.builder.derived[str(derived.target)]
        return value

    def parameters(self, index: int) -> tuple[Any, Any, Any]:
        """A quantized constant, its scales and its zero points, as buffers."""
        if self.tensor(index).data is None:
            raise Lacks("needs weights that are constant")
        path = self.builder.paths[self.node.inputs[index]]
        return tuple(self.builder.buffer(part) for part in (path, f"{path}_scale", f"{path}_zero_point"))  # type: ignore[return-value]
