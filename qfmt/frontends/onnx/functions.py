"""Functions of an ONNX model, which are inlined, and graphs within its nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...budget import NODE, Budget
from ...errors import SourceError, first_line
from .messages import memory_of

if TYPE_CHECKING:
    import onnx_ir as ir

MICROSOFT = "com.microsoft"
OWN = ("ai.onnx", MICROSOFT)
"""Domains in which models define no functions. ONNX Runtime prefers its own operators."""

DEEPEST = 64
"""Nesting limit of function calls, higher than any exporter writes: names of inlined nodes grow with each level."""

PAIRS = 20
"""Pairs of functions whose names InlinePass compares in the time of an operation."""


def inline(model: ir.Model, protos: Iterable[Any], budget: Budget) -> None:
    """Replace calls of functions by their nodes, in place; SourceError if that is ambiguous or impossible. `protos`
    are the functions as FunctionProtos, in the same order."""
    from onnx_ir.passes.common import InlinePass

    _check_names(model)
    for function in model.functions.keys() - _charge(model, protos, budget):
        del model.functions[function]  # InlinePass would also inline the calls in it, which are not counted
    for node in nodes_within(model.graph):
        node.metadata_props.clear()  # of a call, InlinePass copies them to every node
    for graph in (model.graph, *(each.graph for each in model.functions.values())):
        for node in nodes_within(graph):
            for value in node.outputs if node.op_identifier() in model.functions else ():
                value.name = value.name or None  # what a call leaves out, a node of the function may have to compute
    for each in model.functions.values():
        _compute_outputs(each)
    try:
        InlinePass(_numbered())(model)
    except Exception as error:  # any error of the library
        raise SourceError(f"its functions cannot be inlined: {root_line(error)}") from None


def _check_names(model: ir.Model) -> None:
    """SourceError for a function with the name of an operator: some runtimes take the one, some the other."""
    import onnx

    for domain, name, _ in model.functions:
        if domain in OWN or onnx.defs.has(name, model.opset_imports.get(domain, 1), domain):
            own = "an operator of ONNX Runtime" if domain == MICROSOFT else "a standard operator"
            what = f"defines a function {name}, which is {'perhaps' if domain == MICROSOFT else 'also'} {own}"
            raise SourceError(what, hint="rename the function, or inline it with onnx.inliner")


def _charge(model: ir.Model, protos: Iterable[Any], budget: Budget) -> Sequence[ir.OperatorIdentifier]:
    """Charge the budget for what inlining adds; return the functions that are called.

    If each function calls the next one twice, the number of nodes doubles with each function.
    """
    called = _called(model)
    budget.spend(len(called) ** 2 // PAIRS)
    sizes = dict(zip(model.functions, map(memory_of, protos), strict=True))
    handed: Counter[ir.OperatorIdentifier] = Counter()
    """The most elements that lists have in the attributes of a call: each reference to one is a copy."""
    for node in nodes_within(model.graph):
        handed[node.op_identifier()] = max(handed[node.op_identifier()], _elements(node.attributes))
    copies = Counter(node.op_identifier() for node in nodes_within(model.graph))
    for name in called:
        function, count = model.functions[name], copies[name]
        budget.spend(count * (len(function.inputs) + len(function.attributes)))
        budget.allocate((count - 1) * sizes[name])  # one copy takes the place of the function
        elements = handed[name] + _elements(function.attributes)
        for node in nodes_within(function.graph):
            inner, references = node.op_identifier(), sum(each.is_ref() for each in node.attributes.values())
            copies[inner] += count
            handed[inner] = max(handed[inner], references * elements + _elements(node.attributes))
            budget.allocate(count * references * elements * 16)
            budget.spend((count - 1) * (1 + (len(node.inputs) + len(node.outputs)) // 8) * NODE)
            names = (node.name or "", *(value.name or "" for value in node.outputs))
            budget.allocate(count * sum(map(len, names)))
    return called


def _elements(attributes: Mapping[str, ir.Attr]) -> int:
    """How many elements the lists have."""
    return sum(len(each.value) for each in attributes.values() if isinstance(each.value, tuple))


def _called(model: ir.Model) -> Sequence[ir.OperatorIdentifier]:
    """The functions that are called, each before those that it calls; SourceError if calls have no end."""
    found: dict[ir.OperatorIdentifier, None] = {}

    def visit(graph: ir.Graph, callers: tuple[ir.OperatorIdentifier, ...]) -> None:
        for name in {node.op_identifier(): None for node in nodes_within(graph)}:
            if name not in model.functions:
                continue
            if name in callers or len(callers) == DEEPEST:
                how = "recursively" if name in callers else f"more than {DEEPEST} levels deep"
                raise SourceError(f"its functions call each other {how}", hint="inline them with onnx.inliner")
            if name not in found:
                visit(model.functions[name].graph, (*callers, name))
                found[name] = None

    visit(model.graph, ())
    return [*reversed(found)]


def _compute_outputs(function: ir.Function) -> None:
    """Give each output a separate node: InlinePass would rename an input that is also an output."""
    import onnx_ir as ir

    seen: set[int] = set()
    for place, value in enumerate(function.outputs):
        if value.producer() is None or id(value) in seen:
            node = ir.node("Identity", [value])
            function.append(node)
            function.outputs[place] = node.outputs[0]
        seen.add(id(value))


def _numbered() -> Callable[[ir.Function], bool]:
    """A criterion of InlinePass that is always met, and numbers the names in the function, by call.

    InlinePass tries 2, 3, … until a name is free: a thousand calls of a function take half a million attempts.
    """
    counts: Counter[str] = Counter()
    names: dict[int, str] = {}
    """The names in the file, by the id of their node or value."""

    def number(function: ir.Function) -> bool:
        for each in _named(function):
            name = names.setdefault(id(each), each.name or type(each).__name__.lower())
            counts[name] += 1
            each.name = name if counts[name] == 1 else f"{name}_{counts[name]}"
        return True

    return number


def _named(function: ir.Function) -> Iterator[ir.Node | ir.Value]:
    """Every node, and every value that a node computes."""
    for node in nodes_within(function.graph):
        yield node
        yield from node.outputs


def graphs_within(graph: ir.Graph) -> Iterator[ir.Graph]:
    """A graph and its subgraphs, at any depth."""
    yield graph
    for node in graph:
        for attribute in node.attributes.values():
            held = {"GRAPH": [attribute.value], "GRAPHS": attribute.value}.get(attribute.type.name, [])
            for inner in [] if attribute.is_ref() else held:
                yield from graphs_within(inner)


def nodes_within(graph: ir.Graph) -> Iterator[ir.Node]:
    """The nodes of a graph and of its subgraphs."""
    return (node for each in graphs_within(graph) for node in each)


def root_line(error: BaseException) -> str:
    """The first line of the root cause of an exception."""
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error)
