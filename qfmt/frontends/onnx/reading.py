"""Reads an ONNX file or a ModelProto as a validated onnx-ir graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...budget import Budget
from ...errors import MissingPackageError, SourceError
from .external import Files, is_external, open_proto, tensors_within
from .functions import graphs_within, inline, nodes_within, root_line
from .tensors import FILE, quiet

if TYPE_CHECKING:
    import onnx_ir as ir

NEWEST_OPSET = 28
"""The newest opset of the default domain that is supported."""

OPSETS_SINCE = 3
"""The first IR version in which a model must state an opset (onnx/docs/IR.md)."""


LONGEST_TERM = 1000
"""The most characters in the name of an operator, a domain, an attribute or a dimension, which many nodes of a file
may share: each node of a function that is called has its own copy."""


def read(source: str | PathLike[str] | Any) -> tuple[ir.Model, Budget]:
    """The model of a file or of an onnx.ModelProto, with functions inlined and nodes in topological order; and the
    budget of its conversion, which is unlimited for a model in memory.

    External data is memory-mapped, and only from the folder of the file or below. Raises SourceError for an invalid
    model: damaged, cyclic, with undefined values or missing weights, or newer than supported.
    """
    try:
        import onnx_ir  # noqa: F401
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
        proto, model, budget = source, _from_proto(source), Budget(None)
    if not model.opset_imports and model.ir_version >= OPSETS_SINCE:
        raise SourceError("is an ONNX model that states no opset", hint="it is truncated or damaged; download it again")
    if model.functions:
        inline(model, proto.functions, budget)
    states_none = "" not in model.opset_imports and model.ir_version >= OPSETS_SINCE
    if states_none and any(not node.domain for node in nodes_within(model.graph)):
        hint = "add the opset of the domain '' that its exporter used"
        raise SourceError("has operators of ONNX, but states no opset of them", hint=hint)
    if not model.graph.outputs:
        raise SourceError("is an ONNX model without outputs", hint="declare its results as outputs of the graph")
    _check_links(model.graph)
    return model, budget


def inlined(proto: Any) -> Any:
    """A ModelProto that `read` accepts, with functions inlined: their values have the names that `read` gives them."""
    if not proto.functions:
        return proto
    import onnx_ir as ir

    model = _from_checked(proto)
    inline(model, proto.functions, Budget(None))
    return ir.to_proto(model)


def _opsets(imports: Iterable[Any]) -> dict[str, int]:
    """Domain → opset; SourceError if that is ambiguous, or not supported."""
    found: dict[str, int] = {}
    for each in imports:
        domain, opset = "" if each.domain == "ai.onnx" else each.domain, int(each.version)
        if not 0 <= opset < 1 << 31:  # onnx counts in 32 bits
            what = f"states opset {opset} of the domain {domain or 'ai.onnx'}, which cannot be"
            raise SourceError(what, hint="run onnx.checker for details")
        if found.setdefault(domain, opset) != opset:
            what = f"states opsets {found[domain]} and {opset} of one domain, {domain or 'ai.onnx'}"
            raise SourceError(what, hint="remove one of them")
    opset = found.get("", 1)
    if not 1 <= opset <= NEWEST_OPSET:
        what = f"is written for opset {opset}; 1 to {NEWEST_OPSET} are supported"
        raise SourceError(what, hint="convert it with onnx.version_converter")
    return found


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
    texts = (text for each in (proto.graph, *proto.functions) for text in _texts(each))
    if not all(isinstance(text, str) for text in (proto.producer_name, proto.producer_version, *texts)):
        raise SourceError("contains names that are not text", hint="the file is damaged; download it again")
    opsets = [_opsets(each.opset_import) for each in (proto, *proto.functions)]
    _check_names(proto.graph, is_function=False)
    for function in proto.functions:
        _check_names(function, is_function=True)
    names = ("::".join((each.domain, each.name, each.overload)).removesuffix("::") for each in proto.functions)
    _check_once("function", names)
    quiet()
    try:
        model = ir.from_proto(proto)
    except Exception as error:  # the library raises its own exceptions for inconsistent models
        what = f"is not a valid ONNX model: {root_line(error)}"
        raise SourceError(what, hint="run onnx.checker for details") from None
    stated = [model.opset_imports, *(function.opset_imports for function in model.functions.values())]
    for imports, checked in zip(stated, opsets, strict=True):
        imports.clear()
        imports.update(checked)
    return model


def _texts(scope: Any) -> Iterator[str | bytes]:
    """Every name in a graph or function. Protobuf returns bytes for one that is not UTF-8."""
    yield scope.name
    yield from (*_names(scope.input), *_names(scope.output))
    if scope.DESCRIPTOR.name == "FunctionProto":
        yield from (scope.domain, scope.overload, *scope.attribute, *_names(scope.attribute_proto))
    else:
        yield from _names((*scope.value_info, *scope.initializer))
    yield from _terms(scope)
    for node in scope.node:
        yield from (node.name, *node.input, *node.output)
        for attribute in node.attribute:
            for inner in _graphs(attribute):
                yield from _texts(inner)


def _terms(scope: Any) -> Iterator[str]:
    """What a graph or function names besides values and nodes: dimensions, operators, and their attributes."""
    if scope.DESCRIPTOR.name == "GraphProto":
        for value in (*scope.input, *scope.output, *scope.value_info):
            yield from (size.dim_param for size in value.type.tensor_type.shape.dim)
    for node in scope.node:
        yield from (node.op_type, node.domain)
        for attribute in node.attribute:
            yield from (attribute.name, attribute.ref_attr_name)


def _names(values: Iterable[Any]) -> list[Any]:
    """The names of values, tensors or attributes; those of a function are only names."""
    return [each if isinstance(each, str | bytes) else each.name for each in values]


def _graphs(attribute: Any) -> list[Any]:
    return [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def _check_names(scope: Any, is_function: bool) -> None:
    """SourceError if a graph or function is ambiguous or malformed: two values, or two attributes of a node, with one
    name; a sparse attribute; or, outside a function, a reference to one of its attributes."""
    if (longest := max(map(len, _terms(scope)), default=0)) > LONGEST_TERM:
        what = f"has an operator, attribute or dimension with a name of {longest:,} characters"
        raise SourceError(what, hint=f"rename it: {LONGEST_TERM:,} are allowed")
    inputs, made = _names(scope.input), [name for node in scope.node for name in node.output if name]
    _check_once("value", [*inputs, *made])
    if scope.DESCRIPTOR.name == "GraphProto":  # an initializer is the default of an input
        stored = _names(scope.initializer)
        _check_once("initializer", [*{*made}.intersection(stored), *stored])
    for node in scope.node:
        where = f"node {node.name or node.op_type!r}"
        if len({attribute.name for attribute in node.attribute}) < len(node.attribute):
            raise SourceError("has two attributes of one name", where=where)
        for attribute in node.attribute:
            if attribute.HasField("sparse_tensor") or len(attribute.sparse_tensors):
                raise SourceError("has a sparse tensor", where=where, hint="make it dense")
            if attribute.ref_attr_name and not is_function:
                what = (
                    f"its attribute {attribute.name} refers to {attribute.ref_attr_name} of a function, but is in none"
                )
                raise SourceError(what, where=where, hint="run onnx.checker for details")
            for inner in _graphs(attribute):
                _check_names(inner, is_function)


def _check_once(kind: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name and name in seen:
            raise SourceError("is defined twice", where=f"{kind} {name!r}", hint="give each its own name")
        seen.add(name)


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


def _place(node: ir.Node) -> str:
    return f"node {node.name or (node.outputs[0].name if node.outputs else '')} ({node.op_type})"
