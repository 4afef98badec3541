"""An ONNX model as the witness for a `.qfb`: a fresh conversion, its initializers, and runs in other programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...arithmetic import dequantize
from ...arrays import Array
from ...engines import RUNTIMES
from ...errors import MissingPackageError, RunError
from ...model import DTYPES, Model, Tensor, numpy_dtype
from ...ops import OPERATORS, Trait, has
from ...threads import cached_property
from ..isolation.parent import Session, is_installed
from ..witness import Computed, Witness, integers_of, is_array, stated
from .execution import REFERENCE
from .external import Files, open_proto, take_large
from .quantized import QLINEAR
from .reading import inlined
from .runnable import runnable

OUTPUT = -1
"""In _GRIDS: position of the first output."""

BATCH = 1 << 26
"""Bytes of constants per request."""

_GRIDS: dict[str, tuple[tuple[int, int, int], ...]] = {
    "QuantizeLinear": ((OUTPUT, 1, 2),),
    "DequantizeLinear": ((0, 1, 2),),
    "QGemm": ((0, 1, 2), (3, 4, 5), (OUTPUT, 7, 8)),
    **{
        name: (*((at, at + 1, at + 2) for at, _ in form.operands), (OUTPUT, form.output, form.output + 1))
        for name, form in QLINEAR.items()
    },
}
"""Operator → positions of (integers, scale, zero point)."""


class Grid(NamedTuple):
    """Quantization parameters that one node states: names of scale and zero point, and the axis."""

    scale: str
    zero_point: str
    axis: int


class OnnxWitness(Witness):
    """The onnx package reads its constants."""

    name = "onnx"

    def __init__(self, path: Path, model: Model, engine: str | None = None) -> None:
        self.engine = engine or (RUNTIMES[0] if is_installed("onnxruntime") else REFERENCE)
        if self.engine not in RUNTIMES:
            raise RunError(f"{engine} cannot run ONNX", hint=f"use one of {', '.join(RUNTIMES)}")
        self.package = "onnx" if self.engine == REFERENCE else "onnxruntime"
        self.model = model
        files: Files = {}
        proto = open_proto(path, files)
        self.arrays = take_large(proto, files)
        self.proto = runnable(inlined(proto))
        self.session = Session("onnx", self.package, self._program, lambda _: ("the model", ""), is_array)
        graph = self.proto.graph
        self._producers = {name: node for node in graph.node for name in node.output if name}
        self._grids: dict[str, list[Grid]] = {}
        for name, grid in _stated(graph):
            self._grids.setdefault(name, []).append(grid)
        self._places: dict[str, str] = {}
        """Tensor of `model` → the corresponding ONNX value."""

    def open(self) -> str:
        if not is_installed(self.package):
            raise MissingPackageError(f"{self.package} is not installed", hint=f"run `pip install {self.package}`")
        return self.session.open()

    def _program(self) -> tuple[Array, dict[str, Array], str]:
        try:
            return np.frombuffer(self.proto.SerializeToString(), np.uint8), self.arrays, self.engine
        except Exception:  # protobuf's own exception: a message has at most 2 GB
            what = f"the model is too large for {self.package}: it has more than 2 GB"
            raise RunError(f"{what} in tensors that are not initializers, or of types that NumPy lacks") from None

    # -- constants -------------------------------------------------------------------------------------------

    def constants(self) -> Iterator[tuple[str, Computed]]:
        """Constants, by their name in the source."""
        for names in self._batches():
            read = self.session.ask("constants", names)
            for name in names:
                tensor, array = self.model.tensors[name], read.get(name)
                grid, quantization = self._grid(tensor, name), tensor.quantization
                if array is None or (array.dtype, array.shape) != (numpy_dtype(tensor.dtype), tensor.shape):
                    continue  # packed, or in another layout: compared through the nodes
                dtype = DTYPES[tensor.dtype]
                if dtype.bits < 8 and array.size and not dtype.minimum <= array.min() <= array.max() <= dtype.maximum:
                    continue  # packed bytes, as many as values
                if quantization is None or (quantization.is_affine and grid is not None):
                    yield name, Computed(array, *(grid or ()))

    def _batches(self) -> Iterator[list[str]]:
        """Names of the constants of `model`, in batches that limit the memory."""
        names, size = [], 0
        for tensor in self.model.graph.constants():
            names.append(tensor.name)
            size += tensor.data.nbytes if tensor.data is not None else 0
            if size > BATCH:
                yield names
                names, size = [], 0
        yield names

    @cached_property
    def _read(self) -> dict[str, Array]:
        """Scales and zero points, read or computed with the onnx package."""
        names = (name for grids in self._grids.values() for grid in grids for name in (grid.scale, grid.zero_point))
        return self.session.ask("constants", [name for name in dict.fromkeys(names) if name])

    def _grid(self, tensor: Tensor, name: str) -> tuple[Any, ...] | None:
        """Scale, zero point and axis that adjacent nodes state for a value; None if there are none or they are not
        constant.

        Nodes may interpret the same integers with different parameters: then any of them may be the tensor's.
        """
        found = [grid for each in self._grids.get(name, ()) if (grid := self._means(each, tensor)) is not None]
        mine = stated(tensor.quantization)
        like = [grid for grid in found if grid == mine]
        return next(iter((*like, *found)), None)

    def _means(self, grid: Grid, tensor: Tensor) -> tuple[Any, ...] | None:
        scale = self._read.get(grid.scale)
        if scale is None:
            return None
        point = self._read.get(grid.zero_point) if grid.zero_point else np.zeros(scale.shape, np.int32)
        if point is None or point.size != scale.size or point.dtype.name.startswith("float"):
            return None
        rank = len(tensor.shape or ())
        axis = None if scale.size == 1 else grid.axis % rank if rank else None
        scales = tuple(float(each) for each in scale.reshape(-1).astype(np.float64))
        return scales, tuple(int(each) for each in point.reshape(-1)), axis

    # -- values ----------------------------------------------------------------------------------------------

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Computed]:
        """Run the source; return every tensor of `model` that exists in it."""
        inputs = {name: self._as_taken(name, array) for name, array in inputs.items()}
        names = list(dict.fromkeys(self._places.values()))
        values = self._run(inputs, names, self.engine) if self._places else self._placed(inputs)
        values.update(inputs)
        seen = {}
        for name, place in self._places.items():
            if place in values:
                tensor, value = self.model.tensors[name], values[place]
                if value.dtype == numpy_dtype(tensor.dtype):
                    seen[name] = Computed(value, *self._stated_of(tensor, place))
                elif (integers := integers_of(value, tensor, rounded=True)) is not None:
                    seen[name] = integers
        return seen

    def _run(self, inputs: Mapping[str, Array], names: list[str], engine: str) -> dict[str, Array]:
        return self.session.ask("run", inputs, names, engine)

    def _as_taken(self, name: str, array: Array) -> Array:
        """An input as the ONNX model expects it: dequantized if only the user declared it as quantized."""
        grid = self.model.tensors[name].quantization
        is_real = any(each.name == name and each.type.tensor_type.elem_type == 1 for each in self.proto.graph.input)
        return dequantize(array, grid) if grid is not None and is_real else array

    def _stated_of(self, tensor: Tensor, place: str) -> tuple[Any, ...]:
        """The quantization that ONNX states for a value; for a value that is only moved, ONNX states none, and it is
        ours."""
        if tensor.quantization is None:
            return ()
        return self._grid(tensor, place) or stated(tensor.quantization)

    def _placed(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The first run, not optimized, returns all values; it maps each tensor to the value of its name and type.

        A fused operator keeps the names of its fused clamps and quantizations as aliases; of values of its type it
        computes the last.
        """
        candidates = {
            name: [each for each in (name, *tensor.aliases) if each in self._producers]
            for name, tensor in self.model.tensors.items()
            if not tensor.is_constant
        }
        names = sorted({each for several in candidates.values() for each in several})
        order = {name: position for position, name in enumerate(self._producers)}
        plain = self.engine.partition(":")[0]
        values = self._run(inputs, names, plain)
        for name, several in candidates.items():
            tensor = self.model.tensors[name]
            known = [each for each in several if each in values]
            alike = [each for each in known if _is_alike(tensor, values[each])]
            if not alike:  # what the source moves before it quantizes, the file quantizes first
                alike = [each for each in known if integers_of(values[each], tensor, rounded=True) is not None]
            if alike:
                own = numpy_dtype(tensor.dtype)
                self._places[name] = max(alike, key=lambda each: (values[each].dtype == own, order[each]))
        self._places.update((name, name) for name in inputs)
        if plain == self.engine:
            return values
        for name in self._rounded():  # an optimizer may round earlier, under the same name
            self._places.pop(name, None)
        return self._run(inputs, sorted(set(self._places.values()) - set(inputs)), self.engine)

    def _rounded(self) -> set[str]:
        """Real tensors that a node only moves and that only QuantizeLinear nodes read."""
        graph = self.model.graph
        moved: set[str] = set()
        kept = {*graph.inputs, *graph.outputs}
        for node in graph.nodes:
            if node.operator in OPERATORS and not has(node, Trait.CLAMP):
                moved.update(node.outputs if has(node, Trait.ANY_MOVE) else ())
            kept.update(node.inputs[1:] if node.operator == "QuantizeLinear" else node.inputs)
        return moved - kept


def _stated(graph: Any) -> Iterator[tuple[str, Grid]]:
    """Value → quantization parameters that a node states for it."""
    for node in graph.node:
        if any(attribute.name == "block_size" and attribute.i for attribute in node.attribute):
            continue
        for data, scale, point in _GRIDS.get(node.op_type, ()):
            if scale < len(node.input) and node.input[scale]:
                name = node.output[0] if data == OUTPUT else node.input[data]
                zero_point = node.input[point] if point < len(node.input) else ""
                yield name, Grid(node.input[scale], zero_point, _axis(node, data))


def _axis(node: Any, data: int) -> int:
    given = {attribute.name: attribute.i for attribute in node.attribute}
    if node.op_type == "QGemm":
        return 0 if given.get("transB") else 1
    if node.op_type in QLINEAR:
        axes = dict(QLINEAR[node.op_type].operands)
        return axes.get(data, next(iter(axes.values())))
    return int(given.get("axis", 1))


def _is_alike(tensor: Tensor, array: Array) -> bool:
    """Whether a value can be this tensor: its integers, or real numbers that represent them."""
    return array.dtype == numpy_dtype(tensor.dtype) or integers_of(array, tensor) is not None
