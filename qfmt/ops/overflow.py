"""Sums of products as x86 kernels compute them on processors without VNNI instructions.

Such kernels multiply 8-bit integers with `vpmaddubsw`, which adds two neighbouring products of an unsigned and a signed
factor in int16, with saturation. Everything else is exact. So such a kernel adds Σ (clip(p) - p) over its pairs p, for
any zero points: they are subtracted from the finished sums. A product alone fits: |255 · -128| < 2¹⁵.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import prod

import numpy as np

from ..arrays import Array

INT16 = np.iinfo(np.int16)


class Kernel(ABC):
    """A kernel's effect on sums of products of stored integers."""

    channels_last = True
    """The terms of a convolution run over its taps, and for each tap over the channels; else vice versa."""
    fill = 1
    """The channels of each tap are padded with zeros to a multiple of this."""
    halves = range(0)
    """For a matrix product with a number of terms in this range, halves are padded to equal length."""

    @abstractmethod
    def compute(self, left: Array, right: Array) -> Array:
        """Of left [M, K] · right [P, K], one uint8 and the other int8, in int32: its correction of each sum, [M, P]."""

    @abstractmethod
    def apply(self, exact: Array, found: Array) -> Array:
        """The sums, from the exact ones and the corrections of `compute`, summed over the parts of a sum."""

    def __call__(self, left: Array, right: Array) -> Array:
        """`compute` of left [..., M, K, taps] · right [..., K, taps, P], summed over K and taps: [..., M, P]."""
        batch = np.broadcast_shapes(left.shape[:-3], right.shape[:-3])
        found = np.zeros((*batch, left.shape[-3], right.shape[-1]), np.int32)
        if {left.dtype.name, right.dtype.name} == {"uint8", "int8"}:
            a, b = (self._terms(each).astype(np.int32) for each in (left, np.moveaxis(right, -1, -3)))
            a, b = (np.broadcast_to(each, (*batch, *each.shape[-2:])) for each in (a, b))
            for index in np.ndindex(*batch):
                found[index] = self.compute(a[index], b[index])
        return found

    def _terms(self, factors: Array) -> Array:
        """[..., K, taps] → [..., terms], in the order of the kernel."""
        if factors.shape[-1] == 1 and (size := factors.shape[-2]) in self.halves and (size + 1) // 2 % 2:
            factors = np.insert(factors, (size + 1) // 2, 0, axis=-2)
        if self.channels_last:
            factors = factors.swapaxes(-1, -2)
            factors = _filled(factors, self.fill)
        return factors.reshape(*factors.shape[:-2], prod(factors.shape[-2:]))


@dataclass(frozen=True)
class PairSums(Kernel):
    """A kernel that sums pairs of neighbouring terms in int16."""

    channels_last: bool = True
    fill: int = 1
    halves: range = range(0)

    def compute(self, left: Array, right: Array) -> Array:
        """Σ (clip(p) - p)"""
        total = np.zeros((len(left), len(right)), np.int32)
        sizes = np.abs(left), np.abs(right)
        most = [each.max(0, initial=0) for each in sizes]
        for k in 2 * _exceeds(*(each[: each.size // 2 * 2] for each in most)).nonzero()[0]:
            pair = slice(k, k + 2)  # few rows have one that can exceed int16 with the largest of the other factors
            rows = _exceeds(sizes[0][:, pair], most[1][pair]).nonzero()[0]
            columns = _exceeds(sizes[1][:, pair], most[0][pair]).nonzero()[0]
            a, b = left[rows, pair], right[columns, pair]
            pairs = a[:, :1] * b[:, 0] + a[:, 1:] * b[:, 1]
            total[np.ix_(rows, columns)] += np.clip(pairs, INT16.min, INT16.max) - pairs
        return total

    def apply(self, exact: Array, found: Array) -> Array:
        return exact + found

    def order(self, channels: int, taps: int) -> bytes:
        """A key of the pairing of terms: equal for kernels with the same pairs for that many terms."""
        numbers = _filled(self._terms(np.arange(1, channels * taps + 1).reshape(1, channels, taps)), 2).reshape(-1, 2)
        return numbers[numbers.any(1)].tobytes()

    def pairs(self, weights: Array) -> tuple[Array, Array]:
        """The sums of the positive and of the negative 8-bit weights [M, K, taps] of each pair, [M, pairs]."""
        terms = _filled(self._terms(weights), 2)
        zeros = np.zeros_like(terms)  # a dozen times as fast as the number 0
        plus, minus = (part(terms, zeros, order="C").view(np.uint8) for part in (np.maximum, np.minimum))
        return _pair_sums(plus), -_pair_sums(-minus)


def _pair_sums(magnitudes: Array) -> Array:
    """The sums of neighbouring bytes, int16: the two bytes of a word, whichever comes first, are added fastest."""
    words = magnitudes.view(np.uint16)
    return ((words & 255) + (words >> 8)).view(np.int16)


def farthest(pairs: tuple[Array, Array], low: int, high: int) -> Array:
    """The largest |sum of a pair| of products with integers of low..high, [M]."""
    plus, minus = pairs
    if low:
        plus, minus = plus.astype(np.int32), minus.astype(np.int32)
        plus, minus = high * plus + low * minus, low * plus + high * minus
        high = 1
    if plus.shape[-1] < 32:  # NumPy reduces many short rows in twenty times the time of a few long columns
        plus, minus = np.asfortranarray(plus), np.asfortranarray(minus)
    most, least = plus.max(-1, initial=0).astype(np.int32), minus.min(-1, initial=0).astype(np.int32)
    largest: Array = high * np.maximum(most, -least)
    return largest


class AnyPair(Kernel):
    """Not a real kernel: sums stay exact, and `found` records where any two of their products together exceed int16."""

    def __init__(self) -> None:
        self.found: list[Array] = []

    def compute(self, left: Array, right: Array) -> Array:
        top, low = (np.zeros((2, len(left), len(right)), np.int32) for _ in range(2))
        for k in range(left.shape[1]):
            product = left[:, k, None] * right[:, k]
            top[1] = np.maximum(top[1], np.minimum(top[0], product))
            top[0] = np.maximum(top[0], product)
            low[1] = np.minimum(low[1], np.maximum(low[0], product))
            low[0] = np.minimum(low[0], product)
        return (top.sum(0) > INT16.max) | (low.sum(0) < INT16.min)

    def apply(self, exact: Array, found: Array) -> Array:
        self.found.append(found != 0)
        return exact


def _filled(factors: Array, multiple: int) -> Array:
    """The last dimension padded with zeros to a multiple."""
    size = factors.shape[-1]
    if size % multiple == 0:
        return factors
    filled = np.zeros((*factors.shape[:-1], size + -size % multiple), factors.dtype)
    filled[..., :size] = factors
    return filled


def _exceeds(sizes: Array, others: Array) -> Array:
    """[..., 2 n] → [..., n]: whether the sum of two neighbouring products can exceed int16."""
    products = sizes * others
    reached: Array = products[..., ::2] + products[..., 1::2] > INT16.max
    return reached


_kernel: ContextVar[Kernel | None] = ContextVar("kernel", default=None)


@contextmanager
def computed_by(kernel: Kernel | None) -> Iterator[None]:
    """A context in which sums of products of 8-bit integers are those of this kernel; None: exact."""
    token = _kernel.set(kernel)
    try:
        yield
    finally:
        _kernel.reset(token)


def as_computed(exact: Array, found: Callable[[Kernel], Array]) -> Array:
    """Exact sums, or those of the current kernel, given its corrections for the stored factors."""
    kernel = _kernel.get()
    return exact if kernel is None or not exact.size else kernel.apply(exact, found(kernel).reshape(exact.shape))


def of_product(kernel: Kernel, left: Array, right: Array) -> Array:
    """A kernel's corrections of the matrix product left [..., M, K] · right [..., K, P]."""
    left, right = np.atleast_2d(left), right if right.ndim > 1 else right[:, None]
    return kernel(left[..., None], right[..., None, :])
