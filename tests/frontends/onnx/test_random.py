"""Compares random graphs with Q and DQ anywhere with ONNX Runtime without fusion: every output must be equal.

All scales are powers of two, so that float32 is exact, and any difference is an error.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto

import qfmt
from networks.onnx_models import node, operators, proto, random_inputs
from qfmt.rules import violations
from support.examples import examples
from support.onnx_witness import runtime

f32 = np.float32
SHAPE = [2, 4, 6, 6]
KINDS = {
    TensorProto.UINT8: np.uint8,
    TensorProto.INT8: np.int8,
    TensorProto.INT16: np.int16,
    TensorProto.UINT16: np.uint16,
}


class Network:
    """A graph of random nodes; all its tensors have the same shape."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.rng = np.random.default_rng(draw(st.integers(0, 2**32)))
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Any] = {}
        self.real = ["x"]
        self.short = ["x"]
        """Real tensors with so few bits that their products are exact in float32."""
        self.integers: dict[str, tuple[str, int]] = {}
        """Quantized tensor → its quantization parameters, its element type."""
        self.grids: dict[str, int] = {}
        self.count = 0

    def name(self, what: str) -> str:
        self.count += 1
        return f"{what}{self.count}"

    def pick(self, of: list[str]) -> str:
        """A random one; later ones are more likely."""
        return of[-1 - min(self.draw(st.integers(0, 3)), len(of) - 1)]

    def add(self, operator: str, inputs: list[str], **attributes: Any) -> str:
        result = self.name("t")
        self.nodes.append(node(operator, inputs, [result], **attributes))
        self.real.append(result)
        return result

    def grid(self) -> str:
        """New or existing quantization parameters."""
        if self.grids and self.draw(st.booleans()):
            return self.pick(list(self.grids))
        kind = self.draw(st.sampled_from(list(KINDS)[: 2 if self.draw(st.integers(0, 3)) else 4]))
        limits, name = np.iinfo(KINDS[kind]), self.name("g")
        point = self.draw(st.sampled_from([limits.min, limits.min + 1, 0, (limits.min + limits.max) // 2, limits.max]))
        self.constants[f"{name}.s"] = f32(2.0 ** self.draw(st.integers(-6, -2)))
        self.constants[f"{name}.z"] = KINDS[kind](point)
        self.grids[name] = kind
        return name

    def quantize(self) -> None:
        grid, result = self.grid(), self.name("q")
        self.nodes.append(node("QuantizeLinear", [self.pick(self.real), f"{grid}.s", f"{grid}.z"], [result]))
        self.integers[result] = grid, self.grids[grid]

    def dequantize(self) -> None:
        if not self.integers:
            self.quantize()
        source = self.pick(list(self.integers))
        grid = self.integers[source][0]
        if self.draw(st.integers(0, 5)) == 0:  # the same integers with other parameters
            like = [name for name, kind in self.grids.items() if kind == self.integers[source][1]]
            grid = self.pick(like)
        result = self.add("DequantizeLinear", [source, f"{grid}.s", f"{grid}.z"])
        if self.integers[source][1] in (TensorProto.UINT8, TensorProto.INT8):
            self.short.append(result)

    def convolution(self) -> None:
        name, channels = self.name("w"), self.draw(st.booleans())
        self.constants[name] = self.rng.integers(-20, 21, (4, 4, 3, 3)).astype(np.int8)
        powers = -self.rng.integers(4, 8, 4 if channels else ())
        self.constants[f"{name}.s"] = (2.0**powers).astype(f32)
        self.constants[f"{name}.z"] = np.zeros(powers.shape, np.int8)
        self.nodes.append(node("DequantizeLinear", [name, f"{name}.s", f"{name}.z"], [f"{name}.d"], axis=0))
        bias = []
        if self.draw(st.booleans()):
            bias = [f"{name}.b"]
            self.constants[f"{name}.b"] = (self.rng.integers(-64, 65, 4) / 64).astype(f32)
        self.add("Conv", [self.pick(self.short), f"{name}.d", *bias], pads=[1, 1, 1, 1])

    def clip(self) -> None:
        low, high = sorted(self.draw(st.tuples(st.integers(-40, 40), st.integers(-40, 40))))
        self.constants[low_name := self.name("low")] = f32(low / 8)
        self.constants[high_name := self.name("high")] = f32(high / 8)
        self.add("Clip", [self.pick(self.real), low_name, high_name if self.draw(st.booleans()) else ""])

    def move(self) -> None:
        """A move and its inverse, which keep the shape."""
        first = self.add("Transpose", [self.pick(self.real)], perm=[0, 2, 3, 1])
        self.real.remove(first)
        self.add("Transpose", [first], perm=[0, 3, 1, 2])

    def integer_move(self) -> None:
        if not self.integers:
            self.quantize()
        source, result = self.pick(list(self.integers)), self.name("q")
        self.nodes.append(node("Transpose", [source], [result], perm=[1, 0, 2, 3]))
        self.nodes.append(node("Transpose", [result], [f"{result}b"], perm=[1, 0, 2, 3]))
        self.integers[f"{result}b"] = self.integers[source]

    def step(self) -> None:
        operator = self.draw(st.sampled_from(STEPS))
        if operator in ("quantize", "dequantize", "convolution", "clip", "move", "integer_move"):
            getattr(self, operator)()
        elif operator == "Mul":
            self.add(operator, [self.pick(self.short), self.pick(self.short)])
        elif operator in ("Add", "Sub", "Max"):
            self.add(operator, [self.pick(self.real), self.pick(self.real)])
        elif operator == "MaxPool":
            self.add(operator, [self.pick(self.real)], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        elif operator == "AveragePool":
            self.add(operator, [self.pick(self.short)], kernel_shape=[2, 2], pads=[0, 0, 1, 1], count_include_pad=1)
        else:
            self.add(operator, [self.pick(self.real)])

    def model(self) -> onnx.ModelProto:
        ends = dict.fromkeys([self.real[-1], *(self.pick(self.real) for _ in range(self.draw(st.integers(0, 2))))])
        outputs = {name: TensorProto.FLOAT for name in ends if name != "x"}
        if self.integers and self.draw(st.booleans()):
            name = self.pick(list(self.integers))
            outputs[name] = self.integers[name][1]
        return proto(self.nodes, {"x": (TensorProto.FLOAT, SHAPE)}, outputs, self.constants)


STEPS = [
    *("quantize", "dequantize", "dequantize", "convolution", "clip", "move", "integer_move"),
    *("Add", "Mul", "Sub", "Max", "MaxPool", "AveragePool", "Relu", "Neg", "Identity"),
]


@st.composite
def networks(draw: Any) -> onnx.ModelProto:
    made = Network(draw)
    for _ in range(draw(st.integers(3, 14))):
        made.step()
        if draw(st.integers(0, 2)) == 0:
            made.quantize()
            made.dequantize()
    made.add("Relu", [made.real[-1]])
    return made.model()


def test_random_graphs_compute_what_onnx_runtime_computes() -> None:
    equal = folded = 0

    @examples(50)
    @given(source=networks(), seed=st.integers(0, 2**32))
    def compare(source: onnx.ModelProto, seed: int) -> None:
        nonlocal equal, folded
        inputs = {name: (np.rint(x * 16) / 16).astype(f32) for name, x in random_inputs(source, seed).items()}
        model = qfmt.convert(source)
        assert not violations(model)
        got = model.run(inputs)
        for value, want in zip(source.graph.output, runtime(source, inputs), strict=True):
            y = got[value.name]
            assert (y.dtype, y.shape) == (want.dtype, want.shape)
            np.testing.assert_array_equal(y, want)
            assert y.size
            equal += y.size
        folded += sum("@" in each for each in operators(model))

    compare()
    print(f"{equal} outputs, all equal, {folded} operators on integers")
    assert folded
