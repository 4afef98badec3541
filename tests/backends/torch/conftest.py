"""What several tests of modules need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def engine_is_left_alone() -> Iterator[None]:
    """Whatever a module computes with, torch's global setting is the caller's."""
    torch.backends.quantized.engine = "fbgemm"
    yield
    assert torch.backends.quantized.engine == "fbgemm"
