"""A file of torch.save as a Model: with a graph where the file tells one, else its tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ....budget import Budget
from ....errors import BudgetError, SourceError
from ....model import Model
from ...pickles import Inert, Subclass
from ...sniff import KINDS, saved_kind
from ..calls import Recorder
from ..fx import walker as code
from ..inputs import Given, Lifted, lift
from ..lifter import Lifter
from ..values import InputSpec
from .archive import archive, holds_tensors, producer
from .file import Saved
from .tree import Module, state, tree

IN_MEMORY = "convert the module in memory: qfmt.convert(model, example_inputs=(x,))"

WHAT_WOULD = f"save the whole network with torch.jit.save, or {IN_MEMORY}"


def convert_saved(saved: Saved, given: Given, source: Mapping[str, str]) -> Model:
    """The Model of what torch.save saved; `source` are its source keys but those that are known here."""
    try:
        return _converted(saved, given, source)
    except RecursionError:
        raise SourceError("it is nested too deeply", hint="the file is hostile or damaged") from None


def network(saved: Saved) -> Module | None:
    """The module that was saved: by itself, or in a dict without tensors beside it. None if there is none."""
    value, budget = saved.value, saved.budget
    if saved_kind(value) == "torch_module":
        return tree(value, budget)
    if saved_kind(value) != "state_dict":
        return None
    modules, beside = _parted(value)
    if len(modules) != 1 or holds_tensors(beside, budget):
        return None
    return tree(modules.popitem()[1], budget)


def _parted(checkpoint: Mapping[Any, Any]) -> tuple[dict[Any, Inert], dict[Any, Any]]:
    """What of a dict are modules, and the rest."""
    modules = {key: item for key, item in checkpoint.items() if saved_kind(item) == "torch_module"}
    return modules, {key: item for key, item in checkpoint.items() if key not in modules}


def _converted(saved: Saved, given: Given, source: Mapping[str, str]) -> Model:
    known = dict(source) | {"format_version": saved.version, "framework": "pytorch"}
    if (root := network(saved)) is not None:
        return _module(root, given, known | {"format": "pickled_module"})
    kind = saved_kind(saved.value)
    if kind != "state_dict":
        raise SourceError(f"is {KINDS[kind]}, not a network", hint=KINDS[kind].hint)
    given.check_names([])
    return _checkpoint(saved.value, known | {"format": "state_dict"}, saved.budget)


def _checkpoint(value: Mapping[Any, Any], source: Mapping[str, str], budget: Budget) -> Model:
    """Tensors by name, also those of multiple modules."""
    modules, beside = _parted(value)
    model = archive(beside | {key: state(tree(item, budget)) for key, item in modules.items()}, source, budget)
    why = "a state_dict holds tensors, but no graph"
    if not any(tensor.is_constant for tensor in model.tensors.values()):
        why = f"{why}; this one, of a TorchScript module, lacks the packed parameters, too"
    would = IN_MEMORY if _has_subclass(value) else WHAT_WOULD
    return model.replace(source={**model.source, "no_graph": f"{why}; {would}"})


def _has_subclass(value: Mapping[str, Any]) -> bool:
    """Whether there are tensors of torchao in it, of which TorchScript knows nothing."""
    several = list(value.values())
    return any(isinstance(item, Subclass) or (isinstance(item, dict) and _has_subclass(item)) for item in several)


def _module(root: Module, given: Given, source: Mapping[str, str]) -> Model:
    """A pickled module: its graph, if its code is in the file or known; else its tensors, and why not."""
    try:
        return _graph(root, given, source)
    except SourceError as error:
        if given.shapes or given.quantization or isinstance(error, BudgetError):
            raise
        why = f"what this pickled module computes could not be determined ({error})"
    return archive(state(root), dict(source) | {"no_graph": f"{why}; {WHAT_WOULD}"}, root.budget)


def _graph(root: Module, given: Given, source: Mapping[str, str]) -> Model:
    try:
        return _lifted(root, given, source)
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        # attributes of pickled modules are of any type; those of PyTorch's own modules are right if it wrote them
        what = f"an attribute of a module is not what PyTorch writes ({str(error)[:100]})"
        raise SourceError(what, hint="the file is damaged") from None


def _lifted(root: Module, given: Given, source: Mapping[str, str]) -> Model:
    lifted = lift_module(root, given)
    return lifted.lifter.finish(lifted.outputs, source={**source, **lifted.notes}, producer=producer())


def lift_module(root: Module, given: Given, recorder: Callable[[Lifter], Recorder] = lambda lifter: lifter) -> Lifted:
    """Follow the code of a module whose graph can be known; SourceError, with the reason, for others."""
    specs = given.specs([InputSpec(name) for name in code.parameters(root)])
    return lift(lambda to, values: code.run(root, to, values), given.engine, specs, recorder, root.budget)
