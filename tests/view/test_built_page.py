"""The built page, which is part of the package, is that of the sources."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256

from support.page_package import PagePackage
from support.paths import ROOT

PAGE = ROOT / "qfmt" / "view" / "page.html"


def test_the_page_in_the_package_is_current(package: PagePackage) -> None:
    assert package.build() == PAGE.read_bytes(), "npm ci && npm run build in readers/page writes it anew"


def test_the_policy_names_the_script_and_the_style() -> None:
    """A browser runs nothing else, whatever the names in a file are."""
    page = PAGE.read_text(encoding="utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy[1].split(";"))
    for kind, tag in (("script-src", "script"), ("style-src", "style")):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert rules[kind] == f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"
    assert rules["default-src"] == "'none'"


def test_it_carries_the_license_of_what_it_contains() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert "Contains @dagrejs/dagre" in page
    assert "Contains @dagrejs/dagre" in page and "Contains fflate" in page
    assert page.count("Permission is hereby granted, free of charge") == 2
