"""Pages in a headless Chromium or Firefox of the system; a test fails if one reports an error, or asks the network."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAMS = {"chromium": ("chromium", "chromium-browser", "google-chrome"), "firefox": ("firefox-esr", "firefox")}
QUIET = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run",
)  # fmt: skip


def installed(name: str) -> str:
    """The path of a browser; "" without one."""
    return next(filter(None, map(shutil.which, PROGRAMS[name])), "")


class Browser:
    """Chromium or Firefox, as Playwright drives it."""

    def __init__(self, playwright: Any, name: str) -> None:
        self._playwright = playwright
        self.name = name
        self._started: dict[str, Any] = {}
        self._folder = tempfile.TemporaryDirectory()
        self.downloads = Path(self._folder.name)

    def new_page(self, color_scheme: str, **context: Any) -> Any:
        """An empty page that prefers light or dark. Firefox takes this for the whole browser only."""
        of = color_scheme if self.name == "firefox" else ""
        if of not in self._started:
            self._started[of] = self._launch(dark=of == "dark")
        return self._started[of].new_page(color_scheme=color_scheme, **context)

    def _launch(self, *, dark: bool) -> Any:
        both = {"executable_path": installed(self.name), "downloads_path": self.downloads}
        if self.name == "chromium":
            return self._playwright.chromium.launch(args=[*QUIET], **both)
        preferred = {"layout.css.prefers-color-scheme.content-override": 0 if dark else 1}
        # The channel is WebDriver BiDi, which every Firefox speaks; without it, Playwright needs a Firefox of its own.
        return self._playwright.firefox.launch(channel="moz-firefox", firefox_user_prefs=preferred, **both)

    def close(self) -> None:
        for each in self._started.values():
            each.close()
        self._folder.cleanup()


@contextmanager
def opened(
    browser: Browser, path: Path, *, width: int = 1440, height: int = 900, color_scheme: str = "light", **context: Any
) -> Iterator[Any]:
    """The page of a file, once it is shown. Errors of the page and requests are failures at the end."""
    errors: list[str] = []
    requests: list[str] = []
    page = browser.new_page(color_scheme, viewport={"width": width, "height": height}, **context)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
    page.on("request", lambda request: requests.append(request.url))
    page.set_default_timeout(60_000)
    try:
        page.goto(path.as_uri())
        page.wait_for_selector("body.ready")
        yield page
        foreign = [url for url in requests if not url.startswith(("data:", "blob:", path.as_uri()))]
        assert not errors + foreign, errors + foreign
    finally:
        page.close()
