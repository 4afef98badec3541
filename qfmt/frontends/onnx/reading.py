"""Reads an ONNX file or a ModelProto as a validated onnx-ir graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...budget import NODE, NODE_BYTES, Budget
from ...errors import MissingPackageError, SourceError, first_line
from .external import Files, is_external, open_proto, tensors_within
from .tensors import FILE, quiet

if TYPE_CHECKING:
    import onnx_ir as ir

NEWEST_OPSET = 28
"""The newest opset of the default domain that is supported."""

OPSETS_SINCE = 3
"""The first IR version in which a model must state an opset (onnx/docs/IR.md)."""

DEEPEST = 64
"""Nesting limit of function calls, higher than any exporter writes: names of inlined nodes grow with each level."""


TRY = 500
"""Characters of a name that are copied in the time that it takes to try a short one: a tenth of an operation."""


def read(source: str | PathLike[str] | Any) -> tuple[ir.Model, Budget]:
    """The model of a file or of an onnx.ModelProto, with functions inlined and nodes in topological order; and the
    budget of its conversion, which is unlimited for a model in memory.

    External data is memory-mapped, and only from the folder of the file or below. Raises SourceError for an invalid
    model: damaged, cyclic, with undefined values or missing weights, or newer than supported.
    """
    try:
        from onnx_ir.passes.common import InlinePass
    except ImportError:
        raise MissingPackageError(
            "reading ONNX requires the packages onnx and onnx-ir",
            hint="run `pip install '.[onnx]'` in a checkout of qfmt",
        ) from None
    if isinstance(source, str | PathLike):
        files: Files = {}
        proto = open_proto(Path(source), files)
        budget = Budget(Path(source).stat().st_size + _mapped_bytes(proto))
        budget.tensor(len(proto.graph.input) + sum(1 for _ in tensors_within(proto)))
        model = _from_checked(proto)
        _tell_files(model, files)
    else:
        model, budget = _from_proto(source), Budget(None)
    if not model.opset_imports and model.ir_version >= OPSETS_SINCE:
        raise SourceError("is an ONNX model that states no opset", hint="it is truncated or damaged; download it again")
    opset = model.opset_imports.get("", 1)
    if opset > NEWEST_OPSET:
        raise SourceError(
            f"is written for opset {opset}; the newest supported is {NEWEST_OPSET}",
            hint="convert it with onnx.version_converter",
        )
    if model.functions:
        _check_functions(model.functions, opset)
        for function in model.functions.keys() - _count_calls(model, budget):
            del model.functions[function]  # InlinePass would also inline the calls in it, which are not counted
        try:
            model = InlinePass()(model).model
        except Exception as error:  # any error of the library
            raise SourceError(f"its functions cannot be inlined: {_root(error)}") from None
    if not model.graph.outputs:
        raise SourceError("is an ONNX model without outputs", hint="declare its results as outputs of the graph")
    _check_links(model.graph)
    return model, budget


def _check_functions(functions: Iterable[ir.OperatorIdentifier], opset: int) -> None:
    """SourceError for a function with the name of a standard operator: some runtimes take the one, some the other."""
    import onnx

    for domain, name, _ in functions:
        if domain in ("", "ai.onnx") and onnx.defs.has(name, opset):
            what = f"defines a function {name}, which is also a standard operator"
            raise SourceError(what, hint="rename the function, or inline it with onnx.inliner")


def _mapped_bytes(proto: Any) -> int:
    """The number of bytes of external initializers."""
    mapped = (entry for tensor in proto.graph.initializer if is_external(tensor) for entry in tensor.external_data)
    return sum(int(entry.value) for entry in mapped if entry.key == "length")


def _tell_files(model: ir.Model, files: Files) -> None:
    """Attach its open file to each external initializer."""
    import onnx_ir as ir

    for value in model.graph.initializers.values():
        if isinstance(value.const_value, ir.ExternalTensor):
            value.const_value.meta[FILE] = files[str(value.const_value.path)]


def _count_calls(model: ir.Model, budget: Budget) -> Set[ir.OperatorIdentifier]:
    """Charge the budget for what inlining adds; return the functions that are called.

    If each function calls the next one twice, the number of nodes doubles with each function.
    """
    sizes: dict[ir.OperatorIdentifier, int] = {}
    calls: list[ir.OperatorIdentifier] = []

    def inlined(graph: ir.Graph) -> int:
        nodes = [node for each in graphs_within(graph) for node in each]
        return sum(1 + (len(node.inputs) + len(node.outputs)) // 8 + called(node.op_identifier()) for node in nodes)

    def called(function: ir.OperatorIdentifier) -> int:
        if function not in model.functions:
            return 0
        if function in calls or len(calls) == DEEPEST:
            what = (
                "call each other recursively"
                if function in calls
                else f"call each other more than {DEEPEST} levels deep"
            )
            raise SourceError(f"its functions {what}", hint="inline them with onnx.inliner")
        if function not in sizes:
            calls.append(function)
            sizes[function] = inlined(model.functions[function].graph)
            calls.pop()
        return sizes[function]

    own = sum(1 for each in (model.graph, *model.functions.values()) for _ in each)
    copies = max(0, inlined(model.graph) - own)
    budget.spend(NODE * copies)
    budget.allocate(NODE_BYTES * copies)
    _charge_names(model, [*reversed(sizes)], budget)
    return sizes.keys()


def _charge_names(model: ir.Model, functions: Sequence[ir.OperatorIdentifier], budget: Budget) -> None:
    """Charge the budget for the parameters and names of the copies of functions, which are listed before those that
    they call.

    The pass numbers equal names from 2, and tries each number again for each copy: quadratic work.
    """
    graphs = {function: list(graphs_within(model.functions[function].graph)) for function in functions}
    copies = Counter(node.op_identifier() for each in graphs_within(model.graph) for node in each)
    names: Counter[tuple[str, str]] = Counter()
    for function in functions:
        count, declared = copies[function], model.functions[function]
        budget.spend(count * (len(declared.inputs) + len(declared.attributes)))
        for node in (node for each in graphs[function] for node in each):
            copies[node.op_identifier()] += count
            for each in (("node", node.name or "node"), *(("value", value.name or "val") for value in node.outputs)):
                names[each] += count
    own = ((node.name, *(value.name for value in node.outputs)) for each in graphs_within(model.graph) for node in each)
    known = {name for group in own for name in group if name}.union(name for _, name in names)
    numbered = Counter(base for base, _, number in (name.rpartition("_") for name in known) if number.isdecimal())
    budget.allocate(sum(count * len(name) for (_, name), count in names.items()))
    tried = sum(count * (count + numbered[name]) * (TRY + len(name)) for (_, name), count in names.items())
    budget.spend(tried // (20 * TRY))  # half of the numbers are below the last one


def _from_proto(proto: Any) -> ir.Model:
    for tensor, where in tensors_within(proto):
        if is_external(tensor):
            hint = "convert the file, or call onnx.load_external_data_for_model"
            raise SourceError("its data is in another file", where=where, hint=hint)
    return _from_checked(proto)


def _from_checked(proto: Any) -> ir.Model:
    import onnx_ir as ir

    model: ir.Model
    if not proto.HasField("graph"):
        raise SourceError("is an ONNX model without a graph", hint="it is truncated or damaged; download it again")
    if len(proto.graph.sparse_initializer):
        raise SourceError("has sparse initializers", hint="make them dense")
    if not all(isinstance(text, str) for text in (proto.producer_name, proto.producer_version, *_texts(proto.graph))):
        raise SourceError("contains names that are not text", hint="the file is damaged; download it again")
    _check_names(proto.graph)
    quiet()
    try:
        model = ir.from_proto(proto)
    except Exception as error:  # the library raises its own exceptions for inconsistent models
        what = f"is not a valid ONNX model: {_root(error)}"
        raise SourceError(what, hint="run onnx.checker for details") from None
    return model


def _root(error: BaseException) -> str:
    """The first line of the root cause of an exception."""
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error)


def _texts(graph: Any) -> Iterator[str | bytes]:
    """Every name in a graph. Protobuf returns bytes for one that is not UTF-8."""
    yield graph.name
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield value.name
        yield from (size.dim_param for size in value.type.tensor_type.shape.dim)
    yield from (tensor.name for tensor in graph.initializer)
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        for attribute in node.attribute:
            yield attribute.name
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _texts(inner)


def _check_names(graph: Any) -> None:
    """Raise SourceError if two values, inputs or node outputs, have the same name."""
    seen: set[str] = set()
    for name in (*(value.name for value in graph.input), *(name for node in graph.node for name in node.output)):
        if name and name in seen:
            raise SourceError("is defined twice", where=f"value {name!r}", hint="give each value its own name")
        seen.add(name)
    seen.difference_update(value.name for value in graph.input)  # an initializer is the default of an input
    for tensor in graph.initializer:
        if tensor.name in seen:
            raise SourceError(
                "is defined twice", where=f"initializer {tensor.name!r}", hint="give each value its own name"
            )
        seen.add(tensor.name)
    for node in graph.node:
        if len({attribute.name for attribute in node.attribute}) < len(node.attribute):
            raise SourceError("has two attributes of one name", where=f"node {node.name or node.op_type!r}")


def _check_links(graph: ir.Graph) -> None:
    """Sort nodes topologically; SourceError for a cycle, or for a value that is not defined."""
    graphs = list(graphs_within(graph))
    given = {id(value) for each in graphs for value in (*each.inputs, *each.initializers.values())}
    for each in graphs:
        for node in each:
            for value in node.inputs:
                if value is not None and value.producer() is None and id(value) not in given:
                    what = f"reads {value.name!r}, which nothing computes"
                    raise SourceError(what, where=_place(node), hint="run onnx.checker for details")
        for value in each.outputs:
            if value.producer() is None and id(value) not in given:
                where = f"output {value.name!r}"
                raise SourceError("is not computed by any node", where=where, hint="run onnx.checker for details")
    if _is_sorted(graph):
        return
    try:
        graph.sort()
    except ValueError:
        raise SourceError("its nodes form a cycle", hint="run onnx.checker for details") from None


def _is_sorted(graph: ir.Graph) -> bool:
    """Whether nodes are in topological order; False if a node has subgraphs, which are not examined."""
    seen: set[int] = set()
    for node in graph:
        if any(attribute.type.name in ("GRAPH", "GRAPHS") for attribute in node.attributes.values()):
            return False
        for value in node.inputs:
            producer = None if value is None else value.producer()
            if producer is not None and id(producer) not in seen:
                return False
        seen.add(id(node))
    return True


def graphs_within(graph: ir.Graph) -> Iterator[ir.Graph]:
    """A graph and its subgraphs, at any depth."""
    yield graph
    for node in graph:
        for attribute in node.attributes.values():
            held = {"GRAPH": [attribute.value], "GRAPHS": attribute.value}.get(attribute.type.name, [])
            for inner in held:
                yield from graphs_within(inner)


def _place(node: ir.Node) -> str:
    return f"node {node.name or (node.outputs[0].name if node.outputs else '')} ({node.op_type})"
