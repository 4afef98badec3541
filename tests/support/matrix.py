"""The networks of `networks.pytorch` as parameters of tests: in one mode, by turns; in its other mode each is slow."""

from __future__ import annotations

from typing import Any

import pytest

from networks.pytorch import NETWORKS, cells

SHORT = [(name, network.modes[turn % len(network.modes)]) for turn, (name, network) in enumerate(NETWORKS.items())]

CELLS: list[Any] = [
    pytest.param(cell, marks=() if cell in SHORT else pytest.mark.slow, id="-".join(cell)) for cell in cells()
]
"""(name, mode)"""

FX: list[Any] = [
    pytest.param(name, marks=() if (name, "fx") in SHORT else pytest.mark.slow)
    for name, network in NETWORKS.items()
    if "fx" in network.modes
]
"""Names of networks in mode fx."""
