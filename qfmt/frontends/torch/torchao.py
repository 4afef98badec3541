"""Weights that torchao quantized, and how the layers that have them quantize their inputs.

torchao's tensors are subclasses that contain plain tensors and a description:
torchao/quantization/quantize_/workflows (0.18). They are read from pickles and from safetensors, without torchao.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...budget import READ, Budget
from ...errors import QfmtError, SourceError, brief, damaged
from ...model import DTYPES, Quantization, Tensor
from ...rules.quantization import FLOATS
from ..harmless import Inert, InertClass, Subclass, TorchDType
from ..stored import StoredTensor
from .values import StoredData, narrowest

if TYPE_CHECKING:
    from numpy.typing import NDArray

INT8, INTX, FLOAT8 = "Int8Tensor", "IntxUnpackedToInt8Tensor", "Float8Tensor"
DISTRIBUTED = "DTensor"

INTEGERS = "int8", "uint8", "int16", "int32", "int64"
"""The types of zero points that are not floats."""

FULL, REDUCED = (-128, 127), (-64, 63)
"""Limits of int8: the full range, and that of torchao's `reduce_range`."""

MAPPINGS = {1: "SYMMETRIC", 2: "SYMMETRIC_NO_CLIPPING_ERR", 3: "ASYMMETRIC"}
"""torchao.quantization.quant_primitives.MappingType, as pickled."""

PER = {"PerRow": "token", "PerToken": "token", "PerTensor": "tensor"}
"""torchao.quantization.granularity, of activations."""


class Described(NamedTuple):
    """An object of one of torchao's dataclasses: the last part of its class's name, and its fields."""

    kind: str
    fields: Mapping[str, Any]


class Activation(NamedTuple):
    """How a layer quantizes its input: on a stored `grid`, or at run time, `per` token or tensor."""

    dtype: str
    per: str
    symmetric: bool = True
    limits: tuple[int, int] = FULL
    grid: Quantization | None = None

    @property
    def reduce_range(self) -> bool:
        return self.limits == REDUCED

    def __str__(self) -> str:
        mapping = "" if DTYPES[self.dtype].kind == "f" else f", {'' if self.symmetric else 'a'}symmetric"
        return f"{self.dtype} per {self.per}{mapping}{'' if self.limits == FULL else ', {}..{}'.format(*self.limits)}"


class Weight(NamedTuple):
    """A quantized weight: stored one value per byte, of `dtype`. Its real values had the type `real_dtype`.

    The input is first multiplied by `pre_scale`, if there is one.
    """

    stored: StoredTensor
    dtype: str
    quantization: Quantization
    real_dtype: str = "float32"
    activation: Activation | None = None
    pre_scale: StoredTensor | None = None

    def tensor(self, name: str, aliases: tuple[str, ...]) -> Tensor:
        data = StoredData(self.stored, self.dtype)
        return Tensor(name, self.dtype, self.stored.shape, data, self.quantization, aliases)


def of_pickle(value: Subclass, budget: Budget) -> Weight:
    """The weight in a pickled tensor of a class. SourceError for other classes, and for invalid contents."""
    state = {} if value.state is None else value.state
    if _last(value.class_name) == "LinearActivationQuantizedTensor":
        return _with_input(state, budget)
    if _last(value.class_name) == "AffineQuantizedTensor":
        return _affine(value.dtype, state, budget)
    parts = {key: part for key, part in state.items() if isinstance(part, StoredTensor)}
    told = {key: _unpickled(part, budget) for key, part in state.items() if key not in parts}
    return weight(_last(value.class_name), parts, {"dtype": value.dtype} | told)


def of_json(kind: str, parts: Mapping[str, StoredTensor], told: Mapping[str, Any]) -> Weight:
    """The weight in safetensors, from its class, its description as JSON, and its tensors."""
    return weight(kind, parts, {key: _decoded(part) for key, part in told.items()})


def weight(kind: str, parts: Mapping[str, StoredTensor], told: Mapping[str, Any]) -> Weight:
    """The weight of a class `kind` with these tensors and this description."""
    if kind not in (INT8, INTX, FLOAT8):
        hint = f"those of {INT8}, {INTX} and {FLOAT8} are: quantize with IntxWeightOnlyConfig, for example"
        if kind == DISTRIBUTED:
            hint = "save whole tensors: get_model_state_dict with full_state_dict=True"
        raise SourceError(f"is a {kind[:100]}, which is not supported", hint=hint)
    for name in ("qdata", "scale"):
        if name not in parts:
            hint = "the file is damaged, or one of multiple shards: merge them"
            raise SourceError(f"is a {kind} without {name}", hint=hint)
    qdata = parts["qdata"]
    dtype, limits = _grid(kind, qdata, told)
    quantization = _quantization(dtype, limits, parts, told)
    if kind != FLOAT8:
        _check_range(qdata, *limits)
    real = told.get("dtype")
    if real not in FLOATS:
        real = parts["scale"].dtype
    return Weight(qdata, dtype, quantization, real, _activation(kind, parts, told), parts.get("act_pre_scale"))


# -- tensors of torchao before 0.14 ----------------------------------------------------------------------

INPUTS = {
    "_int8_asymm_per_token_quant": Activation("int8", "token", symmetric=False),
    "_int8_symm_per_token_quant": Activation("int8", "token"),
    "_int8_symm_per_token_reduced_range_quant": Activation("int8", "token", limits=(-127, 127)),
}
"""Functions of torchao/quantization/quant_api.py that pickles name."""


def _with_input(state: Mapping[str, Any], budget: Budget) -> Weight:
    """torchao/quantization/linear_activation_quantized_tensor.py: a weight, and the quantization of the input."""
    inner, function = state.get("original_weight_tensor"), state.get("input_quant_func")
    if not isinstance(inner, Subclass) or _last(inner.class_name) != "AffineQuantizedTensor":
        raise SourceError("has a weight that is not supported", hint="the weight of an AffineQuantizedTensor is")
    name = _last(function.name) if isinstance(function, InertClass) else ""
    if name not in INPUTS:
        raise SourceError(f"quantizes its input by {name[:100] or 'something'}, which is not supported")
    return of_pickle(inner, budget)._replace(activation=INPUTS[name])


def _affine(dtype: str, state: Mapping[str, Any], budget: Budget) -> Weight:
    """torchao/dtypes/affine_quantized_tensor.py: integers in the plain layout, real = (q - z) · s."""
    held = state.get("tensor_impl")
    layout = _last(held.class_name) if isinstance(held, Subclass) else "nothing"
    if not isinstance(held, Subclass) or layout != "PlainAQTTensorImpl" or held.state is None:
        raise SourceError(f"has the layout {layout[:100]}, which is not supported", hint="quantize with PlainLayout()")
    if _unpickled(state.get("zero_point_domain"), budget) not in (1, 3):  # integers, or none
        raise SourceError("has zero points that are not integers", hint="quantize with ZeroPointDomain.INT")
    named = {"qdata": "int_data", "scale": "scale", "zero_point": "zero_point"}
    parts = {own: held.state.get(name) for own, name in named.items()}
    stored = {name: part for name, part in parts.items() if isinstance(part, StoredTensor)}
    if not {"qdata", "scale"} <= stored.keys() or stored["qdata"].dtype not in ("int8", "uint8"):
        raise damaged("lacks its 8-bit integers or its scales")
    whole = DTYPES[stored["qdata"].dtype]
    given = state.get("quant_min"), state.get("quant_max")
    low, high = (
        full if limit is None else limit for limit, full in zip(given, (whole.minimum, whole.maximum), strict=True)
    )
    if not all(type(limit) is int for limit in (low, high)) or not whole.minimum <= low < high <= whole.maximum:
        raise damaged(f"has values from {brief(low)} to {brief(high)}")
    signed = "" if whole.kind == "i" else "u"
    kinds = (DTYPES[f"{signed}int{bits}"] for bits in (2, 4, 8))
    kind = next(kind.name for kind in kinds if kind.minimum <= low and high <= kind.maximum)
    _check_range(stored["qdata"], low, high)
    told = {"block_size": _unpickled(state.get("block_size"), budget)}
    return Weight(stored["qdata"], kind, _quantization(kind, (low, high), stored, told), dtype)


# -- the grid of a weight --------------------------------------------------------------------------------


def _grid(kind: str, qdata: StoredTensor, told: Mapping[str, Any]) -> tuple[str, tuple[int, int]]:
    """The element type that contains all values, and the smallest and the largest of them."""
    if kind == FLOAT8:
        if not qdata.dtype.startswith("float8") or not DTYPES[qdata.dtype].is_quantizable:
            raise damaged(f"is a {kind} of {qdata.dtype}")
        return qdata.dtype, (DTYPES[qdata.dtype].minimum, DTYPES[qdata.dtype].maximum)
    if qdata.dtype != "int8":
        raise damaged(f"is a {kind} of {qdata.dtype}")
    bits = _bits(told.get("target_dtype")) if kind == INTX else 8
    limits = -(1 << bits - 1), (1 << bits - 1) - 1
    if kind == INT8 and told.get("reduce_range"):
        limits = REDUCED
    return next(name for name in ("int2", "int4", "int8") if DTYPES[name].bits >= bits), limits


def _bits(dtype: Any) -> int:
    """The number of bits of torch.int1 to torch.int8."""
    for bits in range(1, 9):
        if dtype == f"int{bits}":
            return bits
    raise damaged(f"holds integers of type {brief(dtype)}")


def _quantization(
    dtype: str, limits: tuple[int, int], parts: Mapping[str, StoredTensor], told: Mapping[str, Any]
) -> Quantization:
    shape, scale = parts["qdata"].shape, parts["scale"]
    if scale.dtype not in FLOATS:
        raise damaged(f"has scales of {scale.dtype}")
    scale.charge()
    scales = scale.array()
    points = (
        _zero_points(parts["zero_point"]) if "zero_point" in parts and DTYPES[dtype].is_integer else np.zeros(1, int)
    )
    blocks = _block_shape(told.get("block_size"), shape, scale.shape)
    try:
        quantization = Quantization.of_blocks(dtype, shape, blocks, scales, points, limits=limits)
    except QfmtError as error:
        raise damaged(error.what) from None
    smallest = scales.min(initial=1) if quantization.is_affine else 1
    if not np.isfinite(scales.astype(np.float64)).all() or smallest <= 0:
        raise damaged("has scales that are not positive numbers")
    return quantization


def _zero_points(stored: StoredTensor) -> NDArray[Any]:
    """The zero points of a weight: integers, also if they are stored as floats."""
    if stored.dtype not in (*FLOATS, *INTEGERS):
        raise damaged(f"has zero points of {stored.dtype}")
    stored.charge()
    points = stored.array()
    with np.errstate(invalid="ignore"):
        whole = points.astype(np.int64)
    return whole if stored.dtype in FLOATS and (points == whole).all() else points


def _block_shape(told: Any, shape: tuple[int, ...], counts: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes of blocks; if they are not stated, they follow from the shape of the scales."""
    if isinstance(told, tuple) and told:
        if not all(type(size) is int for size in told):
            raise damaged("has blocks whose sizes are not whole numbers")
        return told
    if len(counts) != len(shape):
        counts = (1,) * len(shape)
    return tuple(max(-(-size // max(count, 1)), 1) for size, count in zip(shape, counts, strict=True))


def _check_range(qdata: StoredTensor, low: int, high: int) -> None:
    if (low, high) == (DTYPES[qdata.dtype].minimum, DTYPES[qdata.dtype].maximum):
        return
    qdata.charge(READ)
    values = qdata.array()
    if values.size and not low <= values.min() <= values.max() <= high:
        raise damaged(f"has values from {values.min()} to {values.max()}, but {low} to {high} are allowed")


# -- how inputs are quantized ----------------------------------------------------------------------------


def _activation(kind: str, parts: Mapping[str, StoredTensor], told: Mapping[str, Any]) -> Activation | None:
    if (known := told.get("activation_quantization")) is not None:
        if known != "int8_asym_per_token":
            raise SourceError(f"quantizes its input by {brief(known)}, which is not supported")
        return Activation("int8", "token", symmetric=False)
    given = told.get("act_quant_kwargs")
    if given is None:
        return None
    fields: Mapping[str, Any] = given.fields if isinstance(given, Described) else {}
    granularity, dtype = fields.get("granularity"), "int8"
    per = PER.get(granularity.kind, "") if isinstance(granularity, Described) else ""
    mapping = fields.get("mapping_type", "SYMMETRIC")
    if kind == FLOAT8:
        dtype, mapping = brief(fields.get("float8_dtype", "float8_e4m3fn")), "SYMMETRIC"
    if not per or dtype not in DTYPES or mapping not in ("SYMMETRIC", "ASYMMETRIC"):
        what = f"quantizes its input by {_words(granularity)}, {_words(mapping)}"
        raise SourceError(f"{what}, which is not supported", hint="quantize with PerRow() or PerTensor()")
    limits = REDUCED if fields.get("reduce_range") else FULL
    activation = Activation(dtype, per, mapping == "SYMMETRIC", limits)
    return activation._replace(grid=_static(activation, parts)) if "act_quant_scale" in parts else activation


def _static(activation: Activation, parts: Mapping[str, StoredTensor]) -> Quantization:
    """The grid of an input that calibration chose: one scale for the whole tensor."""
    point = parts.get("act_quant_zero_point")
    try:
        scale, zero_point = parts["act_quant_scale"].item(), 0 if point is None else point.item()
    except SourceError:
        raise SourceError("has a scale for each row of its input", hint="quantize with PerTensor()") from None
    if isinstance(scale, complex) or not isfinite(scale) or scale <= 0 or not isinstance(zero_point, int):
        raise damaged(f"has an input of scale {scale} and zero point {zero_point}")
    low, high = activation.limits
    if not low <= zero_point <= high:
        raise damaged(f"has an input of zero point {zero_point}")
    return Quantization.of((float(scale),), (zero_point,), low, high, None, narrowest(float(scale)))


# -- descriptions ----------------------------------------------------------------------------------------


def _unpickled(value: Any, budget: Budget) -> Any:
    """The contents of a description: numbers, text, tuples, names of types and of enumerations, Described."""
    match value:
        case TorchDType(name):
            return name
        case InertClass(name):
            return _last(name)
        case Inert(class_name=name, arguments=(choice,), state=None):  # of an enumeration
            return MAPPINGS.get(choice, choice) if _last(name) == "MappingType" and type(choice) is int else choice
        case Inert(class_name=name, state=state):
            fields = state if isinstance(state, dict) else {}
            budget.hold(len(fields))  # a pickle may refer to one object many times
            return Described(_last(name), {key: _unpickled(field, budget) for key, field in fields.items()})
        case list() | tuple():
            budget.hold(len(value))
            return tuple(_unpickled(each, budget) for each in value)
    return value


def _decoded(value: Any) -> Any:
    """The same for JSON, in which objects are `{"_type": …, "_data": …}`."""
    match value:
        case {"_type": str(kind), "_data": dict(fields)}:
            return Described(_last(kind), {key: _decoded(field) for key, field in fields.items()})
        case {"_type": str(), "_data": name}:
            return name
        case list():
            return tuple(map(_decoded, value))
    return value


def _last(qualified: str) -> str:
    return qualified.rpartition(".")[2]


def _words(value: Any) -> str:
    return brief(value.kind if isinstance(value, Described) else value)
