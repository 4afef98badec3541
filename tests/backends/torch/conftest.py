"""Fixtures that multiple tests of modules need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def engine_is_left_alone() -> Iterator[None]:
    """Assert that a module does not change torch's global engine."""
    torch.backends.quantized.engine = "fbgemm"
    yield
    assert torch.backends.quantized.engine == "fbgemm"
