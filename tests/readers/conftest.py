"""Fixtures of the tests of readers."""

from __future__ import annotations

import pytest

from support.js_reader import Reader


@pytest.fixture(scope="session")
def reader() -> Reader:
    """The reader in JavaScript."""
    return Reader()
