"""A file of torch.save as a Model: with a graph if the file has one, else its tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....budget import Budget
from ....errors import BudgetError, SourceError, damaged
from ....model import Model
from ...content import is_module, saved_as, sha256_of
from ...harmless import Subclass
from ...options import Options
from ...sources import KINDS
from ..fx import walker
from ..network import Network
from ..values import InputSpec
from .file import Saved, read
from .tensors import IN_MEMORY, holds_tensors, tensors_only
from .tree import Module, state, tree

if TYPE_CHECKING:
    from ..witness import TorchWitness

WHAT_WOULD = f"save the whole network with torch.jit.save, or {IN_MEMORY}"


def convert(path: Path, options: Options) -> Model:
    return convert_saved(read(path), options, {"sha256": sha256_of(path)})


def convert_saved(saved: Saved, options: Options, source: Mapping[str, str]) -> Model:
    """The Model of a saved object; `source` are its source keys except those that are known here."""
    with nesting():
        return _converted(saved, options, _keys(saved, source))


def witness(path: Path, file: Model, engine: str | None = None) -> TorchWitness:
    from ..witness import without_graph, witness_of

    reason = None
    with nesting():
        saved = read(path)
        source = {"sha256": sha256_of(path)}
        if (root := module_of(saved)) is not None:
            try:
                with _attributes():
                    return witness_of(network(root, _keys(saved, source)), file, engine)
            except SourceError as error:
                if isinstance(error, BudgetError):
                    raise
                reason = error
    saved = read(path)  # each conversion has its own budget
    model = convert_saved(saved, Options(file.engine), source)
    if reason is not None and not model.no_graph:
        raise reason
    return without_graph(model, file, engine)


def _keys(saved: Saved, source: Mapping[str, str]) -> dict[str, str]:
    return {**source, "format_version": saved.version, "framework": "pytorch"}


@contextmanager
def nesting() -> Iterator[None]:
    """SourceError where Python's own limit of nesting is reached."""
    try:
        yield
    except RecursionError:
        raise SourceError("it is nested too deeply", hint="the file is malicious or damaged") from None


@contextmanager
def _attributes() -> Iterator[None]:
    """Attributes of pickled modules may have any type; those of PyTorch's own modules are valid if it wrote them."""
    try:
        yield
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        what = f"an attribute of a module is not what PyTorch writes ({str(error)[:100]})"
        raise damaged(what) from None


def module_of(saved: Saved) -> Module | None:
    """The module that was saved: alone, or in a dict in which nothing else has tensors. None if there is none."""
    value, budget = saved.value, saved.budget
    if saved_as(value) == "torch_module":
        return tree(value, budget)
    if saved_as(value) != "state_dict":
        return None
    modules = {key: item for key, item in value.items() if is_module(item)}
    if holds_tensors({key: item for key, item in value.items() if key not in modules}, budget):
        return None
    if len(modules) > 1:  # a loss has none
        modules = {key: item for key, item in modules.items() if holds_tensors({key: item}, budget)}
    return tree(modules.popitem()[1], budget) if len(modules) == 1 else None


def _converted(saved: Saved, options: Options, source: Mapping[str, str]) -> Model:
    if (root := module_of(saved)) is not None:
        return _module(root, options, source)
    kind = saved_as(saved.value)
    if kind != "state_dict":
        raise SourceError(f"is {KINDS[kind]}, not a network", hint=KINDS[kind].hint)
    options.check_names([])
    return _checkpoint(saved.value, {**source, "format": "state_dict"}, saved.budget)


def _checkpoint(value: Mapping[Any, Any], source: Mapping[str, str], budget: Budget) -> Model:
    """Tensors by name, also those of multiple modules."""
    model = tensors_only(value, source, budget)
    why = "a state_dict holds tensors, but no graph"
    if not any(tensor.is_constant for tensor in model.tensors.values()):
        why = f"{why}; this one, of a TorchScript module, lacks the packed parameters, too"
    would = IN_MEMORY if _has_subclass(value) else WHAT_WOULD
    return model.replace(source={**model.source, "no_graph": f"{why}; {would}"})


def _has_subclass(value: Mapping[Any, Any]) -> bool:
    """Whether it contains tensors of torchao, which TorchScript does not support."""
    waiting, known = [value], {id(value)}
    while waiting:
        for item in waiting.pop().values():
            if isinstance(item, Subclass):
                return True
            if isinstance(item, dict) and id(item) not in known:
                known.add(id(item))
                waiting.append(item)
    return False


def _module(root: Module, options: Options, source: Mapping[str, str]) -> Model:
    """A pickled module: its graph, if its code is in the file or known; else its tensors, and the reason."""
    try:
        with _attributes():
            return network(root, source).model(options)
    except SourceError as error:
        if options.of_inputs or isinstance(error, BudgetError) or not holds_tensors(state(root), root.budget):
            raise
        why = f"what this pickled module computes could not be determined ({error})"
    keys = {**source, "format": "pickled_module", "no_graph": f"{why}; {WHAT_WOULD}"}
    return tensors_only(state(root), keys, root.budget)


def network(root: Module, source: Mapping[str, str]) -> Network:
    """The network of a module whose code is in the file, or known; for others, its `run` raises SourceError with the
    reason."""
    specs = [InputSpec(name) for name in walker.parameters(root)]
    return Network(specs, partial(walker.run, root), root.budget, {**source, "format": "pickled_module"})
