"""Torch's recurrent layers and cells. Of quantized layers each direction is one node; float ones are those of ONNX,
which have another order of gates, and both directions in one node."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ....errors import SourceError
from ...stored import PerTensor, StoredTensor
from .. import arguments, shapes
from ..building import Builder
from ..calls import EVALUATE, Packed, PackedState
from ..lifts import lifts
from ..values import TensorValue
from .creation import is_zero
from .layouts import chunk, permute, select, sliced, stack, unsqueeze
from .linear import linear_layer, narrowed, reduces_range

_LAYER = re.compile(r"(?:(.+)\.)?_all_weight_values\.\d+\.param")
_CELL = re.compile(r"(?:(.+)\.)?_packed_weight_ih")
"""The attributes of PyTorch's modules with the parameters of a layer, and of a cell."""


class Parameters(NamedTuple):
    """The parameters of one layer in one direction, or of a cell. Biases are those in the packed parameters."""

    w_ih: TensorValue
    w_hh: TensorValue
    b_ih: TensorValue | None
    b_hh: TensorValue | None
    reduce_range: int


# Layers


_OPTIONS = "params, has_biases, num_layers, dropout, train, bidirectional, batch_first"


@lifts(f"aten::quantized_lstm(input, hx, {_OPTIONS}, dtype=None, use_dynamic=False)")
def quantized_lstm(lift: Builder, a: Any) -> Any:
    """The form for packed sequences has as many arguments: (data, batch_sizes, hx, params, …)."""
    if not isinstance(a.hx, list | tuple):
        return lift.unsupported("aten::quantized_lstm on a packed sequence")
    if len(a.hx) != 2:
        raise SourceError("starts without the two states of an LSTM")
    return _layers(lift, "qfmt.LSTM", a, a.hx)


@lifts(f"aten::quantized_gru(input, hx, {_OPTIONS})")
def quantized_gru(lift: Builder, a: Any) -> Any:
    """The form for packed sequences has as many arguments: (data, batch_sizes, hx, params, …)."""
    if not isinstance(a.params, list | tuple):
        return lift.unsupported("aten::quantized_gru on a packed sequence")
    return _layers(lift, "qfmt.GRU", a, [a.hx])


def _layers(lift: Builder, operator: str, a: Any, initial: Sequence[Any]) -> list[TensorValue]:
    """[output, last states…], as in torch."""
    layers, directions = arguments.whole(lift, a.num_layers), 1 + arguments.flag(lift, a.bidirectional)
    if arguments.flag(lift, a.train) and arguments.number(lift, a.dropout) and layers > 1:
        raise SourceError("drops random values: the network was saved in training mode", hint=EVALUATE)
    if not isinstance(a.params, list | tuple) or not 0 < len(a.params) == directions * layers:
        raise SourceError(f"needs the parameters of {directions * layers} cells")
    states = [lift.tensor(state) for state in initial]
    given = [None if is_zero(lift, state) else state for state in states]
    x = lift.tensor(a.input)
    shapes.need(lift, x, (None, None, _inputs(a.params[0])))
    swapped = arguments.flag(lift, a.batch_first)
    y = permute(lift, x, [1, 0, 2]) if swapped else x
    last: list[list[TensorValue]] = [[] for _ in states]
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            index = layer * directions + direction
            cell = _cell(lift, a.params[index], f"_l{layer}{'_reverse' if direction else ''}")
            begin = [None if state is None else _row(lift, state, index, cell) for state in given]
            attributes = {"reduce_range": cell.reduce_range, "reverse": direction}
            inputs = [y, cell.w_ih, cell.w_hh, cell.b_ih, cell.b_hh, *begin]
            result, *ends = lift.emit_many(operator, inputs, attributes, outputs=1 + len(states))
            outputs.append(result)
            for each, end in zip(last, ends, strict=True):
                each.append(end)
        y = outputs[0] if directions == 1 else lift.emit("Concat", outputs, {"axis": 2})
    result = permute(lift, y, [1, 0, 2]) if swapped else y
    return [result, *(stack(lift, ends) for ends in last)]


def _row(lift: Builder, state: TensorValue, index: int, cell: Parameters) -> TensorValue:
    """The initial state [batch, size] of one layer and direction."""
    shapes.need(lift, state, (None, None, _columns(cell.w_hh)))
    return select(lift, state, 0, index)


def _columns(weight: TensorValue) -> Any:
    """How many numbers a product with the weight takes."""
    return weight.shape[1] if weight.shape else None


def _inputs(params: Any) -> int | None:
    """The size of the input, from the parameters of the first layer."""
    match params:
        case PackedState(state=(_, _, _, _, [Packed(weight=StoredTensor(shape=(_, inputs))), *_])):
            return inputs
        case PackedState(state=("quantized", [StoredTensor(shape=(_, inputs)), *_], *_)):
            return inputs
    return None


def _cell(lift: Builder, params: Any, suffix: str) -> Parameters:
    """The parameters of one layer in one direction, with PyTorch's names: `weight_ih_l0`, `bias_hh_l1_reverse`."""
    if not isinstance(params, PackedState):
        raise SourceError("is called with cell parameters from before PyTorch 1.6, which later versions cannot read")
    owner = _LAYER.fullmatch(params.path)
    module = params.path if owner is None else owner[1] or ""
    lift.within(module if owner else "")
    match params.state:
        case ("quantized_dynamic", _, _, [*reduce_range], [Packed() as w_ih, Packed() as w_hh]):
            return _parameters(lift, module, suffix, w_ih, w_hh, any(reduce_range))
        case ("quantized_fp16", _, _, _, [Packed() as w_ih, Packed() as w_hh]):
            return _parameters(lift, module, suffix, w_ih, w_hh, False)
        case (
            "quantized",
            [StoredTensor() as w_ih, StoredTensor() as w_hh, StoredTensor() as b_ih, StoredTensor() as b_hh, *_],
            [float(s_ih), float(s_hh)],
            [int(z_ih), int(z_hh)],
            _,
        ) if w_ih.dtype == w_hh.dtype == "int8":
            first = Packed("linear", replace(w_ih, quantizer=PerTensor(s_ih, z_ih)), b_ih)
            second = Packed("linear", replace(w_hh, quantizer=PerTensor(s_hh, z_hh)), b_hh)
            return _parameters(lift, module, suffix, first, second, False)
    raise SourceError("is called with cell parameters in a form that no version of PyTorch wrote")


def _parameters(lift: Builder, module: str, suffix: str, w_ih: Any, w_hh: Any, reduce_range: bool) -> Parameters:
    weight_ih, bias_ih = _linear(lift, w_ih, module, f"ih{suffix}")
    weight_hh, bias_hh = _linear(lift, w_hh, module, f"hh{suffix}")
    return Parameters(weight_ih, weight_hh, bias_ih, bias_hh, reduces_range(lift, reduce_range))


def _linear(lift: Builder, packed: Any, module: str, end: str) -> tuple[TensorValue, TensorValue | None]:
    """Weight and bias, by their names in PyTorch's float module."""
    dtype = narrowed(packed)
    aliases = [packed.path, *packed.aliases]
    weight = lift.stored(packed.weight, f"{module}.weight_{end}".lstrip("."), aliases, dtype)
    bias = None if packed.bias is None else lift.stored(packed.bias, f"{module}.bias_{end}".lstrip("."))
    return weight, bias


# Cells


def _step(lift: Builder, operator: str, input: Any, states: Sequence[Any], w_ih: Any, w_hh: Any, **more: Any) -> Any:
    """Torch quantizes the inputs of cells to 7 bits, and does not use the biases next to the packed ones."""
    owner = _CELL.fullmatch(w_ih.path) if isinstance(w_ih, Packed) else None
    module = owner[1] or "" if owner else lift.place.scope
    lift.within(module)
    cell = _parameters(lift, module, "", w_ih, w_hh, True)
    x, given = lift.tensor(input), [lift.tensor(state) for state in states]
    for value, weight in ((x, cell.w_ih), *((state, cell.w_hh) for state in given)):
        shapes.need(lift, value, (None, _columns(weight)))
    begin = [None if is_zero(lift, state) else state for state in given]
    inputs = [x, cell.w_ih, cell.w_hh, cell.b_ih, cell.b_hh, *begin]
    results = lift.emit_many(operator, inputs, {"reduce_range": cell.reduce_range, **more}, outputs=len(given))
    return results if len(results) > 1 else results[0]


@lifts("quantized::quantized_lstm_cell_dynamic")
def lstm_cell(lift: Builder, input: Any, hx: Any, w_ih: Any, w_hh: Any, bias_ih: Any, bias_hh: Any) -> Any:
    if not isinstance(hx, list | tuple) or len(hx) != 2:
        raise SourceError("starts without the two states of an LSTM")
    return _step(lift, "qfmt.LSTMCell", input, hx, w_ih, w_hh)


@lifts("quantized::quantized_gru_cell_dynamic")
def gru_cell(lift: Builder, input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any) -> Any:
    return _step(lift, "qfmt.GRUCell", input, [hx], w_ih, w_hh)


@lifts({f"quantized::quantized_rnn_{name}_cell_dynamic": name for name in ("tanh", "relu")})
def rnn_cell(lift: Builder, activation: str, input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any) -> Any:
    return _step(lift, "qfmt.RNNCell", input, [hx], w_ih, w_hh, activation=activation)


@lifts("aten::lstm_cell")
def float_lstm_cell(
    lift: Builder, input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None
) -> Any:
    if not isinstance(hx, list | tuple) or len(hx) != 2:
        raise SourceError("starts without the two states of an LSTM")
    begin = lift.tensor(hx[1])
    shapes.need(lift, begin, (None, _columns(lift.tensor(w_hh))))
    i, f, g, o = chunk(lift, lift.emit("Add", _products(lift, input, hx[0], w_ih, w_hh, b_ih, b_hh)), 4, 1)
    kept = lift.emit("Mul", [lift.emit("Sigmoid", [f]), begin])
    end = lift.emit("Add", [kept, lift.emit("Mul", [lift.emit("Sigmoid", [i]), lift.emit("Tanh", [g])])])
    return [lift.emit("Mul", [lift.emit("Sigmoid", [o]), lift.emit("Tanh", [end])]), end]


@lifts("aten::gru_cell")
def float_gru_cell(lift: Builder, input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    begin = lift.tensor(hx)
    of_input, of_state = (chunk(lift, each, 3, 1) for each in _products(lift, input, begin, w_ih, w_hh, b_ih, b_hh))
    r, z = (lift.emit("Sigmoid", [lift.emit("Add", [of_state[gate], of_input[gate]])]) for gate in (0, 1))
    n = lift.emit("Tanh", [lift.emit("Add", [of_input[2], lift.emit("Mul", [of_state[2], r])])])
    return lift.emit("Add", [lift.emit("Mul", [lift.emit("Sub", [begin, n]), z]), n])


@lifts({"aten::rnn_tanh_cell": "Tanh", "aten::rnn_relu_cell": "Relu"})
def float_rnn_cell(
    lift: Builder, activation: str, input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None
) -> Any:
    return lift.emit(activation, [lift.emit("Add", _products(lift, input, hx, w_ih, w_hh, b_ih, b_hh))])


def _products(lift: Builder, input: Any, state: Any, *parameters: Any) -> list[TensorValue]:
    """What a float cell computes of its input, and of its state: [batch, gates × size] each."""
    w_ih, w_hh, b_ih, b_hh = parameters
    products = []
    for value, matrix, bias in ((input, w_ih, b_ih), (state, w_hh, b_hh)):
        x, weight = lift.tensor(value), lift.tensor(matrix)
        shapes.need(lift, x, (None, _columns(weight)))
        products.append(linear_layer(lift, x, weight, bias))
    return products


GATES = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2)}
"""ONNX's order, in torch's numbers: i, o, f, c of i, f, g, o; z, r, h of r, z, n."""


@lifts(f"aten::lstm(input, hx, {_OPTIONS})")
def lstm(lift: Builder, a: Any) -> Any:
    if not isinstance(a.hx, list | tuple) or len(a.hx) != 2:
        return NotImplemented  # for a packed sequence
    return _float_layers(lift, "LSTM", a, a.hx)


@lifts(f"aten::gru(input, hx, {_OPTIONS})")
def gru(lift: Builder, a: Any) -> Any:
    return _float_layers(lift, "GRU", a, [a.hx]) if isinstance(a.params, list | tuple) else NotImplemented


def _float_layers(lift: Builder, operator: str, a: Any, states: Sequence[Any]) -> Any:
    options = (a.has_biases, a.num_layers, a.train, a.bidirectional, a.batch_first)
    biases, layers, train, both, batch_first = (int(arguments.number(lift, option)) for option in options)
    if train:
        raise SourceError("is in training mode", hint=EVALUATE)
    x, directions, each = lift.tensor(a.input), 1 + both, 4 if biases else 2
    if len(a.params) != layers * directions * each:
        raise SourceError(f"has {len(a.params)} parameters for {layers} layers")
    x = permute(lift, x, [1, 0, 2]) if batch_first else x
    last: list[list[TensorValue]] = [[] for _ in states]
    for layer in range(layers):
        begin = layer * directions
        own = [a.params[(begin + way) * each : (begin + way + 1) * each] for way in range(directions)]
        first = [_rows(lift, lift.tensor(state), begin, begin + directions) for state in states]
        x, ends = _float_layer(lift, operator, x, own, first)
        for collected, end in zip(last, ends, strict=True):
            collected.append(end)
    x = permute(lift, x, [1, 0, 2]) if batch_first else x
    return [x, *(ends[0] if layers == 1 else lift.emit("Concat", ends, {"axis": 0}) for ends in last)]


def _float_layer(
    lift: Builder, operator: str, x: TensorValue, params: Sequence[Sequence[Any]], states: Sequence[TensorValue]
) -> tuple[TensorValue, list[TensorValue]]:
    parts = [[_in_order(lift, operator, lift.tensor(each)) for each in way] for way in params]
    w, r = (_joined(lift, [unsqueeze(lift, way[index], 0) for way in parts]) for index in (0, 1))
    b = None
    if len(parts[0]) == 4:
        b = _joined(lift, [unsqueeze(lift, _joined(lift, way[2:]), 0) for way in parts])
    hidden = arguments.whole(lift, shapes.size(lift, r, 2))
    attributes: dict[str, Any] = {
        "hidden_size": hidden,
        "direction": "bidirectional" if len(parts) == 2 else "forward",
        "activations": (("Sigmoid", "Tanh", "Tanh") if operator == "LSTM" else ("Sigmoid", "Tanh")) * len(parts),
    }
    if operator == "GRU":
        attributes["linear_before_reset"] = 1
    y, *ends = lift.emit_many(operator, [x, w, r, b, None, *states], attributes, outputs=1 + len(states))
    apart = lift.emit("Transpose", [y], {"perm": (0, 2, 1, 3)})
    outer = [shapes.size(lift, apart, axis) for axis in (0, 1)]
    return shapes.reshape(lift, apart, [*outer, hidden * len(parts)]), ends


def _in_order(lift: Builder, operator: str, value: TensorValue) -> TensorValue:
    """The rows of the gates in ONNX's order."""
    gates = GATES[operator]
    rows = arguments.whole(lift, shapes.size(lift, value, 0)) // len(gates)
    return _joined(lift, [_rows(lift, value, gate * rows, (gate + 1) * rows) for gate in gates])


def _rows(lift: Builder, value: TensorValue, start: int, end: int) -> TensorValue:
    is_whole = value.shape is not None and value.shape[0] == end - start
    return value if is_whole else sliced(lift, value, 0, start, end)


def _joined(lift: Builder, values: Sequence[TensorValue]) -> TensorValue:
    return values[0] if len(values) == 1 else lift.emit("Concat", list(values), {"axis": 0})
