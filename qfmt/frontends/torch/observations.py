"""Assign observations to the tensors that were observed.

An observer belongs to the output of a module (`activation_post_process`), or in FX to that of a node. It is assigned
to a tensor only if its range results in exactly the scale and zero point of the tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from ...errors import SourceError
from ...model import Model, Node, Observed, Tensor


class Observation(Protocol):
    """An observation. `scope` is the module whose output was observed, "" for a function."""

    @property
    def scope(self) -> str: ...

    def of(self, tensor: Tensor) -> Observed | None:
        """The observed range, if it results in the scale and zero point of the tensor."""


def with_observations(
    model: Model, seen: Sequence[Observation], of_weight: Callable[[Tensor], Observed | None]
) -> Model:
    """The model with `observed` from the observations; SourceError if there are some, and none fits."""
    found = {name: observed for node in model.nodes for name, observed in _of_node(model, node, seen)}
    for tensor in model.graph.constants():
        if tensor.quantization is not None and (observed := of_weight(tensor)):
            found[tensor.name] = observed
    if model.no_graph:
        outputs = (tensor for tensor in model.tensors.values() if not tensor.is_constant)
        pairs = ((each.of(tensor), tensor.name) for tensor in outputs for each in seen if each.scope == tensor.name)
        found.update((name, observed) for observed, name in pairs if observed)
    if seen and not found:
        hint = "pass the same model that convert was called on, as it was after calibration"
        raise SourceError("no observer of the prepared model has the scales of the model", hint=hint)
    tensors = {name: _observed(tensor, found.get(name)) for name, tensor in model.tensors.items()}
    return model.replace(graph=replace(model.graph, tensors=tensors))


def no_observers(hint: str) -> SourceError:
    return SourceError("the prepared model has no observers", hint=hint)


def _observed(tensor: Tensor, observed: Observed | None) -> Tensor:
    if observed is None or tensor.quantization is None:
        return tensor
    return replace(tensor, quantization=replace(tensor.quantization, observed=observed))


def _of_node(model: Model, node: Node, seen: Sequence[Observation]) -> Iterator[tuple[str, Observed]]:
    """The observation of each output of a node, if it is unambiguous.

    An observer of the node's own module decides. Else the tensor has to be on a grid that none of the node's
    inputs has: nodes that only move values are not observed.
    """
    inputs = [model.tensors[name].quantization for name in node.inputs if name]
    for name in node.outputs:
        tensor = model.tensors[name]
        if tensor.quantization is None:
            continue
        fitting = [(each.scope, observed) for each in seen if (observed := each.of(tensor))]
        own = [observed for scope, observed in fitting if scope and scope == node.scope]
        if not own and not any(tensor.quantization.same_grid(grid) for grid in inputs):
            own = [observed for scope, observed in fitting if scope.rpartition(".")[0] == node.scope or not scope]
        if own and all(observed == own[0] for observed in own):
            yield name, own[0]
