"""Make the conformance suite of the format, tests/golden/1.0; `--check` tests whether it is current.

    python tools/make_conformance.py            # rewrite it; files that no case makes are removed
    python tools/make_conformance.py --check    # exit 1 and name what differs

Small files, each with a JSON file of the same name that lists its contents: names, shapes, element types, integers,
the bits of floats, test vectors. The outputs of the vectors are computed twice, by qfmt and by
tools/conformance/evaluate.py, which shares no code with it; if they differ, nothing is written.
tests/golden/1.0/README.md explains how an author of another reader uses the suite.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from conformance import (  # noqa: E402
    altered,
    containers,
    distinguishing,
    dynamic,
    elements,
    evaluate,
    foreign,
    means,
    moves,
    products,
    refused,
    requantized,
    rescaling,
    resizing,
    roundings,
    tables,
    windows,
)
from conformance.networks import Case  # noqa: E402
from conformance.twin import text, twin  # noqa: E402
from qfmt import check, load, save  # noqa: E402
from qfmt.errors import FormatError  # noqa: E402
from qfmt.file.reader import Container  # noqa: E402
from qfmt.file.shards import Shards  # noqa: E402
from qfmt.model import Model  # noqa: E402

VERSION = "1.0"
FOLDER = ROOT / "tests" / "golden" / VERSION

LEVELS: dict[str, tuple[Callable[[], Iterator[Case]], ...]] = {
    "integer": (products.cases, windows.cases, rescaling.cases, tables.cases, moves.cases, resizing.nearest),
    "read": (containers.cases, foreign.cases),
    "float": (
        requantized.cases, means.cases, elements.cases, resizing.linear, dynamic.cases, distinguishing.cases,
        roundings.cases,
    ),
}  # fmt: skip
"""What a reader may claim: it reads files; it runs integer-only networks; it runs those with float rules."""


class Wrong(Exception):
    """A case that must not go into the suite."""


def make(folder: Path) -> int:
    """Write the suite into an empty folder; return the number of outputs that both evaluations agree on."""
    files: list[dict[str, Any]] = []
    compared = 0
    for level, sources in LEVELS.items():
        (folder / level).mkdir(parents=True)
        for case in sorted((case for source in sources for case in source()), key=lambda case: case.name):
            path = folder / level / f"{case.name}.qfb"
            if path.exists():
                raise Wrong(f"two cases are called {case.name}")
            compared += _write(case, level, path)
            files.append(_entry(path, level, about=case.about))
    files += _refused(folder / "refused")
    index = {"format": VERSION, "draft": True, "files": files}
    (folder / "index.json").write_text(text(index), encoding="utf-8")
    return compared


def _write(case: Case, level: str, path: Path) -> int:
    save(case.model, path, shard_size=case.shard_size)
    if case.rewrite is not None:
        path.write_bytes(case.rewrite(path.read_bytes()))
    if broken := check(path):
        raise Wrong(f"{path.name} breaks {broken[0]}")
    data = path.read_bytes()
    facts = {"name": case.name, "level": level, "about": case.about, "digest": data[64:96].hex()}
    said = twin(load(path), facts)
    path.with_suffix(".json").write_text(text(said), encoding="utf-8")
    return 0 if level == "read" else compare(said)


def _refused(folder: Path) -> Iterator[dict[str, Any]]:
    """Files that break one rule each; every reader checks those of the container."""
    folder.mkdir()
    sound = folder / "sound.qfb"

    def base(model: Model, shard_size: int | None = None) -> altered.Base:
        save(model, sound, shard_size=shard_size)
        return altered.Base(sound.read_bytes())

    models = altered.sound(), altered.integers(), altered.formulas(), altered.sums(), altered.values()
    plain = [base(model) for model in models]
    bases = refused.Bases(*plain, base(altered.sound(), 320))  # the last: its shards stay
    sound.unlink()
    for case in sorted(refused.cases(bases), key=lambda case: case.name):
        path = folder / f"{case.name}.qfb"
        if path.exists():
            raise Wrong(f"two cases are called {case.name}")
        path.write_bytes(case.data)
        for name, data in case.shards:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(data)
        if case.rule not in (found := rules_broken(path)):
            raise Wrong(f"refused/{case.name} breaks {', '.join(sorted(found)) or 'no rule'}, not {case.rule}")
        yield _entry(path, "refused", about=case.about, rule=case.rule, refused_by=case.by) | _digests(case.shards)


def rules_broken(path: Path) -> set[str]:
    """The rules by which a file is refused."""
    try:
        return {broken.rule for broken in check(path)}
    except FormatError as error:
        return {error.rule}


def compare(said: dict[str, Any]) -> int:
    """The number of outputs on which the second evaluation and the JSON agree; Wrong if one differs."""
    count = 0
    for vector in said["vectors"]:
        for name, computed in evaluate.outputs(said, vector).items():
            stated = vector["outputs"][name]
            if computed != stated:
                raise Wrong(
                    f"{said['name']}, vector {vector['name']!r}, output {name!r}: {stated}, computed {computed}"
                )
            count += len(stated["values"])
        if "digests" in vector and evaluate.digests(said, vector) != vector["digests"]:
            raise Wrong(f"{said['name']}, vector {vector['name']!r}: other digests")
    return count


def _entry(path: Path, level: str, **facts: str) -> dict[str, Any]:
    digests = {
        kind: hashlib.sha256(each.read_bytes()).hexdigest()
        for kind, each in (("sha256", path), ("json_sha256", path.with_suffix(".json")))
        if each.exists()
    }
    return {"name": path.stem, "level": level, **facts, **digests, **_shards(path)}


def _shards(path: Path) -> dict[str, dict[str, str]]:
    """The files that a file refers to and that are there."""
    with suppress(FormatError):
        data = Container(path, verify=False).data
        if isinstance(data, Shards):
            there = [path.with_name(shard.name) for shard in data.shards if path.with_name(shard.name).is_file()]
            return _digests((each.name, each.read_bytes()) for each in there)
    return {}


def _digests(shards: Iterable[tuple[str, bytes]]) -> dict[str, dict[str, str]]:
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in shards}
    return {"shards": digests} if digests else {}


def differences() -> list[str]:
    """The files that are not current, as paths below the folder of the suite."""
    with tempfile.TemporaryDirectory() as temporary:
        make(Path(temporary))
        fresh, there = (_contents(folder) for folder in (Path(temporary), FOLDER))
    return sorted(name for name in fresh.keys() | there.keys() if fresh.get(name) != there.get(name))


def _contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.suffix in (".qfb", ".qfs", ".qfsx", ".json"))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def write() -> None:
    """Make the suite, then replace the existing one."""
    with tempfile.TemporaryDirectory() as temporary:
        compared = make(Path(temporary))
        fresh = _contents(Path(temporary))
    for name in _contents(FOLDER).keys() - fresh.keys():
        (FOLDER / name).unlink()
    for name, data in fresh.items():
        (FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
        (FOLDER / name).write_bytes(data)
    size = sum(map(len, fresh.values()))
    count = len(json.loads(fresh["index.json"])["files"])
    print(f"{count} files, {size:,} bytes with their JSON, {compared:,} outputs computed twice, all equal")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is not current")
    try:
        if not parser.parse_args().check:
            write()
        elif stale := differences():
            raise SystemExit("not current, run tools/make_conformance.py: " + ", ".join(stale))
    except Wrong as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
