"""`qfmt check`: every broken rule of a `.qfb` file."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ..errors import FormatError, MissingFileError, QfmtError, Violation, message, some
from ..file.copies import downloaded
from ..file.shards import SUFFIX
from ..frontends.json_text import is_shallow
from ..notation import how_many, in_shell, number
from ..regular import irregular
from ..urls import Place, place, text_of
from .options import Command, no_progress
from .options import memory as memory_option
from .output import as_json, line
from .progress import working
from .source import QFB_OR_ARCHIVE, is_archive, limited

if TYPE_CHECKING:
    from qfmt.compare import Replay
    from qfmt.passes.proofs import Proofs

    from ..archive.manifest import Entry, Manifest
    from ..model import Model

BROKEN, UNREAD = 1, 2


class Levels(NamedTuple):
    """What is checked beside the rules: proofs of sums, and the test vectors, within that many bytes of memory."""

    proofs: bool
    replay: bool
    memory: int | None


class Results(NamedTuple):
    """What was found: broken rules; of a valid file also the proofs, and the outputs of the test vectors."""

    violations: list[Violation]
    found: Proofs | None
    runs: list[Replay] | None


@click.command(
    cls=Command,
    epilog="Exit status: 0 valid; 1 invalid, or a test vector differs; 2 FILE, or one of an archive, cannot be read, or"
    " its vectors not run.",
)
@click.argument("file", type=QFB_OR_ARCHIVE)
@click.option("--json", "json_", is_flag=True, help="Print {file, valid, violations: [{rule, where, what}]}.")
@click.option("--proofs", "proven", is_flag=True, help="Recompute the bounds of integer sums, and compare.")
@click.option("--replay", "replayed", is_flag=True, help="Run the test vectors in the file, and compare their outputs.")
@memory_option()
@click.option(
    "--jobs", type=click.IntRange(min=1), help="Of an archive: how many processes check  [default: one per processor]"
)
@no_progress()
@click.pass_context
def command(
    ctx: click.Context, file: Place, json_: bool, proven: bool, replayed: bool, memory: int | None, jobs: int | None
) -> None:
    """Check FILE, a .qfb, against every rule of the specification, and list each broken rule with its number.

    --proofs also checks what a file states about its integer sums (P1 to P3): for any inputs in range, none overflows
    int32, and none exceeds the stated bounds. --replay also runs its test vectors, and lists each output that is not
    equal, bit by bit, to the one in the file (R1); if the vectors have digests, also the first node that computes
    something else. Neither is done for a file that is not valid.

    FILE may also be an archive, the folder of `qfmt convert --out`: every file of its manifest is checked, and also
    whether its digest and its content id are the stated ones.
    """
    levels = Levels(proven, replayed, memory)
    if is_archive(file):
        ctx.exit(_check_archive(file, json_, levels, jobs))
    if jobs is not None:
        raise click.UsageError("--jobs is for archives, the folders of `qfmt convert --out`")
    with working(f"checking {file.name}"):
        model, results = _checked(file, levels)
    violations, found, runs = results
    if json_:
        as_json(_facts(file, model, results))
    else:
        for broken in violations:
            line(str(broken))
        for where, why in found.unknown.items() if found else ():
            line(f"unknown {where}: {why}")
        if violations:
            from ..file.checker import MOST

            stopped = "; the rest was not checked" if len(violations) == MOST else ""
            line(f"{file}: {how_many(len(violations), 'violation')}{stopped}", err=True)
        else:
            more = _counted(found.sums, found.reaches, len(found.unknown)) if found else ""
            if runs is not None:
                more += _repeated(len(runs), sum(not each.elements for each in runs))
            note = _newer(model)
            line(f"{file}: valid{more}{note and '; '}{note}")
    ctx.exit(BROKEN if violations else 0)


def _checked(file: Place, levels: Levels) -> tuple[Model | None, Results]:
    """The model of a valid file, and what was found; of what is remote, all in the bytes that were fetched once."""
    from ..file.checker import MOST, checked

    with limited(file):
        violations, model = checked(file)
    if model is None:
        return None, Results(violations, None, None)
    found = _proofs(model) if levels.proofs else None
    runs = _replays(model, levels.memory) if levels.replay else None
    violations = [*(found.violations if found else []), *map(_violation, _different(runs or []))]
    return model, Results(violations[:MOST], found, runs)


def _facts(file: Place, model: Model | None, results: Results) -> dict[str, Any]:
    violations, found, runs = results
    listed = [{"rule": broken.rule, "where": broken.where, "what": broken.what} for broken in violations]
    told: dict[str, Any] = {"file": str(file), "valid": not violations, "violations": listed}
    if note := _newer(model):
        told["note"] = note
    if found:
        told["proofs"] = {"sums": found.sums, "reaches": found.reaches, "unknown": found.unknown}
    if runs is not None:
        told["replay"] = {"outputs": len(runs), "equal": len(runs) - len(_different(runs))}
    return told


def _check_archive(folder: Place, json_: bool, levels: Levels, jobs: int | None) -> int:
    """Check every file of an archive; the exit status."""
    from ..archive.manifest import Manifest
    from ..archive.workers import accepted, results
    from ..file.reader import processors

    manifest = Manifest(folder)
    entries: dict[Place, Entry] = {}
    otherwise = set[str]()
    for entry in manifest.entries.values():
        if entry.content_id:
            first = entries.setdefault(manifest.place(entry), entry)  # a file is read once
            if len({(each.file_sha256, each.content_id, each.engine) for each in (first, entry)}) > 1:
                otherwise.add(entry.file)
    tasks: list[dict[str, Any]] = [
        {"number": number, "path": text_of(path), "entry": asdict(entry), "levels": levels}
        for number, (path, entry) in enumerate(entries.items())
    ]
    checked: list[dict[str, Any]] = [{} for _ in tasks]
    with working(f"checking {folder}"), closing(results(tasks, WORK, (), jobs or processors())) as answers:
        for task, answer in answers:
            file, answer = task["entry"]["file"], accepted(answer, _is_answer)
            told = _told(file, None, answer["error"]) if "error" in answer else answer | {"file": file}
            checked[task["number"]] = told
    checked += [_told(file, False, "two entries of the manifest differ about it") for file in sorted(otherwise)]
    if manifest.is_cut:
        problem = "the last line is incomplete; restore the manifest, or convert the sources again"
        checked.append(_told(manifest.path.name, False, problem))
    return _summarized(folder, manifest, checked, json_)


def _summarized(folder: Place, manifest: Manifest, checked: list[dict[str, Any]], json_: bool) -> int:
    """Print what was found in an archive; the exit status."""
    wrong, unlisted = [facts for facts in checked if not facts["valid"]], manifest.unlisted()
    invalid = {facts["file"] for facts in wrong if facts["valid"] is False}
    unread = {facts["file"] for facts in wrong} - invalid
    status = BROKEN if invalid else UNREAD if unread else 0
    entries = manifest.entries.values()
    total, without = len(entries), sum(not entry.content_id for entry in entries)
    failed = sum(bool(entry.error) for entry in entries)
    if json_:
        valid = False if invalid else None if unread else True
        sources = {"total": total, "without_file": without, "failed": failed}
        as_json({"archive": str(folder), "valid": valid, "files": checked, "unlisted": unlisted, "sources": sources})
        return status
    for facts in wrong:
        for each in [facts["problem"]] if facts["problem"] else facts["violations"]:
            line(f"{facts['file']}: {each if isinstance(each, str) else '{rule} {where}: {what}'.format(**each)}")
    if wrong:
        files = how_many(len({facts["file"] for facts in checked}), "file")
        counts = {"invalid": len(invalid), "not checked": len(unread)}
        found = ", ".join(f"{number} {what}" for what, number in counts.items() if number)
        line(f"{folder}: {files}, {found}", err=True)
        return status
    rest = f"; no file for {without} of {how_many(total, 'source')}" if without else ""
    if any(entry.content_id and entry.error for entry in entries):  # else those without a file
        rest += f"; {failed} of {how_many(total, 'source')} failed when last converted"
    rest += f": see `{in_shell('qfmt inspect', str(folder))}`" if rest else ""
    for suffix, why in ((".qfb", "which the manifest does not name"), (SUFFIX, "to which no file refers")):
        if names := [name for name in unlisted if name.endswith(suffix)]:
            rest += f"; not checked: {some(names)}, {why}"
    for facts in checked:
        for where, why in facts.get("proofs", {}).get("unknown", {}).items():
            line(f"{facts['file']}: unknown {where}: {why}")
        if "note" in facts:
            line(f"{facts['file']}: {facts['note']}")
    line(f"{folder}: {how_many(len(checked), 'file')}, valid{_totals(checked)}{rest}")
    return 0


def _totals(checked: list[dict[str, Any]]) -> str:
    """What was proven and replayed in the files of an archive."""
    told, proofs, replays = "", *([facts[key] for facts in checked if key in facts] for key in ("proofs", "replay"))
    if proofs:
        sums, reaches = (sum(each[key] for each in proofs) for key in ("sums", "reaches"))
        told += _counted(sums, reaches, sum(len(each["unknown"]) for each in proofs))
    if replays:
        without = sum(not each["outputs"] for each in replays)
        told += _repeated(sum(each["outputs"] for each in replays))
        told += f"; {how_many(without, 'file')} without test vectors" if 0 < without < len(replays) else ""
    return told


def _is_answer(answer: dict[str, Any]) -> bool:
    """Whether it has the form of what `check_task` returns."""
    violations = answer.get("violations")
    is_typed = (
        type(answer.get("valid", "")) in (bool, type(None))
        and {type(answer.get("problem")), type(answer.get("note", ""))} == {str}
        and isinstance(violations, list)
    )
    is_counted = all(_has_types(answer[key], types) for key, types in _COUNTS.items() if key in answer)
    return is_typed and is_counted and is_shallow(answer, NESTED) and all(map(_is_violation, violations or ()))


def _is_violation(told: object) -> bool:
    return isinstance(told, dict) and [*told] == ["rule", "where", "what"] and {*map(type, told.values())} == {str}


_COUNTS: dict[str, dict[str, type]] = {
    "proofs": {"sums": int, "reaches": int, "unknown": dict},
    "replay": {"outputs": int, "equal": int},
}
"""What the answer of a worker may also have, if it is asked for."""


def _has_types(told: object, types: dict[str, type]) -> bool:
    return isinstance(told, dict) and {key: type(value) for key, value in told.items()} == types


NESTED = 4
"""How deep the answer of a worker is nested, at most."""

WORK = f"{__name__}:check_task"


def check_task(task: dict[str, Any]) -> dict[str, Any]:
    """What a worker does: check a file of an archive."""
    from ..archive.manifest import Entry

    entry = Entry(**task["entry"])
    try:
        with downloaded(place(task["path"])) as path:
            return _archived(path, entry, Levels(*task["levels"]))
    except MissingFileError:
        return _told(entry.file, False, "is missing")
    except FormatError as error:  # of a shard that a server has with another size
        broken = {"rule": error.rule, "where": error.where, "what": error.what}
        return _told(entry.file, False, "") | {"violations": [broken]}
    except Exception as error:
        return _told(entry.file, None, message(error))


def _told(file: str, valid: bool | None, problem: str) -> dict[str, Any]:
    """The result for a file of an archive; `valid` is None if it could not be checked."""
    return {"file": file, "valid": valid, "violations": [], "problem": problem}


def _archived(path: Path, entry: Entry, levels: Levels) -> dict[str, Any]:
    """What is wrong with a file of an archive: rules that it breaks, or as `problem` how the manifest differs."""
    from ..archive.manifest import is_there

    told = _told(entry.file, False, "")
    try:
        problem = irregular(path)
    except (FileNotFoundError, NotADirectoryError):
        problem = "is missing"
    if problem:
        return told | {"problem": problem}
    if not is_there(path, entry):
        return told | {"problem": "is not the file that was written: its sha256 differs"}
    try:
        model, results = _checked(path, levels)
        told |= _facts(Path(entry.file), model, results)
        if told["valid"] and model is not None and model.content_id().hex() != entry.content_id:
            told |= {"valid": False, "problem": "its content id is not that of the manifest"}
        if told["valid"] and model is not None and entry.engine not in ("", model.engine):
            told |= {"valid": False, "problem": "its engine is not that of the manifest; remove it, and convert again"}
    except QfmtError as error:
        told |= {"valid": None, "problem": error.what}
    return told


def _newer(model: Model | None) -> str:
    """What to add for a file of a newer minor version."""
    from ..file.tensors import Tensors
    from ..file.writer import FORMAT

    held = None if model is None else model.graph.tensors
    minor = held.minor_version if isinstance(held, Tensors) else 0
    is_newer = minor > int(FORMAT.rpartition(".")[2])
    return f"its format is 1.{minor}, but only the rules of {FORMAT} were checked" if is_newer else ""


def _proofs(model: Model) -> Proofs:
    from qfmt.passes.proofs import Proofs, proofs

    return Proofs() if model.no_graph else proofs(model)


def _counted(sums: int, reaches: int, unknown: int) -> str:
    if not (sums or reaches or unknown):
        return "; there are no integer sums"
    rest = f", {unknown:,} could not be bounded" if unknown else ""
    nodes, ranges = how_many(sums, "node"), how_many(reaches, "requantization")
    return f"; the sums of {nodes} fit in int32, and the stated ranges of {ranges} hold{rest}"


def _replays(model: Model, memory: int | None) -> list[Replay]:
    from qfmt.compare import replay

    return list(replay(model, memory))


def _different(runs: list[Replay]) -> list[Replay]:
    return [each for each in runs if not each.is_equal]


def _violation(found: Replay) -> Violation:
    what = f"{found.different:,} of {found.elements:,} elements differ"
    what += f", by up to {number(found.largest)}" if found.different else ""
    what += f"; {found.first_difference}" if found.first_difference else ""
    return Violation("R1", f"test vector {found.vector}, output {found.output!r}", what)


def _repeated(outputs: int, empty: int = 0) -> str:
    if not outputs:
        return "; there are no test vectors"
    return f"; all outputs of the test vectors are equal: {outputs:,}{f', {empty} without elements' if empty else ''}"
