"""Fixtures for the tests of the page: a browser, and the page built by npm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.browser import PROGRAMS, Browser, installed
from support.page_package import PagePackage


@pytest.fixture(scope="session", params=["chromium", pytest.param("firefox", marks=pytest.mark.slow)])
def browser(request: pytest.FixtureRequest) -> Iterator[Browser]:
    api = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    if not installed(request.param):
        pytest.skip(f"needs {request.param}: apt-get install {PROGRAMS[request.param][0]}")
    with api.sync_playwright() as playwright:
        started = Browser(playwright, request.param)
        yield started
        started.close()


@pytest.fixture(scope="session")
def package() -> PagePackage:
    return PagePackage()
