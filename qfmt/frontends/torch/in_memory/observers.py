"""The observations of a prepared module in memory."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, Any

from ....model import Model, Observed, Tensor
from ..observations import Observation, no_observers, with_observations

if TYPE_CHECKING:
    import torch


def is_observer(module: object) -> bool:
    """Whether a module is one of PyTorch's observers or fake quantizers."""
    from torch.ao.quantization import FakeQuantizeBase, ObserverBase

    return isinstance(module, ObserverBase | FakeQuantizeBase)


def with_module(model: Model, prepared: Any) -> Model:
    """The model with `observed` from the prepared module.

    Raises SourceError if `prepared` is not a model with observers, or has none that fits.
    """
    import torch

    if not isinstance(prepared, torch.nn.Module) or not any(map(is_observer, prepared.modules())):
        raise no_observers("pass the model after calibration and before convert (which must not be in place)")
    seen = list(_activations(prepared))
    return with_observations(model, seen, lambda tensor: _of_weight(tensor, prepared, seen))


def _of_weight(tensor: Tensor, prepared: torch.nn.Module, seen: Sequence[Observation]) -> Observed | None:
    """The observation of the weight: that of the module, or one with the same scales."""
    owner, _, last = tensor.name.rpartition(".")
    observations = [each for each in seen if not each.scope]
    if last == "weight":
        observations = [*_weight_observations(prepared, owner), *observations]
    return next(filter(None, (each.of(tensor) for each in observations)), None)


# -- observations -------------------------------------------------------------------------------------


def _activations(prepared: torch.nn.Module) -> Iterator[Observation]:
    """The observations of outputs of modules or of nodes of an FX graph."""
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
    """The observation of a module's weight, from a new observer of its qconfig as in `convert`; for QAT unchanged,
    and after one more update with the final weight, because eager and FX mode differ in that."""
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
    """The range of an observer, or of the one in a fake quantizer; none if it saw no data, or keeps no range."""
    inner = getattr(observer, "activation_post_process", observer)
    low, high = getattr(inner, "min_val", None), getattr(inner, "max_val", None)
    if low is None or high is None or low.numel() == 0:
        return
    minimum, maximum = tuple(low.reshape(-1).tolist()), tuple(high.reshape(-1).tolist())
    if not all(map(isfinite, (*minimum, *maximum))):
        return
    parameters = _parameters(inner.calculate_qparams)
    limits = int(inner.quant_min), int(inner.quant_max)
    observed = Observed(type(inner).__name__, minimum, maximum, *limits, str(inner.qscheme).removeprefix("torch."))
    yield Observation(scope, partial(_range, observed, parameters))


def _range(observed: Observed, parameters: tuple[Any, ...], tensor: Tensor) -> Observed | None:
    """The range of an observer, if the tensor has its scales and zero points."""
    grid = tensor.quantization
    return observed if grid is not None and parameters == (grid.scale.numbers(), grid.each_zero_point) else None


def _parameters(calculate: Callable[[], Any]) -> tuple[tuple[float, ...], tuple[int, ...]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # observers warn about ranges without calibration data
        scale, zero_point, *_ = calculate()
    return tuple(scale.reshape(-1).tolist()), tuple(map(int, zero_point.reshape(-1).tolist()))
