"""A page in headless Chromium, which fails the test if it reports an error or asks the network for anything."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run",
)  # fmt: skip


def chromium() -> str:
    """The browser of the system; "" without one."""
    return next(filter(None, map(shutil.which, NAMES)), "")


@contextmanager
def opened(browser: Any, path: Path, *, width: int = 1440, height: int = 900, **context: Any) -> Iterator[Any]:
    """The page of a file, once it is shown. Errors of the page and requests are failures at the end."""
    errors: list[str] = []
    requests: list[str] = []
    page = browser.new_page(viewport={"width": width, "height": height}, **context)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
    page.on("request", lambda request: requests.append(request.url))
    page.set_default_timeout(60_000)
    try:
        page.goto(path.as_uri())
        page.wait_for_selector("body.ready")
        yield page
        assert errors == []
        assert [url for url in requests if not url.startswith(("data:", "blob:"))] == [path.as_uri()]
    finally:
        page.close()
