"""The source of a file that torch can execute: the calls that qfmt found in it, on the parameters that qfmt read.

torch's own readers are not used. They run code of a file: `torch.jit.load` the defaults of its methods and its
`__setstate__`, `torch.load` and `torch.export.load` its pickles.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...arithmetic import dequantize, quantize
from ...engines import TORCH_ENGINES
from ...errors import BudgetError, MissingPackageError, RunError, SourceError
from ...model import Model, Tensor, numpy_dtype
from ..isolation.parent import EngineDied, Session, is_installed
from ..options import Options
from ..witness import Computed, Witness, computed, integers_of, is_computed
from .network import Lifted, Network
from .program import Program, Stored, Tape, given, program

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .building import Builder


class TorchWitness(Witness):
    """`lifted` is None for a source without a graph, which cannot be run.

    `engine` is torch's for quantized operators, or "pt2e" for a decomposed network (see `network.Network`), which has
    none; `examples` are the shapes of the source's example inputs.
    """

    name = "torch"

    def __init__(
        self, model: Model, lifted: Lifted | None, engine: str, examples: Sequence[tuple[int, ...] | None] = ()
    ) -> None:
        self.model, self.engine, self.examples = model, engine, examples
        self.lifted, self.is_decomposed = lifted, engine == "pt2e"
        self.floats = lifted.lifter.builder.floats if lifted else set()
        """Keys of the inputs that are quantized in the file, and floats in torch."""
        self.session = Session("torch", "torch", self._program, self._call, is_computed)

    def open(self) -> str:
        if not is_installed("torch"):
            hint = "run `pip install '.[torch]'` in a checkout of qfmt"
            raise MissingPackageError("torch is not installed", hint=hint)
        return self.session.open()

    def example_shapes(self) -> Sequence[tuple[int, ...] | None]:
        return self.examples

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, Computed]:
        assert self.lifted is not None
        names, means = self.lifted.lifter.names, self._builder.tensors
        seen = {key: value for key, value in self._ran(inputs).items() if key in names}
        if self.floats:
            seen = {key: _as_integers(value, means[key]) for key, value in seen.items()}
        if not self.is_decomposed:
            return {names[key]: _as_quantized(value, means[key]) for key, value in seen.items()}
        named = {names[key]: computed(value.array, means[key]) for key, value in seen.items()}
        return {tensor.name: value for tensor in self.model.tensors.values() for value in _of(tensor, named)}

    def _ran(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, Computed]:
        """What torch computes: on floats, if it has no kernel for quantized tensors."""
        try:
            return self.session.ask("run", self._given(inputs, self.floats))
        except RunError as error:
            if self.floats == self._builder.undecided or isinstance(error, EngineDied):
                raise
            refused = error
        try:
            seen = self.session.ask("run", self._given(inputs, self._builder.undecided))
        except RunError as error:
            raise error if isinstance(error, EngineDied) else refused from None
        self.floats = self._builder.undecided
        return seen

    def _given(self, inputs: Mapping[str, NDArray[Any]], floats: Container[str]) -> dict[str, Stored]:
        """Inputs in torch's form. A network that quantizes an input itself needs floats, even if the file takes
        integers (`--input-quantization`)."""
        reals, stored = self._builder.reals, {}
        for key, name in zip(self._builder.inputs, self.model.graph.inputs, strict=True):
            array, grid = inputs[name], self.model.tensors[name].quantization
            if grid is not None and (key in reals or key in floats):
                array, grid = dequantize(array, grid), None
            stored[reals.get(key, key)] = given(array, None if self.is_decomposed else grid)
        return stored

    @property
    def _builder(self) -> Builder:
        assert self.lifted is not None
        return self.lifted.lifter.builder

    @property
    def _tape(self) -> Tape:
        assert self.lifted is not None and isinstance(self.lifted.recorder, Tape)
        return self.lifted.recorder

    def _program(self) -> tuple[Program]:
        assert self.lifted is not None
        engine = "" if self.is_decomposed else self.engine
        return (program(self._tape, engine, list(self.lifted.lifter.names)),)

    def _call(self, index: int) -> tuple[str, str]:
        call = self._tape.calls[index]
        return call.target, call.place


def witness_of(network: Network, file: Model, engine: str | None) -> TorchWitness:
    """The source of a file, converted as the file was: for its engine, with its inputs' shapes and quantization.

    If the source does not accept those, it is converted without them, and the two will differ.
    """
    asked = _engine(file, engine, network.is_decomposed)
    like = Options.like(file, [spec.name for spec in network.inputs])
    try:
        lifted = network.lift(like, Tape)
    except BudgetError:
        raise
    except SourceError:
        lifted = network.lift(Options(like.engine, eval_mode=like.eval_mode), Tape)
    return TorchWitness(network.finished(lifted), lifted, asked, [spec.example for spec in network.inputs])


def without_graph(model: Model, file: Model, engine: str | None) -> TorchWitness:
    """A source with only tensors."""
    return TorchWitness(model, None, _engine(file, engine, False))


def _engine(file: Model, asked: str | None, is_decomposed: bool) -> str:
    """The engine that runs a source: the requested one, or the one whose rules a file states."""
    if is_decomposed:
        if asked not in (None, "pt2e"):
            raise RunError(f"--engine {asked} does not apply to a program of torch.export", hint="drop --engine")
        return "pt2e"
    engine = asked or (file.engine if file.engine in TORCH_ENGINES else TORCH_ENGINES[0])
    if engine not in TORCH_ENGINES:
        raise RunError(f"{engine} cannot run PyTorch's networks", hint=f"torch has {', '.join(TORCH_ENGINES)}")
    return engine


def _as_integers(value: Computed, tensor: Tensor) -> Computed:
    """Floats of a tensor that the file has as integers, as these: what moves an input moves its integers."""
    integers = None if value.is_quantized else integers_of(value.array, tensor)
    return value if integers is None else integers


def _as_quantized(value: Computed, tensor: Tensor) -> Computed:
    """The integers of a traced network of `quantized_decomposed`, whose calls state what they mean."""
    is_plain = not value.is_quantized and tensor.quantization is not None
    return computed(value.array, tensor) if is_plain and value.array.dtype == numpy_dtype(tensor.dtype) else value


def _of(tensor: Tensor, named: Mapping[str, Computed]) -> Iterator[Computed]:
    """The source's value of a tensor, under one of its names before folding.

    If the source moves floats and quantizes them afterwards, it has no integers: they are made from the floats.
    """
    found = [named[name] for name in (tensor.name, *tensor.aliases) if name in named]
    alike = [value for value in found if value.is_quantized == (tensor.quantization is not None)]
    grid = tensor.quantization
    if alike and grid is None:
        yield Computed(_as_stated(tensor, alike[0].array))
    elif alike:
        yield alike[0]
    elif found and grid is not None and found[0].array.dtype == "float32":
        integers = quantize(found[0].array, grid, numpy_dtype(tensor.dtype), "reciprocal")
        yield computed(integers, tensor)


def _as_stated(tensor: Tensor, theirs: NDArray[Any]) -> NDArray[Any]:
    """The source's numbers in the type of the file: computed grids are float32 scalars there, and torch has them as
    float64 and int64 of one element, and the integers on them as uint8."""
    same = theirs.astype(numpy_dtype(tensor.dtype), copy=False)
    return same.reshape(()) if tensor.shape == () and same.size == 1 else same
