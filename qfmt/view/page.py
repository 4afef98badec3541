"""The page: the built viewer of readers/page, with the description of a model in it."""

from __future__ import annotations

import gzip
import json
from base64 import b64encode
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ..file.replacing import temporary_folder
from .comparison import of_report, of_two
from .description import describe

if TYPE_CHECKING:
    from os import PathLike

    from ..compare import Report
    from ..model import Model

MARK = "<!--model-->"
"""The place in the built page where the model goes."""


@dataclass(frozen=True, slots=True)
class Page:
    """A self-contained HTML page; at the end of a cell of a notebook it shows itself.

    `differs`: whether what it compares differs, or is wrong.
    """

    html: str
    differs: bool = False

    def save(self, path: str | PathLike[str]) -> None:
        """Write it to a file. Raises DestinationError if that cannot be written."""
        from ..file.replacing import replacing

        with replacing(str(path)) as file:
            file.write(self.html.encode())

    def _repr_html_(self) -> str:
        style = "width:100%;height:640px;border:1px solid #8886;border-radius:6px"
        return f'<iframe title="qfmt view" style="{style}" srcdoc="{escape(self.html)}"></iframe>'


def page(
    model: Model,
    other: Model | None = None,
    report: Report | None = None,
    *,
    name: str = "model",
    other_name: str = "other",
    arrays: bool = False,
) -> Page:
    """A page that shows a model; against `other`, or with the `report` of `verify`, the differences.

    `arrays` embeds the `.qfb`: then the page can show values, and be saved as a file. Raises ValidityError if two
    models are to be compared and one breaks rules.
    """
    content = _file(model) if arrays else None
    found = describe(model, name, len(content) if content is not None else None)
    differs = False
    if other is not None:
        found["comparison"] = of_two(model, other, other_name)
        differs = not found["comparison"]["equal"]
    elif report is not None:
        differs = not report.ok
        found["comparison"] = of_report(model, report)
    parts = {"model": gzip.compress(_json(found), 9, mtime=0)} | ({} if content is None else {"file": content})
    blocks = "".join(  # base64 has no character that HTML knows: names of untrusted files cannot become markup
        f'<script type="text/plain" id="{key}-data">{b64encode(value).decode()}</script>\n'
        for key, value in parts.items()
    )
    before, _, after = files(__package__).joinpath("page.html").read_text(encoding="utf-8").partition(MARK)
    return Page(f"{before}{blocks}{after}", differs)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode("utf-8", "replace")


def _file(model: Model) -> bytes:
    """The model as a `.qfb`."""
    with temporary_folder() as folder:
        path = folder / "model.qfb"
        model.save(path)
        return path.read_bytes()
