"""`qfmt inspect FOLDER`: the models of an archive, a line each."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import qfmt

from ..archive.manifest import Manifest
from ..errors import QfmtError
from ..file import sharding
from ..notation import NOTHING, how_many, size
from ..urls import Place, Url, size_of
from .facts import counts, origin
from .output import Column, as_json, line, table
from .progress import working
from .source import limited

if TYPE_CHECKING:
    from ..archive.manifest import Entry

SHOWN = 12
"""The digits of a content id that are shown; `--json` has all."""

COLUMNS = [
    Column("source", color="cyan"),
    Column("from"),
    Column("engine"),
    Column("nodes", right=True),
    Column("parameters", right=True),
    Column("size", right=True),
    Column("content id"),
    Column("file, or why there is none"),
]


def inspect_archive(folder: Place, wanted: str, json_: bool) -> None:
    """One line for each source whose line contains the wanted text, in any case; then how many they are."""
    manifest = Manifest(folder)
    known: dict[str, dict[str, Any]] = {"": {}}
    rows, listed = [], []
    with working(f"reading {folder}"):
        for entry in manifest.entries.values():
            path = manifest.place(entry)
            key = str(path) if entry.content_id else ""
            if key not in known:  # a file is read once
                known[key] = _facts(path)
            facts = asdict(entry) | known[key]
            row = _row(entry, facts)
            if wanted.lower() in " ".join(row).lower():
                if json_:
                    listed.append(facts)
                else:
                    rows.append(row)
    if json_:
        as_json({"archive": str(folder), "models": listed})
    else:
        table(COLUMNS, rows)
        line()
        of = f"{len(rows):,} of " if wanted else ""
        line(f"{folder}: {of}{how_many(len(manifest.entries), 'source')}")


def _facts(file: Place) -> dict[str, Any]:
    """What is in a file of the archive; why it cannot be read, if it cannot."""
    try:
        with limited(file), qfmt.load(file) as model:
            total = counts(model.graph)
            return {
                "from": origin(model.source),
                "engine": model.engine,
                "nodes": total["nodes"],
                "parameters": total["parameters"],
                "bytes": size_of(file) if isinstance(file, Url) else sharding.size_of(file),
            }
    except QfmtError as error:
        return {"error": error.what}


def _row(entry: Entry, facts: dict[str, Any]) -> list[str]:
    if "nodes" not in facts:
        return [entry.source, *[NOTHING] * (len(COLUMNS) - 2), facts["error"] or "not converted yet"]
    numbers = f"{facts['nodes']:,}", f"{facts['parameters']:,}", size(facts["bytes"])
    file = f"{entry.file}; not converted again: {entry.error}" if entry.error else entry.file
    return [entry.source, facts["from"], facts["engine"] or NOTHING, *numbers, entry.content_id[:SHOWN], file]
