"""A model as one HTML page, as a picture, and in Model Explorer: `qfmt view`.

`description` says everything that a page shows, as JSON; the page itself is built from readers/page.
"""

from .page import Page, page

__all__ = ["Page", "page"]
