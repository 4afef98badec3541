"""The observations of a prepared model, from its state_dict, in a file or in memory.

A state_dict has the minimum and maximum of each observer, but neither its class nor the integers it calibrated for.
Those are found from the scale and zero point of the tensor; a state_dict does not name the tensor of an FX observer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from math import prod
from typing import Any

import numpy as np

from ....budget import Budget
from ....errors import MissingFileError, SourceError
from ....file.copies import downloaded
from ....model import Model, Observed, Tensor
from ....urls import Named, place
from ...sources import SAVED, sniff
from ...stored import StoredTensor
from ..observations import BINS, Observation, Seen, no_observers, with_observations
from .file import Saved, read
from .source import module_of, nesting
from .tensors import stored_tensors
from .tree import state

OBSERVER = "activation_post_process"
WATCHED = f".{OBSERVER}"

PAIRS = 1 << 20
"""The most comparisons of an observer with a tensor; a network of 500 of each needs a quarter of them."""

HINT = "pass the model as it was after calibration, or its state_dict: `torch.save(prepared.state_dict(), FILE)`"

Tensors = Mapping[str, StoredTensor]


def with_file(model: Model, named: Named) -> Model:
    """The model with `observed` from a torch.save file of the prepared model.

    Raises SourceError if the file contains no observers, or none that fits.
    """
    try:
        with downloaded(place(named)) as path:
            if (kind := sniff(path)).source is not SAVED:
                raise SourceError(f"is {kind}, not a prepared model", hint=HINT)
            return with_saved(model, read(path))
    except (SourceError, MissingFileError) as error:
        raise error.at(str(place(named))) from None


def with_saved(model: Model, saved: Saved) -> Model:
    """The same for the contents of such a file."""
    with nesting():
        root = module_of(saved)
        value = saved.value if root is None else state(root)
        stored = stored_tensors(value, saved.budget) if isinstance(value, Mapping) else {}
    seen = list(_activations(stored, saved.budget))
    if not seen:
        raise no_observers(HINT)
    if len(seen) * len(model.tensors) > PAIRS:
        what = f"{len(seen)} observers are too many for {len(model.tensors)} tensors"
        raise SourceError(what, hint="give the prepared model from which this one was converted")
    return with_observations(model, seen, lambda tensor: _of_weight(tensor, stored))


def _activations(stored: Tensors, budget: Budget) -> Iterator[Observation]:
    """The observations of outputs of modules and FX nodes, by observers alone or in fake quantizers."""
    for name in stored:
        if not name.endswith(".min_val") or ".weight_fake_quant." in name:
            continue
        observer = name.removesuffix(".min_val")
        low, high = (_numbers(stored, f"{observer}.{end}", budget) for end in ("min_val", "max_val"))
        if low is None or high is None or low.shape != high.shape or not (low <= high).all():
            continue
        histogram = stored.get(f"{observer}.histogram")
        bins = histogram.shape[0] if histogram is not None and len(histogram.shape) == 1 and low.size == 1 else 0
        if bins > BINS:
            continue
        owner = observer.removesuffix(WATCHED) if observer.count(OBSERVER) > 1 else observer
        scope = owner.removesuffix(WATCHED) if owner.endswith(WATCHED) else ""
        yield Observation(scope, partial(_range, Seen(low, high, bins)))


def _range(seen: Seen, tensor: Tensor) -> Observed | None:
    return None if tensor.quantization is None else seen.observed(tensor.quantization, tensor.dtype)


def _of_weight(tensor: Tensor, stored: Tensors) -> Observed | None:
    """The observation of a weight by the observer that `convert` makes: the float weight."""
    grid = tensor.quantization
    owner, _, last = tensor.name.rpartition(".")
    weight = stored.get(tensor.name) or stored.get(f"{owner}.0.weight")  # of a layer that is fused with the next
    if grid is None or last != "weight" or weight is None or weight.dtype != "float32" or weight.shape != tensor.shape:
        return None
    values = weight.array()
    if not values.size or not np.isfinite(values).all() or not grid.is_affine:
        return None
    rows = (
        values.reshape(1, -1) if grid.axis is None else np.moveaxis(values, grid.axis, 0).reshape(len(grid.scale), -1)
    )
    return Seen(rows.min(axis=1), rows.max(axis=1)).observed(grid, tensor.dtype)


def _numbers(stored: Tensors, name: str, budget: Budget) -> Any:
    """Finite numbers as one row; None if there are none."""
    tensor = stored.get(name)
    if tensor is None or tensor.dtype != "float32" or len(tensor.shape) > 1:
        return None
    budget.hold(prod(tensor.shape))
    values = tensor.array().reshape(-1)
    return values if values.size and np.isfinite(values).all() else None
