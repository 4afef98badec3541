"""The site of the documentation: `python3 tools/dev.py docs`. Its source is the whole checkout, so that links between
pages also work where the pages lie."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import qfmt  # noqa: E402

project, author = "qfmt", "the authors of qfmt"
version = release = qfmt.__version__
project_copyright = author

extensions = ["generated", "myst_parser", "sphinx.ext.autodoc"]
root_doc = "docs/index"
include_patterns = [
    "docs/**.md",
    *("CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md", "spec.md", "schema/README.md"),
    *("readers/*/README.md", "tests/golden/1.0/README.md"),
]
exclude_patterns = [".*", "build", "dist", "qfmt", "tools", "**/node_modules", "**/__pycache__"]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4  # as GitHub makes them
suppress_warnings = ["misc.highlighting_failure"]  # blocks of text that look like code

default_role = "code"  # one backtick in a docstring
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True

html_theme = "furo"
html_title = f"qfmt {release}"
html_extra_path = ["site/index.html"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_permalinks_icon = "#"
html_static_path = ["site/style.css"]
html_css_files = ["style.css"]
pygments_style = "friendly"
pygments_dark_style = "monokai"

linkcheck_timeout = 20
linkcheck_anchors = False
