"""The folders of sources and of the archive."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    return tmp_path / "sources"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tmp_path / "archive"
