"""Compares the table "what converts to what" of README.md with the conversions that pass (tools/conversions.py)."""

from __future__ import annotations

import json

import pytest

import conversions

LINES = conversions.written(conversions.README.read_text(encoding="utf-8")).splitlines()


@pytest.mark.parametrize("name", conversions.ROWS)
def test_rows_match_conversions(name: str) -> None:
    found = conversions.row(name)
    print(found)
    assert found in LINES, "python tools/conversions.py writes the table anew"
    assert "| no |" not in found


def test_the_table_has_no_other_rows() -> None:
    assert [line.split(" | ")[0].removeprefix("| ") for line in LINES[2:]] == [*conversions.ROWS]
    peers = json.loads(conversions.PEERS.read_text(encoding="utf-8"))
    assert peers["rows"].keys() == {name for name in conversions.ROWS if name.startswith("ONNX")}
    assert all(name in LINES[0] and version in LINES[0] for name, version in peers["versions"].items())
