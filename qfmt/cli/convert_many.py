"""`qfmt convert SOURCES… --out FOLDER`: many sources into an archive."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..archive.filling import RESULTS, Filled, fill
from ..archive.sources import find
from ..archive.workers import Limits
from ..errors import QfmtError
from ..file.sharding import size_of
from ..notation import how_many, in_shell, size
from ..urls import Place
from .interruption import will_say
from .output import Column, as_json, line, table
from .progress import working

if TYPE_CHECKING:
    from ..archive.manifest import Entry

FAILED = 1
MAKER = "qfmt.cli.conversion:make"


class How(NamedTuple):
    """The number of processes, the address of a Dask cluster, and what a process may take: bytes, and seconds."""

    jobs: int
    dask: str
    memory: int | None
    timeout: float | None


def convert_many(
    places: Sequence[str],
    folder: Place,
    how: How,
    options: Mapping[str, Any],
    *,
    quiet: bool,
    json_: bool,
) -> int:
    """Fill an archive, and say what became of the sources; the exit status."""
    begin = time.monotonic()
    with working("looking for sources"):
        sources, left_out = find(places, folder)
    failed = 0
    will_say(f"{folder} keeps what was converted; run the same command again to continue")
    with working("converting"):

        def told(entry: Entry) -> None:
            nonlocal failed
            failed += bool(entry.error)
            if entry.error:
                line(f"qfmt: error: {entry.source}: {entry.error}", err=True)

        limits = Limits.of(how.memory, how.timeout, min(how.jobs, len(sources)))
        workers: dict[str, Any] = {"jobs": how.jobs, "dask": how.dask, "limits": limits}
        filled = fill(folder, sources, maker=MAKER, options=options, told=told, **workers)
    for name, former in filled.replaced.items():
        line(f"qfmt: note: {name}: replaces the model of another file, {former}", err=True)
    if json_:
        entries = [asdict(filled.manifest.entries[name]) | {"result": word} for name, word in filled.results.items()]
        as_json({"archive": str(folder), "left_out": left_out, "entries": entries})
    elif not quiet:
        _show(filled, left_out, time.monotonic() - begin)
    return FAILED if failed else 0


def _show(filled: Filled, left_out: int, seconds: float) -> None:
    manifest, results, _ = filled
    counts = Counter(results.values())
    rows = [[word, f"{counts[word]:,}", meaning] for word, meaning in RESULTS.items() if counts[word]]
    table([Column("result"), Column("sources", right=True), Column("")], rows)
    if left_out:
        line(f"left out: {how_many(left_out, 'file')} in folders (not models)")
    entries = [manifest.entries[name] for name in results]
    files = {manifest.place(entry) for entry in entries if entry.content_id}
    local = [file for file in files if isinstance(file, Path)]
    total = ""
    with suppress(QfmtError, OSError):  # one that cannot be read
        total = f", {size(sum(map(size_of, local)))}" if len(local) == len(files) else ""
    folder = manifest.folder
    line()
    line(f"write  {folder}, {how_many(len(files), 'file')}{total}  {seconds:.2f} s")
    line()
    line(f"next: {in_shell('qfmt inspect', str(folder))}")
