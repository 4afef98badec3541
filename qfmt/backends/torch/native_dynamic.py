"""torch's kernels that quantize at run time, those with float16 weights, and its quantized embeddings."""

from __future__ import annotations

from operator import getitem
from typing import Any

import torch
from torch import Tensor

from ...errors import QfmtError, RunError
from ...model import DTYPES, pack
from ...ops.embedding import bag_ends
from .arithmetic import DYNAMIC
from .dynamic import dynamic_linear_by_rule
from .emit import Emitter, Lacks, Site
from .native import by_kernels, check_matrices, int8_weight
from .ranges import runs_qnnpack
from .values import is_recorded
from .windows import Geometry

aten, quantized = torch.ops.aten, torch.ops.quantized


def _bias(s: Site, weight: int, bias: int) -> Tensor | None:
    """A float bias beside a constant weight."""
    addend = s.tensor(bias) if s.has(bias) else None
    if s.tensor(weight).data is None or (
        addend is not None and (addend.data is None or addend.quantization is not None)
    ):
        raise Lacks("torch packs constant weights and float biases only")
    return None if addend is None else s.constant(bias)


def _weight(s: Site, index: int) -> Tensor:
    """A quantized weight; Lacks if torch quantizes the inputs beside it otherwise."""
    if s.tensor(0).dtype != "float32":
        raise Lacks(f"torch quantizes float32, not {s.tensor(0).dtype}")
    if s.node.rule == "dynamic_symmetric":
        raise Lacks("torch quantizes inputs to unsigned integers only")
    if s.attribute("reduce_range") and runs_qnnpack(s):
        raise Lacks("QNNPACK does not reduce the range of inputs")
    return int8_weight(s, index)


def _parameters(s: Site, weight: int, bias: int) -> Any:
    """Packed parameters of a linear layer: dynamic with quantized weights, half precision with float16."""
    tensor, value = s.tensor(weight), _bias(s, weight, bias)
    value = None if value is None else value.float()
    if tensor.quantization is None and tensor.dtype != "float16":
        raise Lacks("torch has no packed form of float weights")
    if tensor.quantization is None:
        return quantized.linear_prepack_fp16(s.constant(weight).float(), value)
    values = _weight(s, weight)
    return by_kernels(s, lambda: quantized.linear_prepack(values, value))


def _linear(s: Site) -> Any:
    if s.attribute("per_token") or (s.node.rule in DYNAMIC and not DYNAMIC[s.node.rule].stretches):
        return dynamic_linear_by_rule(s)  # torch's kernels have one grid for the whole input, and a least scale
    check_matrices(s)
    packed = s.derive("packed", _parameters(s, 1, 2))
    return s.result(quantized.linear_dynamic.default, s.features(), packed, bool(s.attribute("reduce_range")))


def linear_float16(s: Site) -> Any:
    """qfmt.Linear of float32 with a float16 weight."""
    if s.tensor(1).quantization is not None or (s.tensor(0).dtype, s.tensor(1).dtype) != ("float32", "float16"):
        raise Lacks("is not float32 with a float16 weight")
    check_matrices(s)
    return s.result(quantized.linear_dynamic_fp16.default, s.features(), s.derive("packed", _parameters(s, 1, 2)))


def _conv(s: Site) -> Any:
    if s.node.rule in DYNAMIC:
        raise Lacks("torch clamps the output to the range of the input")
    geometry = Geometry.of(s).even()
    value = _bias(s, 1, 2)
    weight, prepack = _weight(s, 1), getattr(quantized, f"{geometry.name}_prepack")
    packed = by_kernels(s, lambda: prepack(weight, value, *geometry.packing()))
    target = getattr(quantized, f"{geometry.name}_dynamic").default
    return s.result(target, s.channels(), s.derive("packed", packed), bool(s.attribute("reduce_range")))


# Layers and cells


def _layer(s: Site) -> Any:
    """One layer in one direction, as a network of one layer."""
    half = s.tensor(1).quantization is None
    first, second = _parameters(s, 1, 3), _parameters(s, 2, 4)
    if half:
        params = quantized.make_quantized_cell_params_fp16(first, second)
    else:
        rows = (s.tensor(1).shape or (0,))[0]
        biases = [
            s.constant(i).float() if s.has(i) else torch.zeros(int(rows or 0), dtype=torch.float32) for i in (3, 4)
        ]
        reduce_range = bool(s.attribute("reduce_range"))
        params = quantized.make_quantized_cell_params_dynamic(first, second, *biases, reduce_range)
    states = [s.features(index, 2) for index in range(5, 7 if s.node.operator == "qfmt.LSTM" else 6)]
    size = (s.tensor(2).shape or (0, 0))[1]
    function = lstm if s.node.operator == "qfmt.LSTM" else gru
    kind = torch.float16 if half else torch.qint8
    held = s.derive("cell", params)
    result = s.call(function, s.features(), *states, held, size, bool(s.attribute("reverse")), kind)
    return [s.call(getitem, result, index) for index in range(len(s.node.outputs))]


def _begin(x: Tensor, state: Tensor | None, size: int) -> Tensor:
    return x.new_zeros(1, x.shape[1], size) if state is None else state.unsqueeze(0)


def lstm(
    x: Tensor, h: Tensor | None, c: Tensor | None, cell: Any, size: int, reverse: bool, kind: torch.dtype
) -> tuple[Tensor, ...]:
    """x [steps, batch, inputs], h and c [batch, size] or None → output, and the last h and c."""
    steps, states = x.flip(0) if reverse else x, [_begin(x, h, size), _begin(x, c, size)]
    rest = (True, 1, 0.0, False, False, False)
    y, h_n, c_n = aten.quantized_lstm.input(steps, states, [cell], *rest, dtype=kind, use_dynamic=True)
    return y.flip(0) if reverse else y, h_n[0], c_n[0]


def gru(x: Tensor, h: Tensor | None, cell: Any, size: int, reverse: bool, kind: torch.dtype) -> tuple[Tensor, ...]:
    """x [steps, batch, inputs], h [batch, size] or None → output, and the last h."""
    steps = x.flip(0) if reverse else x
    y, h_n = aten.quantized_gru.input(steps, _begin(x, h, size), [cell], True, 1, 0.0, False, False, False)
    return y.flip(0) if reverse else y, h_n[0]


CELLS = {
    "qfmt.LSTMCell": quantized.quantized_lstm_cell_dynamic,
    "qfmt.GRUCell": quantized.quantized_gru_cell_dynamic,
    "qfmt.RNNCell": quantized.quantized_rnn_tanh_cell_dynamic,
}


def _cell(s: Site) -> Any:
    if s.tensor(1).quantization is None or not (s.has(3) and s.has(4)):
        raise Lacks("torch's cells require 8-bit quantized weights with biases")
    if not s.attribute("reduce_range") and not runs_qnnpack(s):
        raise Lacks("torch's cells reduce the range of inputs")
    target = CELLS[s.node.operator]
    if s.node.operator == "qfmt.RNNCell" and s.attribute("activation") == "relu":
        target = quantized.quantized_rnn_relu_cell_dynamic
    packed = [s.derive(what, _parameters(s, *at)) for what, at in (("ih", (1, 3)), ("hh", (2, 4)))]
    states = [s.features(index, 2) for index in range(5, 7 if s.node.operator == "qfmt.LSTMCell" else 6)]
    if any(state is None for state in states):
        raise Lacks("has no initial state")
    result = s.call(target.default, s.features(), states if len(states) > 1 else states[0], *packed, s.x(3), s.x(4))
    return result if len(states) == 1 else [s.call(getitem, result, index) for index in range(2)]


# Embeddings


def _table(s: Site) -> Any:
    """A table of rows of 8 or 4 bits, packed."""
    tensor = s.tensor(0)
    q = tensor.quantization
    if tensor.data is None or q is None or q.axis != 0 or tensor.dtype not in ("uint8", "uint4"):
        raise Lacks("torch supports only tables of uint8 or uint4, quantized per row")
    values, bits = s.constant(0).contiguous(), DTYPES[tensor.dtype].bits
    if bits == 4 and values.shape[1] % 2:
        raise Lacks("torch packs only rows of whole bytes")
    stored = values if bits == 8 else torch.from_numpy(pack(values.numpy(), 4))
    scales, points = torch.tensor(q.scale, dtype=torch.float32), torch.tensor(q.each_zero_point, dtype=torch.float32)
    kind = torch.quint8 if bits == 8 else torch.quint4x2
    made = torch._empty_per_channel_affine_quantized(
        values.shape, scales=scales, zero_points=points, axis=0, dtype=kind
    )
    made.set_(stored.untyped_storage(), stored.storage_offset(), values.shape, values.stride())
    return s.derive("table", quantized.embedding_bag_prepack(made))


def _check_rule(s: Site) -> None:
    """torch keeps scales and offsets of 8-bit rows in float32, of 4-bit rows in float16."""
    if s.node.rule != ("lookup_float32" if s.tensor(0).dtype == "uint8" else "lookup_float16"):
        raise Lacks(f"torch does not support lookups with the rule {s.node.rule!r}")


def _contiguous(s: Site, index: int) -> Any:
    """An input as these kernels need it: a column of a table is not, for example."""
    return s.call(aten.contiguous.default, s.x(index)) if s.has(index) else None


def _embedding(s: Site) -> Any:
    _check_rule(s)
    if s.rank(1) not in (1, 2):
        raise Lacks("torch looks up vectors and matrices of indices only")
    target = quantized.embedding_byte if s.tensor(0).dtype == "uint8" else quantized.embedding_4bit
    return s.result(target.default, _table(s), _contiguous(s, 1))


def _checked_bags(
    indices: Tensor, offsets: Tensor | None, weights: Tensor | None, last: bool, where: str
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Indices, offsets and weights of bags that do not let torch read beyond its arrays. RunError for others; what is
    traced or compiled gives torch an index instead that it refuses."""
    if not is_recorded():
        bounds, factors = (None if each is None else each.detach().numpy() for each in (offsets, weights))
        try:
            bag_ends(indices.numpy(), bounds, factors, last)
        except QfmtError as error:
            raise RunError(error.what, where=where) from None
    elif offsets is not None:
        grow = (offsets[1:] >= offsets[:-1]).all() & (offsets[:1] == 0).all() & (offsets <= indices.numel()).all()
        indices, offsets = torch.where(grow, indices, -1), torch.where(grow, offsets, 0)
    return indices, offsets, None if weights is None else weights.view_as(indices)


def _bag(s: Site) -> Any:
    _check_rule(s)
    if s.attribute("mode") != "sum" or s.attribute("padding_idx") != -1:
        raise Lacks("torch supports only bags that sum all their rows")
    target = quantized.embedding_bag_byte if s.tensor(0).dtype == "uint8" else quantized.embedding_bag_4bit
    last = bool(s.attribute("include_last_offset"))
    if last and len(s.tensor(1).shape or ()) == 2:
        raise Lacks("torch omits the last bag of a matrix of indices")
    indices, offsets, weights = (_contiguous(s, index) for index in (1, 2, 3))
    checked = s.call(_checked_bags, indices, offsets, weights, last, f"node {s.node.title}")
    indices, offsets, weights = (s.call(getitem, checked, index) for index in range(3))
    return s.result(target.default, _table(s), indices, offsets, False, 0, False, weights, None, last)


DYNAMIC_EMITTERS: dict[str, Emitter] = {
    "qfmt.DynamicLinear": _linear,
    "qfmt.DynamicConv": _conv,
    "qfmt.DynamicConvTranspose": _conv,
    "qfmt.LSTM": _layer,
    "qfmt.GRU": _layer,
    **dict.fromkeys(CELLS, _cell),
    "qfmt.Embedding": _embedding,
    "qfmt.EmbeddingBag": _bag,
}
