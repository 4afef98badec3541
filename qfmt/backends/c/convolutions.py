"""Convolutions: windows over channels-last tensors, gathered into rows for dot products; depthwise ones directly."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ...arrays import Array
from ...errors import QfmtError
from ...model import INT32, Node
from ...ops.geometry import windows
from .kernels import kernel, kernel_text
from .loops import indented
from .plan import Plan
from .products import Folded, constant_weights, dot_rows, finished, folded, target_of, title_of
from .views import Parameter, channels_last

UNROLLED = 25
"""The most taps of a depthwise filter that are one expression."""

SIDES = (32, 8, 1)
"""Numbers of channels that a depthwise filter computes in parallel: the first that is not too large."""

AS_THEY_ARE = {"TAKEN": "from[c]", "PADDING": "zero", "HOW": "as they are"}
SHIFTED = {"TAKEN": "(uint8_t)(from[c] + 128)", "PADDING": "(uint8_t)(zero + 128)", "HOW": "128 more than they are"}
"""How inputs are gathered: int8 becomes uint8 where that is faster to multiply."""


def conv(plan: Plan, node: Node) -> None:
    """Any number of spatial dimensions up to three, groups, dilations."""
    w = constant_weights(plan, node)
    group = node.int("group", 1)
    if w.shape[1] == 1 and w.shape[0] == group and group > 1:
        depthwise(plan, node, w)
        return
    taps = np.moveaxis(w, 1, -1)  # for each tap the channels
    _windowed(plan, node, taps.reshape(group, w.shape[0] // group, prod(w.shape[1:])), "gather")


def conv_transpose(plan: Plan, node: Node) -> None:
    """As a convolution whose outputs gather the inputs that contribute to them."""
    w = constant_weights(plan, node)
    group = node.int("group", 1)
    split = w.reshape(group, w.shape[0] // group, w.shape[1], prod(w.shape[2:]))
    rows = split.transpose(0, 2, 3, 1).reshape(group, w.shape[1], split.shape[1] * split.shape[3])
    _windowed(plan, node, rows, "gather_transposed")


def _windowed(plan: Plan, node: Node, rows: Array, template: str) -> None:
    x, y = plan.value(node.inputs[0]), plan.value(node.outputs[0])
    f = folded(plan, node, rows, rows.shape[0] * rows.shape[1])
    order = channels_last(len(x.shape))
    view = plan.read(node.inputs[0], order)
    channels = x.shape[1] // rows.shape[0]

    def gather(fast: Folded, row: str, position: str) -> str:
        words = SHIFTED if fast.x != f.x else AS_THEY_ARE
        name = kernel(plan, template, X=f.x, D=fast.x, **words)
        start = "x" if rows.shape[0] == 1 else f"x + g * {channels}"
        return f"{name}(&{window_of(plan, node)}, {start}, {position}, {channels}, {f.zero}, {row});"

    count = y.size // y.shape[1] if y.size else 0
    what = f"{x.shape[1]} channels to {y.shape[1]}, kernel {'x'.join(map(str, node.ints('kernel_shape')))}"
    simple = prod(node.ints("kernel_shape")) == prod(node.ints("strides")) == 1 and not any(node.ints("pads"))
    direct = simple and rows.shape[0] == 1 and not any(node.ints("output_padding", ()))
    dot_rows(plan, node, f, count, gather, view, order, what, direct)


def three(sizes: Sequence[int | str], filler: int | str) -> str:
    """Sizes of one to three dimensions as a C array of three."""
    return "{" + ", ".join(map(str, (*(filler,) * (3 - len(sizes)), *sizes))) + "}"


def window_of(plan: Plan, node: Node) -> str:
    """The `struct window` of a convolution."""
    x, y = plan.value(node.inputs[0]), plan.value(node.outputs[0])
    rank = len(x.shape) - 2
    if not 1 <= rank <= 3:
        raise QfmtError(f"has {rank} spatial dimensions, but C supports 1 to 3")
    for window, sizes in zip(windows(node.attributes), zip(x.shape[2:], y.shape[2:], strict=True), strict=True):
        if max(sizes) + abs(window.head) + abs(window.tail) + window.reach > INT32:
            raise QfmtError("has a window and padding that together are too large for int32")
    fields = {
        "channels": str(x.shape[1]),
        "in": three(x.shape[2:], 1),
        "out": three(y.shape[2:], 1),
        "kernel": three(node.ints("kernel_shape"), 1),
        "stride": three(node.ints("strides"), 1),
        "dilation": three(node.ints("dilations"), 1),
        "pad": three(node.ints("pads")[:rank], 0),
    }
    plan.declare(kernel_text("window"))
    return plan.struct("window", f"{node.outputs[0]} window", fields)


def depthwise(plan: Plan, node: Node, w: Array) -> None:
    """One filter per channel."""
    x, y = plan.value(node.inputs[0]), plan.value(node.outputs[0])
    channels = w.shape[0]
    f = folded(plan, node, w.reshape(channels, 1, prod(w.shape[2:])), channels)
    taps = f.weights.shape[2]
    order = channels_last(len(x.shape))
    view = plan.read(node.inputs[0], order)
    window = window_of(plan, node)
    weights = plan.constant(f.weights[:, 0].T.astype(f.dtype), node.inputs[1], aligned=True)
    bias = plan.constant(f.bias.astype(np.int32), f"{node.outputs[0]} bias")
    zeros = plan.constant(np.full(channels, f.zero, f.x), f"{node.outputs[0]} padding")
    target, finish = target_of(plan, node, order, channels, f.reach)
    together = taps if taps <= UNROLLED else 1
    words = (f"(int32_t)taps[t + {i}][c + i] * weights[(t + {i}) * n + c + i]" for i in range(together))
    name = kernel(
        plan,
        "depthwise",
        X=f.x,
        W=f.dtype,
        TAPS=str(taps),
        TOGETHER=str(together),
        SIDE=str(next(side for side in SIDES if side <= channels)),
        TERMS="\n                           + ".join(words),
    )
    count = y.size // channels
    at = f"y + position * {channels}"
    body = [
        f"for (int32_t position = 0; position < {count}; position++) {{",
        f"    {name}(&{window}, x, position, {zeros}, {weights}, {bias}, sums);",
        *indented(finished(plan, finish, "sums", at, channels)),
        "}",
    ]
    parameters = [Parameter("x", view), Parameter("y", target, True)]
    title = title_of(node, finish, f"{channels} channels, depthwise")
    plan.step(title, parameters, body, [("int32", channels, "sums")])
