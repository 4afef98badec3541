"""The calls of PyTorch's dynamically quantized recurrent modules: torch/ao/nn/quantized/dynamic/modules/rnn.py."""

from __future__ import annotations

from typing import Any

from ....errors import SourceError
from ..saved.tree import Module
from .functional import Call


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
        raise SourceError("has no parameters of its cells", where=module.path, hint="the file is damaged")
    packed = [cell["param"] for cell in cells.children.values()]
    rest = (module[name] for name in ("bias", "num_layers", "dropout"))
    return packed, *rest, False, module["bidirectional"], module["batch_first"]
