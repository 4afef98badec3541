"""Pools, window by window, and windows that are far larger than the input."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from qfmt.errors import QfmtError
from qfmt.ops import OPERATORS
from qfmt.ops.geometry import Window
from support.examples import examples

f32 = np.float32


@examples(300)
@given(
    window=st.builds(
        Window,
        st.integers(1, 7),
        st.integers(1, 4),
        st.integers(1, 4),
        st.integers(0, 9),
        st.integers(0, 9),
        st.booleans(),
    ),
    size=st.integers(0, 9),
)
def test_each_position_meets_its_elements_in_order(window: Window, size: int) -> None:
    try:
        count = window.positions(size)
    except QfmtError:
        assume(False)
    starts = [position * window.stride - window.head for position in range(count)]
    wanted = [[at for k in range(window.kernel) if 0 <= (at := start + k * window.dilation) < size] for start in starts]
    found: list[list[int]] = [[] for _ in starts]
    pairs = window.meetings(size)
    for positions, elements in pairs:
        met = range(size)[elements]
        for index, position in enumerate(range(count)[positions]):
            found[position].append(met[index] if len(met) > 1 else met[0])
    assert found == wanted
    assert len(pairs) <= min(window.kernel, size)


@pytest.mark.parametrize("kernel", [5, 1 << 21])
def test_windows_that_are_mostly_padding(kernel: int) -> None:
    """Work that grows with the square of the kernel would not end here."""
    x, pads = np.array([3, -1, 2, 7], f32).reshape(1, 1, 4, 1), (kernel - 1, 0) * 2
    window = {"kernel_shape": (kernel, 1), "pads": pads, "strides": (1, 1), "dilations": (1, 1), "ceil_mode": 0}
    largest = OPERATORS["MaxPool"].reference(x, **window)
    assert largest.reshape(-1).tolist() == [3.0] * 3 + [7.0] * kernel
    means = OPERATORS["AveragePool"].reference(x, **window, count_include_pad=0)
    wanted = [3, 1, f32(4) / f32(3), *[2.75] * (kernel - 3), f32(8) / f32(3), 4.5, 7]
    np.testing.assert_array_equal(means.reshape(-1), np.array(wanted, f32))


def test_the_sign_of_a_zero_is_that_of_the_sum() -> None:
    """Padding adds 0: -0 stays where a window has none."""
    x = np.full((1, 1, 3), -0.0, f32)
    window = {"kernel_shape": (2,), "pads": (1, 0), "strides": (1,), "dilations": (1,), "ceil_mode": 0}
    found = OPERATORS["AveragePool"].reference(x, **window, count_include_pad=0)
    assert np.signbit(found).tolist() == [[[False, True, True]]]
