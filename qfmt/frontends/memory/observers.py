"""What the observers of a prepared model saw, put beside the tensors of the converted one.

An observer belongs to what a module puts out (`activation_post_process`), or in FX to what a node puts out.
It is taken for the one of a tensor only if it gives exactly the scale and zero point that the tensor has.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import SourceError
from ...model import Model, Node, Observed, Quantization, Tensor

if TYPE_CHECKING:
    import torch


class Observation(NamedTuple):
    """What an observer saw, and the scales and zero points it gives. `scope` is the module whose output it
    watched, "" where a function made it."""

    scope: str
    observed: Observed
    scale: tuple[float, ...]
    zero_point: tuple[int, ...]

    def fits(self, quantization: Quantization) -> bool:
        return (self.scale, self.zero_point) == (quantization.scale, quantization.zero_point)


def is_observer(module: object) -> bool:
    """Whether a module is one of PyTorch's observers or fake quantizers."""
    from torch.ao.quantization import FakeQuantizeBase, ObserverBase

    return isinstance(module, ObserverBase | FakeQuantizeBase)


def with_observations(model: Model, prepared: Any) -> Model:
    """The model with `observed` wherever the prepared model tells.

    Raises SourceError if `prepared` is not a model with observers, or has none that fits.
    """
    import torch

    if not isinstance(prepared, torch.nn.Module) or not any(map(is_observer, prepared.modules())):
        hint = "pass the model as it was after calibration, before convert (which must not be in place)"
        raise SourceError("what was given as prepared has no observers", hint=hint)
    seen = list(_activations(prepared))
    found = {name: observed for node in model.nodes for name, observed in _of_node(model, node, seen)}
    for tensor in model.graph.constants():
        if tensor.quantization is not None and (observed := _of_weight(tensor, prepared, seen)):
            found[tensor.name] = observed
    if seen and not found:
        hint = "pass the very model that convert was called on, as it was after calibration"
        raise SourceError("no observer of what was given as prepared gives the scales of the model", hint=hint)
    tensors = {name: _observed(tensor, found.get(name)) for name, tensor in model.tensors.items()}
    return model.replace(graph=replace(model.graph, tensors=tensors))


def _observed(tensor: Tensor, observed: Observed | None) -> Tensor:
    if observed is None or tensor.quantization is None:
        return tensor
    return replace(tensor, quantization=replace(tensor.quantization, observed=observed))


# -- whose is it ---------------------------------------------------------------------------------------


def _of_node(model: Model, node: Node, seen: Sequence[Observation]) -> Iterator[tuple[str, Observed]]:
    """The observation of each output of a node, if there is one beyond doubt.

    An observer of the node's own module decides. Else the tensor has to be on a grid that none of the node's
    inputs has: what only moves values was not watched.
    """
    inputs = [model.tensors[name].quantization for name in node.inputs if name]
    for name in node.outputs:
        quantization = model.tensors[name].quantization
        if quantization is None:
            continue
        fitting = [each for each in seen if each.fits(quantization)]
        own = [each for each in fitting if each.scope and each.scope == node.scope]
        if not own and not any(quantization.same_grid(grid) for grid in inputs):
            own = [each for each in fitting if each.scope.rpartition(".")[0] == node.scope or not each.scope]
        if own and all(each.observed == own[0].observed for each in own):
            yield name, own[0].observed


def _of_weight(tensor: Tensor, prepared: torch.nn.Module, seen: Sequence[Observation]) -> Observed | None:
    """What the weight's observer saw: that of the module, or one that gives the same scales."""
    assert tensor.quantization is not None
    owner, _, last = tensor.name.rpartition(".")
    observations = [each for each in seen if not each.scope]
    if last == "weight":
        observations = [*_weight_observations(prepared, owner), *observations]
    return next((each.observed for each in observations if each.fits(tensor.quantization)), None)


# -- what was seen -------------------------------------------------------------------------------------


def _activations(prepared: torch.nn.Module) -> Iterator[Observation]:
    """Of every observer that watches what a module or a node of an FX graph puts out."""
    graph = getattr(prepared, "graph", None)
    if graph is None:
        for path, module in prepared.named_modules():
            observer = getattr(module, "activation_post_process", None)
            if not is_observer(module) and is_observer(observer):
                yield from _observation(path, observer)
        return
    for node in graph.nodes:
        if node.op == "call_module" and is_observer(observer := prepared.get_submodule(node.target)):
            watched = node.args[0]
            yield from _observation(str(watched.target) if watched.op == "call_module" else "", observer)


def _weight_observations(prepared: torch.nn.Module, path: str) -> Iterator[Observation]:
    """What the weight observer of a module saw, made anew from its qconfig as `convert` does; of QAT as it is,
    and as it is after one more look at the final weight, for eager and FX mode differ in that."""
    import torch

    try:
        module: Any = prepared.get_submodule(path)
    except AttributeError:
        return
    fake = getattr(module, "weight_fake_quant", None)
    if fake is not None:
        yield from _observation(path, fake)
        module = copy.deepcopy(module)
        fake, to_float = module.weight_fake_quant, getattr(module, "to_float", None)
        module = to_float() if callable(to_float) else module
    inner = module[0] if isinstance(module, torch.nn.Sequential) else module
    qconfig = getattr(inner, "qconfig", None) or getattr(module, "qconfig", None)
    observer = fake if fake is not None else qconfig.weight() if qconfig is not None else None
    weight = getattr(inner, "weight", None)
    if observer is not None and isinstance(weight, torch.Tensor):
        with torch.no_grad():
            observer(weight.detach())
        yield from _observation(path, observer)


def _observation(scope: str, observer: Any) -> Iterator[Observation]:
    """What an observer, or the one in a fake quantizer, saw; nothing if it saw nothing, or keeps no range."""
    inner = getattr(observer, "activation_post_process", observer)
    low, high = getattr(inner, "min_val", None), getattr(inner, "max_val", None)
    if low is None or high is None or low.numel() == 0:
        return
    minimum, maximum = tuple(low.reshape(-1).tolist()), tuple(high.reshape(-1).tolist())
    if not all(map(isfinite, (*minimum, *maximum))):
        return
    scale, zero_point = _parameters(inner.calculate_qparams)
    limits = int(inner.quant_min), int(inner.quant_max)
    observed = Observed(type(inner).__name__, minimum, maximum, *limits, str(inner.qscheme).removeprefix("torch."))
    yield Observation(scope, observed, scale, zero_point)


def _parameters(calculate: Callable[[], Any]) -> tuple[tuple[float, ...], tuple[int, ...]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # observers complain of ranges that a calibration did not fill
        scale, zero_point, *_ = calculate()
    return tuple(scale.reshape(-1).tolist()), tuple(map(int, zero_point.reshape(-1).tolist()))
