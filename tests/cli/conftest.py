"""Fixtures for the tests of commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command_line import tiny_model


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.qfb"
    tiny_model().save(path)
    return path
