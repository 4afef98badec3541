"""V50, V51, V70: test vectors against the graph. Their values obey the rules for constants: V3, V10-V12, V23."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import Violation
from ..model import DIGEST_SIZE, DTYPES, Graph, Model, StoredArray, Tensor, Vector, digested_outputs
from .rule import Stage, first_of, is_text, quoted
from .tensors import data_violations, tensor_violations

ENDS = Stage()
SIZES = Stage()


def vectors_violations(model: Model) -> list[Violation]:
    """The rules that the test vectors of a model break."""
    found = []
    for index, vector in enumerate(model.vectors):
        where = f"test vector {index}"
        found += vector_violations(vector, model.graph, where) or vector_data_violations(vector, model.graph, where)
    return found


def vector_violations(vector: Vector, graph: Graph, where: str = "test vector") -> list[Violation]:
    """The rules that a test vector breaks, without reading its values; the tensors of the graph must break none."""
    found = ENDS.broken(where, vector, graph)
    if not is_text(vector.name):
        found.append(Violation("V36", where, f"the name {quoted(vector.name)} is not valid text"))
    if found:
        return found
    for place, constant in _constants(vector, graph, where):
        found += [Violation(broken.rule, place, broken.what) for broken in tensor_violations(constant)]
    return found or SIZES.broken(where, vector, graph)


def vector_data_violations(vector: Vector, graph: Graph, where: str) -> list[Violation]:
    """The rules that its values break; it must break none of the others."""
    return [
        Violation(broken.rule, place, broken.what)
        for place, constant in _constants(vector, graph, where)
        for broken in data_violations(constant)
    ]


def _constants(vector: Vector, graph: Graph, where: str) -> Iterator[tuple[str, Tensor]]:
    """The values as constants of the types and quantizations of their tensors, and where each is."""
    for end, name, value in vector.stored(graph):
        grid = graph.tensors[name].quantization
        yield f"{where}, {end} {quoted(name)}", Tensor(name, value.dtype, value.shape, value.data, grid)


@ENDS.rule(
    50,
    "A test vector has one value for each input and each output of the graph, of the element type of that tensor; if a "
    "tensor is an output twice, its value is there twice. An archive has no test vectors.",
)
def _ends(vector: Vector, graph: Graph) -> str:
    if graph.is_archive:
        return "an archive has no graph to run"
    for what, values, names in (("input", vector.inputs, graph.inputs), ("output", vector.outputs, graph.outputs)):
        if missing := [name for name in names if name not in values]:
            return f"the {what} {first_of(missing)} has no value"
        if unknown := values.keys() - set(names):
            return f"{first_of(sorted(unknown))} is not an {what} of the graph"
    for _, name, value in vector.stored(graph):
        dtype = graph.tensors[name].dtype if name in graph.tensors else ""
        if value.dtype != dtype or dtype not in DTYPES:
            return f"the value of {quoted(name)} is {value.dtype}, the tensor is {dtype or 'missing'}"
    return ""


@SIZES.rule(
    51,
    "The value of a tensor in a test vector obeys the rules for a constant with its quantization (V3, V10, V11, V12, "
    "V21, V23), and has the sizes of the tensor where they are known; a named size is the same everywhere in the "
    "vector.",
)
def _sizes(vector: Vector, graph: Graph) -> str:
    named: dict[str, int] = {}
    for end, name, value in vector.stored(graph):
        if wrong := _misfit(graph.tensors[name], value, named):
            return f"the {end} {quoted(name)} has the shape {list(value.shape)}, but {wrong}"
    return ""


@SIZES.rule(
    70, "A test vector has no digests, or one of 16 bytes for each output of a node that has an integer type or Bool."
)
def _digests(vector: Vector, graph: Graph) -> str:
    if not vector.digests:
        return ""
    count = sum(len(digested_outputs(node, graph)) for node in graph.nodes)
    if len(vector.digests) == DIGEST_SIZE * count:
        return ""
    return f"{len(vector.digests)} bytes of digests, but {count} outputs of nodes have {DIGEST_SIZE * count}"


def _misfit(tensor: Tensor, value: StoredArray, named: dict[str, int]) -> str:
    """How the sizes differ from those of the tensor; `named` collects the sizes with names."""
    if tensor.shape is None:
        return ""
    if len(tensor.shape) != len(value.shape):
        return f"the tensor has {len(tensor.shape)} dimensions"
    for axis, (size, wanted) in enumerate(zip(value.shape, tensor.shape, strict=True)):
        known = named.setdefault(wanted, size) if isinstance(wanted, str) else wanted
        if known is not None and size != known:
            return f"dimension {axis} must be {known}"
    return ""
