"""What the arguments of torch calls say: numbers, quantized tensors, and the grids of results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...budget import Budget
from ...errors import SourceError
from ...model import DTYPES, Quantization
from ...ops import Trait, has
from ..stored import StoredTensor
from .emitting import Emitter
from .promotion import operands
from .values import Refine, TensorValue, narrowest


class ArgumentReader(Emitter):
    """Takes the arguments of the present call for what the call needs, or says what is wrong with them."""

    def __init__(self, engine: str, budget: Budget) -> None:
        super().__init__(engine, budget)
        self.fused_relu = False
        """Whether the present call ends in a ReLU, as "quantized::conv2d_relu" does."""

    def number(self, value: Any) -> int | float:
        """A scalar that is known now: a number, or a stored tensor of one element."""
        if isinstance(value, StoredTensor):
            value = value.item()
        if isinstance(value, TensorValue) and self.is_constant(value):
            value = self.tensors[value.key].array.reshape(-1)[0].item()
        if isinstance(value, bool | int | float):
            return value
        raise SourceError(f"{self.target} takes a number here that is known only at run time")

    def whole(self, value: Any) -> int:
        """A whole number that is known now."""
        number = self.number(value)
        if number != number or abs(number) == float("inf") or int(number) != number:
            raise SourceError(f"{self.target} is called with {number} where an integer is needed")
        return int(number)

    def flag(self, value: Any) -> int:
        """A truth value that is known now, as the attribute of an operator: 0 or 1."""
        return int(bool(self.number(value)))

    def quantized(self, value: Any) -> tuple[TensorValue, Quantization]:
        """An argument that has to be quantized, and its quantization."""
        x = self.tensor(value)
        if x.quantization is not None:
            return x, x.quantization
        what = "gets an input that is not quantized"
        if x.origin:
            in_python = f"in Python, input_quantization={{{x.origin!r}: (scale, zero_point, 'uint8')}}"
            hint = f"declare a quantized input with --input-quantization {x.origin}=SCALE,ZERO_POINT; {in_python}"
            raise SourceError(what, hint=hint)
        raise SourceError(what)

    def indices(self, value: Any) -> TensorValue:
        """An argument that counts rows or elements: integers. An input becomes int64 by that."""
        x = self.tensor(value)
        if DTYPES[x.dtype].is_integer and x.quantization is None:
            return x
        source = self._before_moves(x.key)
        if source in self.inputs:
            raise Refine(self._wanted[source], self.tensors[source].shape, dtype="int64")
        raise SourceError(f"gets {x.dtype} where integers are needed to count with")

    def operands(self, a: Any, b: Any) -> tuple[TensorValue, TensorValue]:
        """Two operands in the type in which torch computes with them: a Python number takes that of the tensor beside
        it, if it is of that kind (truth value, integer, float); of two tensors, one without dimensions does so."""
        return operands(self, a, b)

    def scalar_like(self, value: TensorValue, number: float) -> TensorValue:
        """A scalar constant of the dtype of a tensor, on its grid if it has one."""
        if value.quantization is None:
            return self.constant(np.array(number, value.dtype))
        scalar = self.constant(np.array(number, np.float32))
        result: TensorValue = self.emit("QuantizeLinear", [scalar], quantization=value.quantization, dtype=value.dtype)
        return result

    def quantization(self, scale: Any, zero_point: Any, dtype: str) -> Quantization:
        """Of an output, with the fused ReLU of the present call as its quant_min."""
        scale, zero_point = float(self.number(scale)), int(self.number(zero_point))
        low = zero_point if self.fused_relu else None
        return Quantization.per_tensor(scale, zero_point, dtype, quant_min=low, scale_dtype=narrowest(scale))

    @staticmethod
    def grid(value: TensorValue) -> Quantization | None:
        """The grid of a tensor for a result that is put on it: over the whole range, whatever ReLU it had."""
        if value.quantization is None:
            return None
        limits = DTYPES[value.dtype]
        return replace(value.quantization, quant_min=limits.minimum, quant_max=limits.maximum)

    def _before_moves(self, key: str) -> str:
        """The tensor whose elements these are: followed back through operators that only move them."""
        while key in self.makers and has(self.makers[key], Trait.MOVES):
            self.budget.spend()
            key = self.makers[key].inputs[0]
        return key
