"""A PyTorch module in memory as a Model: traced, saved into memory, and read like any archive.

Files and modules share one path: the same operators are supported, with the same names.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import PathLike
from typing import TYPE_CHECKING, Any

from ....budget import Budget
from ....engines import TORCH_ENGINES
from ....errors import SourceError, UnsupportedOperatorsError
from ....model import Model
from ....threads import TORCH
from ....urls import Url
from ...options import Options
from ...zips import PytorchZip
from ..saved.file import read_zip
from ..saved.observers import with_file, with_saved
from ..saved.source import convert_saved
from ..torchscript.archive import Archive
from ..torchscript.arguments import Arguments
from ..torchscript.source import network
from .exporting import convert_in_memory, export_and_convert, is_exported, saved
from .plain_weights import opened

if TYPE_CHECKING:
    import torch

QUIET = (
    ".*`torch.jit.[a-z_.]*` is deprecated.*",
    ".*`torch.jit.[a-z_.]*` is not supported in Python 3.1.*",
    ".*torch.quint8, torch.qint8, and torch.qint32 are deprecated.*",
    ".*torch.ao.quantization is deprecated.*",
    "TypedStorage is deprecated.*",
)
"""Deprecation warnings of torch when a quantized module is traced and saved."""

CONVERT = "call torch.ao.quantization.convert(model), or convert_fx(model), and pass what it returns"

QUANTIZE = "quantize it first: torch.ao.quantization.prepare, calibration, torch.ao.quantization.convert"


def convert_object(source: Any, options: Options, example_inputs: Any, prepared: Any) -> Model:
    """The Model of a module, a program, a ScriptModule or a state_dict; see `qfmt.convert`."""
    with TORCH.lock:
        if is_exported(source):
            return convert_in_memory(source, options, example_inputs)
        return _convert(source, options._replace(engine=options.engine or TORCH_ENGINES[0]), example_inputs, prepared)


def _convert(source: Any, options: Options, example_inputs: Any, prepared: Any) -> Model:
    import torch

    described = {"framework": "pytorch", "framework_version": str(torch.__version__)}
    with _quiet():
        if isinstance(source, dict) and example_inputs is prepared is None:
            return convert_saved(read_zip(PytorchZip(saved(source, torch.save), Budget(None))), options, described)
        if not isinstance(source, torch.nn.Module):
            hint = "pass an nn.Module with example_inputs, a ScriptModule, or a state_dict"
            raise SourceError(f"cannot convert a {type(source).__name__}", hint=hint)
        source = _unwrapped(source)
        _refuse_observers(source)
        with opened(source) as has_opened:
            both = has_opened and example_inputs is not None
            model = (_of_either if both else _of_script)(source, options, example_inputs)
        if isinstance(prepared, dict):
            model = with_saved(model, read_zip(PytorchZip(saved(prepared, torch.save), Budget(None))))
        elif isinstance(prepared, str | PathLike | Url):
            model = with_file(model, prepared)
        elif prepared is not None:
            from .observers import with_module

            model = with_module(model, prepared)
    return model.replace(source={**model.source, **described, "format": "module"})


def _of_either(source: torch.nn.Module, options: Options, example_inputs: Any) -> Model:
    """Use TorchScript, which leaves sizes open; torch.export if TorchScript fails.

    Transformers, for which torchao is made, usually need the second.
    """
    try:
        return _of_script(source, options, example_inputs)
    except SourceError as error:
        try:
            return export_and_convert(source, options, example_inputs)
        except UnsupportedOperatorsError:
            raise
        except SourceError:
            raise error from None


def _of_script(source: Any, options: Options, example_inputs: Any) -> Model:
    """The Model of a module, through TorchScript."""
    import torch

    traced = not isinstance(source, torch.jit.ScriptModule)
    script = _traced(source, example_inputs) if traced else source
    _refuse_floats(script)
    try:
        return _converted(script, options, as_examples=traced)
    except SourceError as error:
        raise _in_own_words(error, source) from None


def _converted(script: torch.jit.ScriptModule, options: Options, as_examples: bool) -> Model:
    """`as_examples`: quantization of inputs that is not stated is that of the inputs of the trace."""
    import torch

    archive = Archive(saved(script, torch.jit.save), Budget(None))
    quantization = (Arguments(archive).example_quantization() if as_examples else {}) | dict(options.quantization)
    found = network(archive, {}, options.eval_mode)._replace(source={})
    return found.model(options._replace(quantization=quantization))


@contextmanager
def _quiet() -> Iterator[None]:
    from torch.jit._trace import TracerWarning

    with warnings.catch_warnings():
        for text in QUIET:
            warnings.filterwarnings("ignore", text)
        # for scales that PyTorch's modules keep as tensors; branches of the user's code still cause warnings
        warnings.filterwarnings("ignore", category=TracerWarning, module=r"torch\.(?!jit)")
        yield


def _unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """The module inside torch's wrappers: torch.compile, data parallelism."""
    import torch

    while True:
        match module:
            case torch.nn.DataParallel() | torch.nn.parallel.DistributedDataParallel():
                module = module.module
            case torch.nn.Module(_orig_mod=torch.nn.Module() as inner):
                module = inner
            case _:
                return module


# -- tracing -------------------------------------------------------------------------------------------


def _traced(module: torch.nn.Module, example_inputs: Any) -> torch.jit.ScriptModule:
    """The module as TorchScript, as after `.eval()`; its modes are not changed."""
    import torch

    if example_inputs is None:
        raise SourceError(
            f"a {type(module).__name__} is converted by tracing it, which requires inputs",
            hint="pass example_inputs=(x,) with tensors that the model accepts",
        )
    _refuse_names(module)
    trace: Any = torch.jit.trace
    examples = _tensors(example_inputs)
    by_name = examples if isinstance(examples, dict) else {}
    inputs = examples if isinstance(examples, tuple) else (examples,)
    given = {"example_kwarg_inputs": by_name} if by_name else {"example_inputs": inputs}
    with _evaluating(module), _layer_by_layer(), torch.no_grad():
        try:
            traced = trace(module, **given, check_trace=False, strict=False)
        except Exception as error:
            call = (lambda: module(**by_name)) if by_name else (lambda: module(*inputs))
            raise _failed(module, call, error) from None
    if not isinstance(traced, torch.jit.ScriptModule):
        raise SourceError(f"a {type(module).__name__} cannot be traced", hint="pass an nn.Module")
    return traced


def _tensors(examples: Any) -> Any:
    """Examples with tensors for arrays; a list of inputs as a tuple. SourceError for other kinds."""
    import numpy as np
    import torch

    def tensors(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return torch.from_numpy(value)
        if type(value) in (list, tuple):
            return type(value)(map(tensors, value))
        return {key: tensors(item) for key, item in value.items()} if type(value) is dict else value

    if not isinstance(examples, torch.Tensor | np.ndarray | list | tuple | dict):
        hint = "pass a tuple of tensors, as in example_inputs=(x,), or a dict by the names of arguments"
        raise SourceError(f"example_inputs cannot be of type {type(examples).__name__}", hint=hint)
    return tuple(map(tensors, examples)) if isinstance(examples, list | tuple) else tensors(examples)


@contextmanager
def _evaluating(module: torch.nn.Module) -> Iterator[None]:
    modes = [(each, each.training) for each in module.modules()]
    try:
        for each, _ in modes:
            each.training = False
        yield
    finally:
        for each, mode in modes:
            each.training = mode


@contextmanager
def _layer_by_layer() -> Iterator[None]:
    """Without the fused kernels of nn.MultiheadAttention and nn.TransformerEncoderLayer, which torch takes without
    gradients. They read the weights of layers, which quantized ones may not have."""
    from torch.backends import mha

    before = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        mha.set_fastpath_enabled(before)


def _failed(module: torch.nn.Module, call: Callable[[], Any], error: Exception) -> SourceError:
    """Why a module cannot be traced: it does not run on the inputs, and where not."""
    name, kind = _last_entered(module, call)
    where = f"module {name} ({kind})" if name else kind
    text = str(error).strip().partition("\n")[0][:300] or type(error).__name__
    refused = re.search(r"Could not run '([^']*)' with arguments from the '(\w+)' backend", str(error))
    if refused and refused[2] == "CPU":
        hint = "a QuantStub is missing before it, or the model is only partly quantized"
        return SourceError(f"gets a float tensor, but {refused[1]} requires a quantized one", where=where, hint=hint)
    if refused and refused[2] == "QuantizedCPU":
        hint = "a DeQuantStub is missing before it, or the model is only partly quantized"
        return SourceError(f"gets a quantized tensor, which {refused[1]} does not support", where=where, hint=hint)
    hint = "the model must run on example_inputs: try model(*example_inputs)"
    return SourceError(f"torch could not run the model ({text})", where=where, hint=hint)


def _last_entered(module: torch.nn.Module, call: Callable[[], Any]) -> tuple[str, str]:
    """(path, type) of the module in which a run fails; of the root if it does not fail again."""
    import torch

    entered: list[torch.nn.Module] = []

    def enter(each: torch.nn.Module, _inputs: Any) -> None:
        entered.append(each)

    def leave(_each: torch.nn.Module, _inputs: Any, _result: Any) -> None:
        entered.pop()

    hooks = [
        torch.nn.modules.module.register_module_forward_pre_hook(enter),
        torch.nn.modules.module.register_module_forward_hook(leave),
    ]
    last = module
    try:
        call()
    except Exception:
        last = entered[-1] if entered else module
    finally:
        for hook in hooks:
            hook.remove()
    name = next((path for path, each in module.named_modules() if each is last), "")
    return name, type(last).__name__


# -- unsupported modules -----------------------------------------------------------------------------------


def _refuse_observers(module: torch.nn.Module) -> None:
    """SourceError for a prepared model, or one that is only partly converted."""
    from .observers import is_observer

    for path, each in module.named_modules():
        if is_observer(each):
            owner = path.removesuffix(".activation_post_process").removesuffix(".weight_fake_quant")
            what = f"still has its observer ({type(each).__name__}): the model is prepared, not converted"
            raise SourceError(what, where=f"module {owner}" if owner else "the module", hint=CONVERT)


def _refuse_names(module: torch.nn.Module) -> None:
    """SourceError for names of modules that torch writes to an archive but cannot read."""
    for path, _ in module.named_modules():
        name = path.rpartition(".")[2]
        if not name.isascii():
            what = f"torch cannot write a module with the name {name!r} to TorchScript"
            raise SourceError(what, where=f"module {path}", hint="give it another name")


def _refuse_floats(script: torch.jit.ScriptModule) -> None:
    """SourceError for a network without any operator on quantized tensors."""
    graph = getattr(script, "inlined_graph", None)
    if graph is not None and not any("quant" in kind for kind in _kinds(graph)):
        raise SourceError("nothing in the model is quantized", hint=QUANTIZE)


def _kinds(block: Any) -> Iterator[str]:
    """The operators of a graph, also those within loops and branches."""
    for node in block.nodes():
        yield node.kind()
        for inner in node.blocks():
            yield from _kinds(inner)


_PLACE = re.compile(r"(?:module )?(\S*?)(?: ?\(?code/\S*:\d+\)?)?")
"""A place in an internal archive that the user never sees: "module fc (code/__torch__/nets.py:12)"."""


def _in_own_words(error: SourceError, module: torch.nn.Module) -> SourceError:
    """The error with modules in place of lines of code that the user never saw."""
    if isinstance(error, UnsupportedOperatorsError):
        own = {name: [_own_place(place, module) for place in places] for name, places in error.operators.items()}
        return UnsupportedOperatorsError(own, where=error.where, hint=error.hint)
    error.where = _own_place(error.where, module)
    return error


def _own_place(place: str, module: torch.nn.Module) -> str:
    found = _PLACE.fullmatch(place)
    path = found[1] if found else place
    try:
        inner = module.get_submodule(path)
    except AttributeError:
        return place
    kind = getattr(inner, "original_name", type(inner).__name__)
    return f"module {path} ({kind})" if path else str(kind)
