"""The result of `Model.to_torch`: an ordinary module whose buffers are the constants of the model."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import fx, nn

from ...errors import RunError, ValidityError, printable
from ...model import Graph, Model
from ...model import Tensor as ModelTensor
from ...ops import OPERATORS, Trait
from ...quantization import Bytes
from ...rules import require_sound, tensor_violations
from ...threads import TORCH
from .compiled import compiled
from .emit import Builder, Engine, Row
from .engines import candidates, named
from .processor import deprecated_dtypes, quantized_kernels
from .tree import Paths, describe, from_buffers, register
from .values import FOR_RECORDING, check_input

_MODULES = sorted((path.stem for path in Path(__file__).parent.glob("*.py")), key=len, reverse=True)
_HOME = re.compile(rf"\bqfmt_backends_torch_(?:{'|'.join(_MODULES)})_")
"""torch.fx's text for the module of a function."""


class Made(NamedTuple):
    """The state of a module besides its buffers: the model, the request, and the result."""

    model: Model
    requested: str
    engine: Engine
    derived: tuple[str, ...]
    fallbacks: tuple[Row, ...]
    notes: tuple[Row, ...]


class QuantizedModule(fx.GraphModule):
    """A Model in PyTorch. `engine` names the engine, `code` is its code, `report()` lists fallbacks and reasons.

    Constants are plain buffers under the names that they have in the model: `conv1.weight` int8 (with
    `conv1.weight_scale`, `conv1.weight_zero_point` if it is quantized), `conv1.bias` float32. Inputs and outputs are
    those of `Model.run`: a quantized one is plain integers. Its `load_state_dict` accepts new numbers; after any other
    change of a buffer, call `repack()`. Raises RunError for an input that does not fit.
    """

    def __init__(self, model: Model, engine: str) -> None:
        super().__init__(nn.Module(), fx.Graph())
        engine = named(model, engine)
        made = type(self)  # torch.fx makes a class for each module
        made.__name__, made.__qualname__, made.__module__ = "QuantizedModule", "QuantizedModule", __name__
        self._lines: list[str] = []
        self._paths: dict[str, str] = {}
        self._made = Made(model, engine, Engine("", (), 0), (), (), ())  # no constant gets the name of an attribute
        paths = Paths(self)
        self._paths.update((tensor.name, register(paths, tensor)) for tensor in model.graph.constants())
        describe(paths, model)
        self._rebuild(model, engine)
        self.eval()
        self.register_load_state_dict_post_hook(lambda module, _: module.repack())  # type: ignore[no-untyped-call]

    @property
    def engine(self) -> str:
        """The name of the engine."""
        return self._made.engine.name

    def repack(self) -> None:
        """Use the current values of the buffers. Raises ValidityError if they are not valid: a scale of zero, scales
        that a node requires to be equal, …"""
        model = self._current()
        if broken := [each for tensor in model.graph.constants() for each in tensor_violations(tensor)]:
            raise ValidityError(broken)
        require_sound(model)
        self._rebuild(model, self._made.requested)

    def to_model(self) -> Model:
        """The Model, with the current values of the buffers."""
        return _in_memory(self._current())

    __qfmt_model__ = to_model  # used by qfmt.convert

    def _current(self) -> Model:
        """Like `to_model`, but its constants are the buffers, not copies."""
        buffers, model = dict(self.named_buffers()), self._made.model
        tensors = {
            name: from_buffers(tensor, self._paths[name], buffers) if name in self._paths else tensor
            for name, tensor in model.tensors.items()
        }
        return model.replace(graph=replace(model.graph, tensors=tensors))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module with its own arithmetic: not in the types of `torch.autocast`, and with the quantized kernels
        that the parameters are packed for."""
        if torch.is_autocast_enabled("cpu"):
            with torch.autocast("cpu", enabled=False):
                return self(*args, **kwargs)
        if not self._made.engine.kernels:
            return super().__call__(*args, **kwargs)
        with quantized_kernels(self._made.engine.kernels[0]):
            return super().__call__(*args, **kwargs)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> QuantizedModule:
        """Buffers may move between devices, but keep their types, which engines rely on."""
        if fn(torch.zeros(1, dtype=torch.float32)).dtype != torch.float32:
            hint = "convert its inputs and outputs instead"
            raise RunError("a quantized module cannot be converted to another floating type", hint=hint)
        before = list(self.buffers())
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if any(a is not b for a, b in zip(before, self.buffers(), strict=True)):
            self.repack()
        return self

    def __prepare_scriptable__(self) -> Any:
        raise RunError("torch.jit.script cannot read the generated code of a module", hint=FOR_RECORDING)

    @property
    def code(self) -> str:
        """`forward` as Python code; functions of qfmt without their modules."""
        return _HOME.sub("", super().code)

    def report(self) -> Report:
        """The nodes that the engine itself does not support: the table that computes each, and the reason.

        `notes` lists products that can overflow 16 bits in kernels on this processor, and what computes them.
        """
        return Report(self.engine, len(self._made.model.nodes), self._made.fallbacks, self._made.notes)

    def _rebuild(self, model: Model, engine: str) -> None:
        before = self._made.derived
        builder = self._build(model, candidates(model, engine), before)
        for name in before:
            delattr(self, name)
        for name, value in builder.derived.items():
            if isinstance(value, torch.Tensor) and not value.is_mkldnn:
                self.register_buffer(name, value, persistent=False)
            else:
                setattr(self, name, value)
        rows = tuple(builder.fallbacks), tuple(builder.notes)
        self._made = Made(_without_data(model), engine, builder.engine, tuple(builder.derived), *rows)
        self.graph = builder.graph  # now `code` and `forward` are those of the graph
        if not builder.engine.traceable:
            names = {str(node.target) for node in self.graph.find_nodes(op="get_attr")}
            if (run := compiled(self.graph, {name: operator.attrgetter(name)(self) for name in names})) is not None:
                type(self).forward = _through(run, type(self).forward, self.graph)

    def _build(self, model: Model, engines: Sequence[Engine], before: Sequence[str]) -> Builder:
        """Use the first engine that computes all convolutions and matrix products itself, or else most of them.

        The names in `before` will be free.
        """
        builders, buffers = [], dict(self.named_buffers())
        for engine in engines:
            builder = Builder(model, engine, self._paths, buffers, {*dir(self)}.difference(before))
            kernels = quantized_kernels(engine.kernels[0]) if engine.kernels else TORCH.lock
            with kernels, deprecated_dtypes():
                builder.build()
            builders.append(builder)
            if not _heavy(builder.fallbacks):
                break
        best = min(builders, key=lambda builder: len(_heavy(builder.fallbacks)))
        if best is not builders[0]:
            best.notes += [row._replace(computed_by=best.engine.name) for row in _heavy(builders[0].fallbacks)]
        return best

    def __deepcopy__(self, memo: dict[int, Any]) -> QuantizedModule:
        return QuantizedModule(self.to_model(), self._made.requested)

    def __reduce__(self) -> tuple[Any, ...]:
        return QuantizedModule, (self.to_model(), self._made.requested)

    def __str__(self) -> str:
        return repr(self)

    def extra_repr(self) -> str:
        return "\n".join([f"engine={self.engine!r}", *self._lines])


class Report(tuple[Row, ...]):
    """Rows of `module.report()`, and its `notes`; printed, a table."""

    engine: str
    nodes: int
    notes: tuple[Row, ...]

    def __new__(cls, engine: str, nodes: int, rows: Iterable[Row], notes: Iterable[Row] = ()) -> Report:
        self = super().__new__(cls, tuple(rows))
        self.engine, self.nodes, self.notes = engine, nodes, tuple(notes)
        return self

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self.engine, self.nodes, tuple(self), self.notes

    def __str__(self) -> str:
        head = f"engine {self.engine}: computes {self.nodes - len(self)} of {self.nodes} nodes itself"
        if not self and not self.notes:
            return head
        listed = [tuple(map(printable, row)) for row in (*self, *self.notes)]
        rows = [("node", "operator", "computed by", "remark"), *listed]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = ("  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[3]]) for row in rows)
        return "\n".join([head, *lines])

    __repr__ = __str__


def _heavy(fallbacks: Iterable[Row]) -> list[Row]:
    return [row for row in fallbacks if Trait.PRODUCT in OPERATORS[row.operator].traits]


def _through(run: Callable[..., Any], generated: Callable[..., Any], graph: fx.Graph) -> Callable[..., Any]:
    """`forward` by the compiled graph: it checks its inputs as the generated code does."""
    checks = [node.args[1:] for node in graph.nodes if node.target is check_input]

    @wraps(generated)
    def forward(self: QuantizedModule, *inputs: Any, **named: Any) -> Any:
        if named or len(inputs) != len(checks):
            return generated(self, *inputs, **named)
        return run(*[check_input(value, *check) for value, check in zip(inputs, checks, strict=True)])

    return forward


def _without_data(model: Model) -> Model:
    """The model without its arrays, which are the module's buffers."""
    tensors = {name: replace(tensor, data=None) for name, tensor in model.tensors.items()}
    return model.replace(graph=replace(model.graph, nodes=tuple(model.nodes), tensors=tensors))


def _in_memory(model: Model) -> Model:
    """The model in plain containers, with its own memory: it can be pickled, and does not change."""
    graph = model.graph
    nodes = tuple(replace(node, attributes=dict(node.attributes)) for node in graph.nodes)
    tensors = {name: _owned(tensor) for name, tensor in graph.tensors.items()}
    plain = Graph(tuple(graph.inputs), tuple(graph.outputs), nodes, tensors, graph.name)
    return model.replace(graph=plain, source=dict(model.source), metadata=dict(model.metadata), vectors=())


def _owned(tensor: ModelTensor) -> ModelTensor:
    q = tensor.quantization
    if q is not None:
        tensor = replace(tensor, quantization=replace(q, scale=q.scale.copied(), zero_point=q.zero_point.copied()))
    return tensor if tensor.data is None else replace(tensor, data=Bytes(bytes(tensor.data.view())))
