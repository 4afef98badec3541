"""Fixtures for the tests of the page: a browser, and the page built by npm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from support.browser import QUIET, chromium
from support.page_package import PagePackage


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    if not chromium():
        pytest.skip("needs Chromium: apt-get install chromium")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=[*QUIET])
        yield started
        started.close()


@pytest.fixture(scope="session")
def package() -> PagePackage:
    return PagePackage()
