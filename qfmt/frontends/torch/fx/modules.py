"""The calls of PyTorch's own modules, as in a trace of each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from ....errors import SourceError, damaged
from ....ops.spelling import MISSING, spellings
from ....threads import literal
from ..calls import Place, Recorder
from ..saved.tree import MODULE, Module
from ..values import QUANTIZED_CODES
from .functional import FUNCTIONS, Call, padded


def lstm(call: Call, module: Module, input: Any, hx: Any = None) -> Any:
    """(output, (h_n, c_n))"""
    if hx is None:
        zeros = _zeros(call, module, input)
        hx = (zeros, zeros)
    output, *states = call("aten::quantized_lstm", input, list(hx), *_parameters(module))
    return output, tuple(states)


def gru(call: Call, module: Module, input: Any, hx: Any = None) -> Any:
    """(output, h_n)"""
    state = _zeros(call, module, input) if hx is None else hx
    return tuple(call("aten::quantized_gru", input, state, *_parameters(module)))


def _zeros(call: Call, module: Module, input: Any) -> Any:
    """The initial state of all layers and directions."""
    batch = call("aten::size", input, 0 if module["batch_first"] else 1)
    rows = module["num_layers"] * (2 if module["bidirectional"] else 1)
    return call("aten::zeros", [rows, batch, module["hidden_size"]])


def _parameters(module: Module) -> tuple[Any, ...]:
    """Arguments of the call: cell parameters, has_biases, num_layers, dropout, train, bidirectional, batch_first."""
    cells = module.children.get("_all_weight_values")
    if cells is None:
        raise damaged("has no parameters of its cells", where=module.path)
    packed = [cell["param"] for cell in cells.children.values()]
    rest = (module[name] for name in ("bias", "num_layers", "dropout", "training", "bidirectional", "batch_first"))
    return packed, *rest


OVERRIDES = (
    "_apply_instance_norm", "_call_impl", "_check_input_dim", "_check_non_zero_input_channels", "_compiled_call_impl",
    "_conv_forward", "_ff_block", "_forward_impl", "_get_backward_hooks", "_get_backward_pre_hooks",
    "_get_no_batch_dim", "_handle_no_batch_input", "_init_flat_weights", "_maybe_warn_non_full_backward_hook",
    "_mha_block", "_output_padding", "_sa_block", "_slow_forward", "_update_flat_weights", "_weight_bias",
    "_weights_have_changed", "_wrapped_call_impl", "check_forward_args", "check_forward_hidden", "check_forward_input",
    "check_hidden_size", "check_input", "flatten_parameters", "forward", "forward_impl", "forward_packed",
    "forward_tensor", "gather", "get_expected_cell_size", "get_expected_hidden_size", "get_flat_weights", "get_weight",
    "get_weight_hh", "get_weight_ih", "merge_masks", "modules", "named_modules", "parallel_apply", "permute_hidden",
    "replicate", "scatter",
)  # fmt: skip
"""Attributes that would replace what a module computes: the methods that `forward` of PyTorch's modules calls."""


class UnknownModule(SourceError):
    """A module whose code is neither in the file nor known."""


def caller(recorder: Recorder, place: Place) -> Call:
    """A function that records calls at a place."""

    def call(target: str, *args: Any, **kwargs: Any) -> Any:
        return recorder.call(target, args, kwargs, place)

    return call


def apply(module: Module, recorder: Recorder, args: tuple[Any, ...], kwargs: Mapping[str, Any], place: Place) -> Any:
    """The output of a module. Raises UnknownModule if its computation is not known."""
    module.budget.spend(MODULE)
    if any(module.attributes.get(name) for name in ("_forward_hooks", "_forward_pre_hooks", *OVERRIDES)):
        what = "runs hooks, whose code is not in the file"
        hint = "remove them before saving, such as by torch.nn.utils.remove_weight_norm"
        raise UnknownModule(what, where=module.path, hint=hint)
    if module.kind in CONTAINERS:
        return CONTAINERS[module.kind](module, recorder, args, kwargs, place)
    function, call = _meaning(module), caller(recorder, place._replace(scope=module.path))
    try:
        inspect.signature(function).bind(call, module, *args, **kwargs)
    except TypeError:
        what = f"a {module.kind} is called with arguments that are not supported"
        raise SourceError(what, where=module.path) from None
    return function(call, module, *args, **kwargs)


def method(module: Module, name: str, recorder: Recorder, place: Place) -> Callable[..., Any]:
    """A method of a module without a `forward`: `ff.add` of a QFunctional."""
    after = module.children.get("activation_post_process")
    is_known = module.kind == "quantized.QFunctional" and name in QFUNCTIONAL and name not in module.attributes
    if not is_known or (after is not None and after.kind != "nn.Identity"):
        raise UnknownModule(f"`{name[:100]}` of {_shown(module)} is not known", where=module.path)
    call = caller(recorder, place._replace(scope=module.path))

    def bound(*args: Any, **kwargs: Any) -> Any:
        if name in ("add_scalar", "mul_scalar"):
            return call(f"quantized::{name}", *args, **kwargs)
        return call(f"quantized::{name}", *args, **kwargs, scale=module["scale"], zero_point=module["zero_point"])

    return bound


QFUNCTIONAL = ("add", "add_scalar", "mul", "mul_scalar", "cat", "add_relu", "matmul")


def _shown(module: Module) -> str:
    return module.class_name[:200]


# -- modules of modules --------------------------------------------------------------------------------


def _chain(*names: str) -> Callable[..., Any]:
    """Modules one after the other: these children, or all in their order."""

    def run(module: Module, recorder: Recorder, args: tuple[Any, ...], kwargs: Mapping[str, Any], place: Place) -> Any:
        for name in names or module.children:
            args, kwargs = (apply(module.children[name], recorder, args, kwargs, place),), {}
        return args[0]

    return run


CONTAINERS: dict[str, Callable[..., Any]] = {
    "nn.Sequential": _chain(),
    "stubs.QuantWrapper": _chain("quant", "module", "dequant"),
}
"""Modules of modules with a known `forward`. `walker.py` adds "fx"."""

INPUT_NAMES = {"stubs.QuantWrapper": "X", "quantized.Quantize": "X", "quantized.Linear": "x"}
"""The name of forward's argument, if it is not `input`."""


# -- modules without children --------------------------------------------------------------------------


def _meaning(module: Module) -> Callable[..., Any]:
    place, _, name = module.kind.partition(".")
    if module.kind in SPECIAL:
        return SPECIAL[module.kind]
    if module.kind in OPERATORS:
        return _operator
    if module.kind.lower() in alike():
        return _alike
    if place in ("quantized", "dynamic") and "Conv" in name and "transposed" in module.attributes:
        return _convolution if place == "quantized" else _dynamic_convolution
    raise UnknownModule(f"the code of {_shown(module)} is not in the file", where=module.path)


def _operator(call: Call, module: Module, x: Any) -> Any:
    target, *words = OPERATORS[module.kind].split()
    arguments = (x, *(_argument(module, word) for word in words))
    if target in FUNCTIONS:
        return FUNCTIONS[target](call, target, arguments, {"inplace": True} if module.attributes.get("inplace") else {})
    return call(_variant(module, target), *arguments)


def _variant(module: Module, target: str) -> str:
    """The operator of a module, or its variant that changes its input."""
    if not module.attributes.get("inplace"):
        return target
    if not target.startswith("aten::"):
        raise SourceError(f"{target} changes its input in place", hint="create the module with inplace=False")
    return f"{target}_"


def _argument(module: Module, word: str) -> Any:
    if word.startswith("="):
        return literal(word[1:])
    if word == "packed":
        return module.packed
    name, optional, default = word.partition("?")
    return module.attributes.get(name, literal(default or "None")) if optional else module[name]


def _alike(call: Call, module: Module, x: Any) -> Any:
    """The scale of the output may have the name `scale`."""
    target, names = alike()[module.kind.lower()]
    short = {name: name if name in module.attributes else name.removeprefix("output_") for name in names}
    return call(_variant(module, target), x, **{name: module[own] for name, own in short.items()})


@cache
def alike() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Modules with the name of their operator, in lower case: "nn.leakyrelu" → aten::leaky_relu, and the parameters
    after the tensor, which are attributes of the module with the same names."""
    places = {"aten": "nn", "quantized": "quantized"}
    found = {}
    for target, (spelled, *_) in spellings().items():
        package, _, name = target.partition("::")
        names = (each.torch_name for each in spelled.parameters[1:] if each.required is MISSING)
        found[f"{places[package]}.{name.replace('_', '')}"] = target, tuple(names)
    return found


def _convolution(call: Call, module: Module, x: Any) -> Any:
    relu = "_relu" if module.kind.startswith("quantized.ConvReLU") else ""
    name = module.kind.removeprefix("quantized.")
    if not relu and name.rstrip("123d") not in ("Conv", "ConvTranspose"):
        raise UnknownModule(f"what {_shown(module)} computes is not known", where=module.path)
    return _packed_convolution(call, module, x, relu, module["scale"], module["zero_point"])


def _dynamic_convolution(call: Call, module: Module, input: Any, reduce_range: bool = True) -> Any:
    return _packed_convolution(call, module, input, "_dynamic", reduce_range)


def _packed_convolution(call: Call, module: Module, x: Any, ending: str, *rest: Any) -> Any:
    rank = len(module["stride"])
    if module["padding_mode"] != "zeros":
        x = padded(call, x, module["padding"][:rank], module["padding_mode"])
    target = f"quantized::conv{'_transpose' if module['transposed'] else ''}{rank}d{ending}"
    return call(target, x, module.packed, *rest)


def _embedding(call: Call, module: Module, indices: Any) -> Any:
    return call(f"quantized::embedding_{_bits(module)}", module.packed, indices)


def _embedding_bag(
    call: Call,
    module: Module,
    indices: Any,
    offsets: Any = None,
    per_sample_weights: Any = None,
    compressed_indices_mapping: Any = None,
) -> Any:
    rest = (per_sample_weights, compressed_indices_mapping, module["include_last_offset"])
    target = f"quantized::embedding_bag_{_bits(module)}"
    return call(target, module.packed, indices, offsets, False, 0, module["pruned_weights"], *rest)


def _bits(module: Module) -> str:
    return "4bit" if getattr(module["dtype"], "name", "") == "quint4x2" else "byte"


def _quantize(call: Call, module: Module, x: Any) -> Any:
    code = QUANTIZED_CODES.get(getattr(module["dtype"], "name", ""))
    if code is None:
        raise SourceError("quantizes to an unknown type", where=module.path)
    return call("aten::quantize_per_tensor", x, module["scale"], module["zero_point"], code)


def _dynamic_linear(call: Call, module: Module, x: Any) -> Any:
    relu = "_relu" if module.kind.endswith("ReLU") else ""
    if getattr(module.packed, "kind", "") == "linear_fp16":
        return call(f"quantized::linear{relu}_dynamic_fp16", x, module.packed)
    reduce_range = (module.attributes.get("version") or 0) >= 4
    return call(f"quantized::linear{relu}_dynamic", x, module.packed, reduce_range)


def _instance_norm(call: Call, module: Module, x: Any) -> Any:
    statistics = module.attributes.get("running_mean"), module.attributes.get("running_var")
    own = module["training"] or not module["track_running_stats"]
    weights = module["weight"], module["bias"]
    without_batch = call("aten::dim", x) == int(module.kind[-2]) + 1
    x = call("aten::unsqueeze", x, 0) if without_batch else x
    y = call("aten::instance_norm", x, *weights, *statistics, own, module["momentum"] or 0.0, module["eps"], True)
    return call("aten::select", y, 0, 0) if without_batch else y


def _float_convolution(call: Call, module: Module, x: Any) -> Any:
    rank, padding = len(module["kernel_size"]), module["padding"]
    if module["padding_mode"] != "zeros":
        x = call("aten::pad", x, list(module["_reversed_padding_repeated_twice"]), module["padding_mode"], None)
        padding = 0
    rest = module["stride"], padding, module["dilation"], module["groups"]
    return call(f"aten::conv{rank}d", x, module["weight"], module["bias"], *rest)


def _float_embedding(call: Call, module: Module, input: Any) -> Any:
    if module.attributes.get("max_norm") is not None:
        raise SourceError("changes rows of its table while it runs: it has a max_norm", where=module.path)
    return call("aten::embedding", module["weight"], input)


DROPOUTS = ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout")

PADDINGS = {"Constant": "constant", "Zero": "constant", "Reflection": "reflect", "Replication": "replicate"}


def _of_ranks(kind: str, call: str, ranks: tuple[int, ...] = (1, 2, 3)) -> dict[str, str]:
    """The modules of each number of spatial dimensions, which stands for "{}"."""
    return {kind.format(rank): call.format(rank) for rank in ranks}


_STATISTICS = "weight bias running_mean running_var"

_AVERAGE = "kernel_size stride padding ceil_mode count_include_pad"

OPERATORS: dict[str, str] = {
    "nn.ReLU": "aten::relu",
    "nn.ReLU6": "aten::hardtanh min_val max_val",
    "nn.Hardtanh": "aten::hardtanh min_val max_val",
    "nn.Sigmoid": "aten::sigmoid",
    "nn.Tanh": "aten::tanh",
    "nn.Hardsigmoid": "aten::hardsigmoid",
    "nn.SiLU": "aten::silu",
    "nn.PReLU": "aten::prelu weight",
    "nn.Softplus": "aten::softplus beta threshold",
    "nn.LayerNorm": "aten::layer_norm normalized_shape weight bias eps",
    "nn.GroupNorm": "aten::group_norm num_groups weight bias eps",
    "nn.Flatten": "aten::flatten start_dim end_dim",
    "nn.Softsign": "softsign",
    "nn.Hardshrink": "aten::hardshrink lambd",
    "nn.Softshrink": "aten::softshrink lambd",
    "nn.Softmax": "softmax dim",
    "nn.LogSoftmax": "log_softmax dim",
    "nn.Threshold": "threshold threshold value",
    **dict.fromkeys(
        ("nn.Upsample", "nn.UpsamplingNearest2d", "nn.UpsamplingBilinear2d"),
        "interpolate size scale_factor mode align_corners recompute_scale_factor?True",
    ),
    **{f"nn.{name}": "aten::dropout p training" for name in DROPOUTS},
    **_of_ranks("nn.AdaptiveAvgPool{}d", "adaptive_avg_pool{}d output_size"),
    **_of_ranks("nn.AdaptiveMaxPool{}d", "adaptive_max_pool{}d output_size return_indices?"),
    **_of_ranks("nn.BatchNorm{}d", f"aten::batch_norm {_STATISTICS} training =0.0 eps =True"),
    **_of_ranks(
        "nn.ConvTranspose{}d", "aten::conv_transpose{}d weight bias stride padding output_padding groups dilation"
    ),
    **{
        f"nn.{name}Pad{rank}d": f"pad padding ='{mode}' value?" for name, mode in PADDINGS.items() for rank in (1, 2, 3)
    },
    "nn.PixelShuffle": "aten::pixel_shuffle upscale_factor",
    "nn.PixelUnshuffle": "aten::pixel_unshuffle downscale_factor",
    "nn.ChannelShuffle": "aten::channel_shuffle groups",
    **_of_ranks("nn.MaxPool{}d", "max_pool{}d kernel_size stride padding dilation ceil_mode return_indices?"),
    "nn.AvgPool1d": f"aten::avg_pool1d {_AVERAGE}",
    **_of_ranks("nn.AvgPool{}d", f"aten::avg_pool{{}}d {_AVERAGE} divisor_override", (2, 3)),
    "quantized.DeQuantize": "aten::dequantize",
    "quantized.Linear": "quantized::linear packed scale zero_point",
    "quantized.LinearReLU": "quantized::linear_relu packed scale zero_point",
    "quantized.LeakyReLU": "quantized::leaky_relu negative_slope =False scale zero_point",
    "quantized.ReLU6": "quantized::relu6",
    "quantized.PReLU": "quantized::prelu weight scale zero_point",
    "quantized.LayerNorm": "quantized::layer_norm normalized_shape weight bias eps scale zero_point",
    "quantized.GroupNorm": "quantized::group_norm num_groups weight bias eps scale zero_point",
    **_of_ranks("quantized.InstanceNorm{}d", "quantized::instance_norm weight bias eps scale zero_point"),
    **_of_ranks("quantized.BatchNorm{}d", f"quantized::batch_norm{{}}d {_STATISTICS} eps scale zero_point", (2, 3)),
    **_of_ranks("quantized.BNReLU{}d", f"quantized::batch_norm{{}}d_relu {_STATISTICS} eps scale zero_point", (2, 3)),
}
"""Modules that are one call: the operator or function, and the attributes that follow the tensor in it ("?": may be
absent, and then has the value after it, or None; "=": a value)."""

SPECIAL: dict[str, Callable[..., Any]] = {
    "quantized.Quantize": _quantize,
    "quantized.Dropout": lambda call, module, x: x,
    "quantized.Embedding": _embedding,
    "quantized.EmbeddingBag": _embedding_bag,
    "dynamic.LSTM": lstm,
    "dynamic.GRU": gru,
    "dynamic.Linear": _dynamic_linear,
    "dynamic.LinearReLU": _dynamic_linear,
    "nn.Embedding": _float_embedding,
    "nn.Identity": lambda call, module, x: x,
    "nn.Unflatten": lambda call, module, x: call("aten::unflatten", x, module["dim"], list(module["unflattened_size"])),
    **{f"nn.InstanceNorm{rank}d": _instance_norm for rank in (1, 2, 3)},
    **{f"nn.Conv{rank}d": _float_convolution for rank in (1, 2, 3)},
}
"""Modules with special calls."""
