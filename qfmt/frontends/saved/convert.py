"""A file of torch.save as a Model: with a graph where the file tells one, else its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import SourceError
from ...model import Model
from ..pickles import Inert
from ..sniff import KINDS, saved_kind
from ..torch import InputSpec
from ..torch.attempts import Given, lift
from . import code
from .archive import archive, holds_tensors, producer
from .file import Saved
from .tree import Module, state, tree

WHAT_WOULD = (
    "save the whole network with torch.jit.save, or convert the module in memory: "
    "qfmt.convert(model, example_inputs=(x,))"
)


def convert_saved(saved: Saved, given: Given, source: Mapping[str, str]) -> Model:
    """The Model of what torch.save saved; `source` are its source keys but those that are known here."""
    try:
        return _converted(saved, given, source)
    except RecursionError:
        raise SourceError("things are nested too deeply in it", hint="the file is hostile or damaged") from None


def _converted(saved: Saved, given: Given, source: Mapping[str, str]) -> Model:
    kind = saved_kind(saved.value)
    known = dict(source) | {"format_version": saved.version, "framework": "pytorch"}
    if kind == "state_dict":
        return _checkpoint(saved.value, given, known)
    if kind != "torch_module" or not isinstance(saved.value, Inert):
        raise SourceError(f"is {KINDS[kind]}, not a network", hint=KINDS[kind].hint)
    return _module(tree(saved.value), given, known | {"format": "pickled_module"})


def _checkpoint(value: Mapping[Any, Any], given: Given, source: Mapping[str, str]) -> Model:
    """A dict of tensors, and perhaps of whole modules: one that has no tensors beside it is the network."""
    modules = {key: tree(item) for key, item in value.items() if saved_kind(item) == "torch_module"}
    beside = {key: item for key, item in value.items() if key not in modules}
    if len(modules) == 1 and not holds_tensors(beside):
        return _module(next(iter(modules.values())), given, {**source, "format": "pickled_module"})
    given.check_names([])
    why = "a state_dict holds tensors and no graph"
    model = archive(beside | {key: state(root) for key, root in modules.items()}, source)
    if not any(tensor.is_constant for tensor in model.tensors.values()):
        why = f"{why}, and this one no weights: that of a TorchScript module lacks its packed parameters"
    return model.replace(source={**source, "format": "state_dict", "no_graph": f"{why}; {WHAT_WOULD}"})


def _module(root: Module, given: Given, source: Mapping[str, str]) -> Model:
    """A pickled module: its graph, if its code is in the file or known; else its tensors, and why not."""
    try:
        return _graph(root, given, source)
    except SourceError as error:
        if given.shapes or given.quantization:
            raise
        found = "".join(letter if letter.isprintable() else "?" for letter in str(error))
        why = f"what this pickled module computes could not be found ({found})"
    return archive(state(root), dict(source) | {"no_graph": f"{why}; {WHAT_WOULD}"})


def _graph(root: Module, given: Given, source: Mapping[str, str]) -> Model:
    try:
        return _lifted(root, given, source)
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        # attributes of pickled modules are of any type; those of PyTorch's own modules are right if it wrote them
        what = f"an attribute of a module is not what PyTorch writes ({str(error)[:100]})"
        raise SourceError(what, hint="the file is damaged") from None


def _lifted(root: Module, given: Given, source: Mapping[str, str]) -> Model:
    specs = given.specs([InputSpec(name) for name in code.parameters(root)])
    lifted = lift(lambda to, values: code.run(root, to, values), given.engine, specs)
    return lifted.lifter.finish(lifted.outputs, source={**source, **lifted.notes}, producer=producer())
