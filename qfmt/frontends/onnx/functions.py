"""Functions of an ONNX model, which are inlined, and graphs within its nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from typing import TYPE_CHECKING

from ...budget import NODE, NODE_BYTES, Budget
from ...errors import SourceError, first_line

if TYPE_CHECKING:
    import onnx_ir as ir

DEEPEST = 64
"""Nesting limit of function calls, higher than any exporter writes: names of inlined nodes grow with each level."""


def inline(model: ir.Model, budget: Budget) -> None:
    """Replace calls of functions by their nodes, in place; SourceError if that is ambiguous or impossible."""
    from onnx_ir.passes.common import InlinePass

    _check_names(model)
    for function in model.functions.keys() - _count_calls(model, budget):
        del model.functions[function]  # InlinePass would also inline the calls in it, which are not counted
    for each in model.functions.values():
        _compute_outputs(each)
    try:
        InlinePass(_numbered())(model)
    except Exception as error:  # any error of the library
        raise SourceError(f"its functions cannot be inlined: {root_line(error)}") from None


def _check_names(model: ir.Model) -> None:
    """SourceError for a function with the name of a standard operator: some runtimes take the one, some the other."""
    import onnx

    for domain, name, _ in model.functions:
        if domain == "ai.onnx" or (not domain and onnx.defs.has(name, model.opset_imports.get("", 1))):
            what = f"defines a function {name}, which is also a standard operator"
            raise SourceError(what, hint="rename the function, or inline it with onnx.inliner")


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
    they call."""
    graphs = {function: list(graphs_within(model.functions[function].graph)) for function in functions}
    copies = Counter(node.op_identifier() for each in graphs_within(model.graph) for node in each)
    for function in functions:
        count, declared = copies[function], model.functions[function]
        budget.spend(count * (len(declared.inputs) + len(declared.attributes)))
        for node in (node for each in graphs[function] for node in each):
            copies[node.op_identifier()] += count
            names = (node.name or "", *(value.name or "" for value in node.outputs))
            budget.allocate(count * sum(map(len, names)))


def _compute_outputs(function: ir.Function) -> None:
    """Have a node of its own compute each output: InlinePass would rename an input that is also an output."""
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
    for graph in graphs_within(function.graph):
        for node in graph:
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


def root_line(error: BaseException) -> str:
    """The first line of the root cause of an exception."""
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error)
