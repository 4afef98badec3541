"""The folders of sources and of the archive."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.archives import digits


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    return tmp_path / "sources"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture
def four(sources: Path) -> Path:
    """Four sources of three models, in a folder with a text."""
    for name, number in {"a.pt": 1, "b.pt": 2, "sub/c.pt": 1, "sub/d.pt": 3}.items():
        digits(sources / name, number)
    (sources / "README.md").write_text("models")
    return sources
