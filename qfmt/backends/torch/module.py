"""What `Model.to_torch` returns: an ordinary module whose buffers are the constants of the model."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import Any

import torch
from torch import fx, nn

from ...model import DTYPES, Data, Graph, Model, Node, Quantization, StoredArray
from ...model import Tensor as ModelTensor
from ...ops import OPERATORS, Quantized
from .compiled import compiled
from .emit import Builder, Engine, Row
from .engines import candidates
from .kernels import deprecated_dtypes, quantized_kernels
from .values import check_input, to_array, to_tensor

_HOME = re.compile(
    r"\bqfmt_backends_torch_(?:arithmetic|interpreted|moves|native_dynamic|products|reference|sizes|values)_"
)
"""How torch.fx writes the module of a function."""


class Layer(nn.Module):
    """A module of the source: it holds parameters, and says what the nodes that came from it put out."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def extra_repr(self) -> str:
        return "\n".join(self.lines) if len(self.lines) != 1 else self.lines[0]


class Paths:
    """Where in a tree of modules each constant becomes a buffer: at its name, or what comes nearest to it."""

    def __init__(self, root: nn.Module) -> None:
        self.root = root
        self._layers: dict[str, tuple[str, nn.Module]] = {"": ("", root)}

    def layer(self, name: str) -> tuple[str, nn.Module]:
        """The module of that dotted name, made if there is none, and its path."""
        if name not in self._layers:
            parent_name, _, last = name.rpartition(".")
            path, parent = self.layer(parent_name)
            last = self._free(parent, last)
            child = Layer()
            parent.add_module(last, child)
            self._layers[name] = (f"{path}.{last}".lstrip("."), child)
        return self._layers[name]

    def buffer(self, name: str, value: torch.Tensor) -> str:
        """Register a buffer under a dotted name; the path where it is."""
        parent_name, _, last = name.rpartition(".")
        path, parent = self.layer(parent_name)
        last = self._free(parent, last)
        parent.register_buffer(last, value)
        return f"{path}.{last}".lstrip(".")

    @staticmethod
    def _free(module: nn.Module, name: str) -> str:
        """The name, or one like it that the module does not use for something else."""
        name = name or "_"
        while hasattr(module, name):
            name += "_"
        return name


class QuantizedModule(fx.GraphModule):
    """A Model in PyTorch. `engine` says who computes, `code` how, `report()` which nodes fell back and why.

    Constants are plain buffers under the names that they have in the model: `conv1.weight` int8 (with
    `conv1.weight_scale`, `conv1.weight_zero_point` if it is quantized), `conv1.bias` float32. Inputs and outputs are
    those of `Model.run`: a quantized one is plain integers. `load_state_dict` takes new numbers; whoever changes a
    buffer in another way calls `repack()` afterwards. Raises RunError for an input that does not fit.
    """

    def __init__(self, model: Model, engine: str) -> None:
        super().__init__(nn.Module(), fx.Graph())
        made = type(self)  # torch.fx makes a class for each module
        made.__name__, made.__qualname__, made.__module__ = "QuantizedModule", "QuantizedModule", __name__
        paths = Paths(self)
        self._paths = {tensor.name: _register(paths, tensor) for tensor in model.graph.constants()}
        _describe(paths, model)
        self._rebuild(model, engine)
        self.eval()
        self.register_load_state_dict_post_hook(lambda module, _: module.repack())  # type: ignore[no-untyped-call]

    def repack(self) -> None:
        """Compute with what the buffers hold now."""
        self._rebuild(self._current(), self.requested)

    def to_model(self) -> Model:
        """The Model, with the numbers that the buffers hold now."""
        return _in_memory(self._current())

    __qfmt_model__ = to_model  # what qfmt.convert asks for

    def _current(self) -> Model:
        """As `to_model`, but its constants are the buffers, not copies of them."""
        buffers = dict(self.named_buffers())
        tensors = {
            name: _from_buffers(tensor, self._paths[name], buffers) if name in self._paths else tensor
            for name, tensor in self.model.tensors.items()
        }
        return self.model.replace(graph=replace(self.model.graph, tensors=tensors))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As of any module; where torch's quantized kernels compute, with those that the parameters are packed for."""
        if not self._kernels or self._kernels == torch.backends.quantized.engine:
            return super().__call__(*args, **kwargs)
        with quantized_kernels(self._kernels):
            return super().__call__(*args, **kwargs)

    @property
    def code(self) -> str:
        """What `forward` does, as Python; functions of qfmt without the modules that they stand in."""
        return _HOME.sub("", super().code)

    def report(self) -> Report:
        """The nodes that the engine could not compute itself: who does instead, and why."""
        return Report(self.engine, len(self.model.nodes), self._fallbacks)

    def _rebuild(self, model: Model, engine: str) -> None:
        for name in getattr(self, "_derived", ()):
            delattr(self, name)
        builder = self._build(model, candidates(model, engine))
        self.requested, self.engine, self._kernels = engine, builder.engine.name, builder.engine.kernels
        for name, value in builder.derived.items():
            if isinstance(value, torch.Tensor):
                self.register_buffer(name, value, persistent=False)
            else:
                setattr(self, name, value)
        self._derived = tuple(builder.derived)
        self._fallbacks = tuple(builder.fallbacks)
        self.model = _without_data(model)
        self.graph = builder.graph  # from here on `code` and `forward` are those of the graph
        if not builder.engine.traceable:
            read = {str(node.target): self._object(node) for node in self.graph.find_nodes(op="get_attr")}
            if (run := compiled(self.graph, read)) is not None:
                type(self).forward = _through(run, type(self).forward, self.graph)

    def _build(self, model: Model, engines: Sequence[Engine]) -> Builder:
        """By the first engine that computes all convolutions and matrix products itself, or else most of them."""
        builders, buffers = [], dict(self.named_buffers())
        for engine in engines:
            builder = Builder(model, engine, self._paths, buffers, taken=partial(hasattr, self))
            with quantized_kernels(engine.kernels or torch.backends.quantized.engine), deprecated_dtypes():
                builder.build()
            builders.append(builder)
            if not _heavy(builder.fallbacks):
                break
        return min(builders, key=lambda builder: _heavy(builder.fallbacks))

    def _object(self, node: fx.Node) -> Any:
        return operator.attrgetter(str(node.target))(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> QuantizedModule:
        return QuantizedModule(self.to_model(), self.requested)

    def __reduce__(self) -> tuple[Any, ...]:
        return QuantizedModule, (self.to_model(), self.requested)

    def __str__(self) -> str:
        return repr(self)

    def extra_repr(self) -> str:
        return "\n".join([f"engine={self.engine!r}", *getattr(self, "lines", ())])


class Report(tuple[Row, ...]):
    """Rows of `module.report()`; printed, a table."""

    engine: str
    nodes: int

    def __new__(cls, engine: str, nodes: int, rows: Iterable[Row]) -> Report:
        self = super().__new__(cls, tuple(rows))
        self.engine, self.nodes = engine, nodes
        return self

    def __str__(self) -> str:
        head = f"engine {self.engine}: computes {self.nodes - len(self)} of {self.nodes} nodes itself"
        if not self:
            return head
        rows = [("node", "operator", "computed by", "because it"), *self]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = ("  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[3]]) for row in rows)
        return "\n".join([head, *lines])

    __repr__ = __str__


def _heavy(fallbacks: Iterable[Row]) -> int:
    return sum(
        OPERATORS[row.operator].quantized is Quantized.ACCUMULATES for row in fallbacks if row.operator in OPERATORS
    )


def _through(run: Callable[..., Any], generated: Callable[..., Any], graph: fx.Graph) -> Callable[..., Any]:
    """`forward` by the compiled graph: it checks its inputs as the generated code does."""
    checks = [node.args[1:] for node in graph.nodes if node.target is check_input]

    @wraps(generated)
    def forward(self: QuantizedModule, *inputs: Any, **named: Any) -> Any:
        if named or len(inputs) != len(checks):
            return generated(self, *inputs, **named)
        return run(*[check_input(value, *check) for value, check in zip(inputs, checks, strict=True)])

    return forward


def _register(paths: Paths, tensor: ModelTensor) -> str:
    path = paths.buffer(tensor.name, to_tensor(tensor.array, tensor.dtype))
    if (q := tensor.quantization) is not None:
        parent, _, last = path.rpartition(".")
        layer = paths.root.get_submodule(parent)
        scale, zero_point = _parameters(q)
        layer.register_buffer(f"{last}_scale", scale)
        layer.register_buffer(f"{last}_zero_point", zero_point)
    return path


def _parameters(q: Quantization) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and zero points; those of blocks in their own type, an element for each."""
    scale, zero_point = (q.scale, q.zero_point) if q.is_per_channel else (q.scale[:1], q.zero_point[:1])
    shape = (-1,) if q.is_per_channel else ()
    if q.blocks is None:
        scales = torch.tensor(scale, dtype=torch.float64).reshape(shape)
        return scales, torch.tensor(zero_point, dtype=_point_dtype(q)).reshape(shape)
    scales = to_tensor(q.blocks.scale.array, q.blocks.scale.dtype)
    if (own := q.blocks.zero_point) is not None:
        return scales, to_tensor(own.array, own.dtype)
    return scales, torch.tensor(zero_point[0], dtype=_point_dtype(q))


def _quantization(q: Quantization, tensor: ModelTensor, scale: torch.Tensor, zero_point: torch.Tensor) -> Quantization:
    """The inverse: `q`, which the tensor had, with the numbers of these buffers."""
    if q.blocks is None:
        scales, points = (values.reshape(-1).tolist() for values in (scale, zero_point))
        return replace(q, scale=tuple(map(float, scales)), zero_point=tuple(points))
    own = q.blocks.zero_point
    changed = Quantization.of_blocks(
        tensor.dtype,
        q.blocks.tensor_shape,
        q.blocks.shape,
        to_array(scale, q.blocks.scale.dtype),
        zero_point.numpy() if own is None else to_array(zero_point, own.dtype),
        limits=(q.quant_min, q.quant_max),
    )
    return replace(changed, observed=q.observed)


def _point_dtype(q: Quantization) -> torch.dtype:
    return torch.float64 if q.has_float_zero_points else torch.int64


def _from_buffers(tensor: ModelTensor, path: str, buffers: dict[str, torch.Tensor]) -> ModelTensor:
    q = tensor.quantization
    if q is not None:
        q = _quantization(q, tensor, buffers[f"{path}_scale"], buffers[f"{path}_zero_point"])
    array = to_array(buffers[path], tensor.dtype)
    return ModelTensor.constant(tensor.name, array, q, dtype=tensor.dtype, aliases=tensor.aliases)


def _without_data(model: Model) -> Model:
    """The model without its arrays, which are the module's buffers."""
    return model.replace(graph=replace(model.graph, nodes=tuple(model.nodes), tensors=_stripped(model)))


def _stripped(model: Model) -> dict[str, ModelTensor]:
    return {name: replace(tensor, data=None) for name, tensor in model.tensors.items()}


def _in_memory(model: Model) -> Model:
    """The model in plain containers, with memory of its own: it can be pickled, and does not change."""
    graph = model.graph
    nodes = tuple(replace(node, attributes=dict(node.attributes)) for node in graph.nodes)
    tensors = {name: _owned(tensor) for name, tensor in graph.tensors.items()}
    plain = Graph(tuple(graph.inputs), tuple(graph.outputs), nodes, tensors, graph.name)
    return model.replace(graph=plain, source=dict(model.source), metadata=dict(model.metadata))


def _owned(tensor: ModelTensor) -> ModelTensor:
    q = tensor.quantization
    if q is not None and q.blocks is not None:
        own = q.blocks.zero_point
        owned = replace(q.blocks, scale=_copied(q.blocks.scale), zero_point=None if own is None else _copied(own))
        tensor = replace(tensor, quantization=replace(q, blocks=owned))
    return tensor if tensor.data is None else replace(tensor, data=BytesData(bytes(tensor.data.view())))


def _copied(stored: StoredArray) -> StoredArray:
    return stored._replace(data=BytesData(bytes(stored.data.view())))


class BytesData(Data):
    """Data in memory of its own."""

    __slots__ = ("_content",)

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.nbytes = len(content)

    def view(self) -> memoryview:
        return memoryview(self._content)


def _describe(paths: Paths, model: Model) -> None:
    """A line for each node, in the module of the source that it came from."""
    for node in model.nodes:
        _, layer = paths.layer(node.scope)
        layer.__dict__.setdefault("lines", []).append(_line(node, model))


def _line(node: Node, model: Model) -> str:
    out = model.tensors[node.outputs[0]]
    said = [node.operator.removeprefix("qfmt."), out.dtype]
    if out.quantization is not None:
        said.append(_grid(out.quantization, out.dtype))
    for key in ("kernel_shape", "strides", "pads", "dilations", "group"):
        value = node.attributes.get(key)
        if value is not None and any(item != _USUAL[key] for item in (value if isinstance(value, tuple) else (value,))):
            said.append(f"{key}={value}")
    return ", ".join(said)


_USUAL = {"kernel_shape": None, "strides": 1, "pads": 0, "dilations": 1, "group": 1}


def _grid(q: Quantization, dtype: str) -> str:
    if q.blocks is not None:
        return f"scales of blocks of {'x'.join(map(str, q.blocks.shape))}"
    scale = f"scale={q.scale[0]:.6g}, zero_point={q.zero_point[0]}" if q.axis is None else f"scales along axis {q.axis}"
    limits = DTYPES[dtype]
    whole = (q.quant_min, q.quant_max) == (limits.minimum, limits.maximum)
    return scale if whole else f"{scale}, range={q.quant_min}..{q.quant_max}"
