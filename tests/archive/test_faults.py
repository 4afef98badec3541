"""What may go wrong while an archive is filled: sources, manifests of anyone, files that are in the way."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict
from errno import EACCES, EIO, ENOSPC, ESTALE
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest

import qfmt
from qfmt.archive import filling
from qfmt.archive.filling import fill
from qfmt.archive.manifest import MANIFEST, Entry, Manifest
from qfmt.archive.sources import find
from qfmt.archive.workers import Limits, accepted
from qfmt.errors import DestinationError, SourceError
from qfmt.file import writer
from qfmt.frontends.sources import Kind, sniff
from support.archives import described, digits, files, kept, lines, shards, task_for, with_external_data
from support.command_line import invoke, start, trouble
from support.making import NONSENSE
from support.paths import DIGITS


def test_what_kills_a_worker_is_the_failure_of_one_source(sources: Path, archive: Path) -> None:
    for number, name in enumerate(("a", "bug", "ended", "killed", "z")):
        digits(sources / f"{name}.pt", number)
    told: list[Entry] = []
    found = find([str(sources)], archive).sources
    fill(archive, found, maker="support.making:or_die", jobs=2, told=told.append)
    errors = {entry["source"]: entry["error"] for entry in lines(archive)}
    assert errors["killed.pt"] == "the worker process was ended by SIGKILL; it may have run out of memory"
    assert errors["ended.pt"] == "the worker process ended with status 3"
    assert errors["bug.pt"].startswith("unexpected ZeroDivisionError: surprise; this is a bug in qfmt")
    assert files(archive) == ["a.qfb", "z.qfb"]
    assert sorted(entry.source for entry in told) == sorted(found)
    assert kept(sources, archive) == {"a.pt", "z.pt"}  # failures are tried again
    assert len(files(archive)) == 5


@pytest.mark.parametrize("shard_size", [None, 1000], ids=["one file", "shards"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=lambda number: number.name)
def test_after_a_kill_only_what_was_in_flight_is_repeated(
    tmp_path: Path, sources: Path, archive: Path, number: signal.Signals, shard_size: int | None
) -> None:
    for each in range(12):
        digits(sources / f"{each:02}.pt", each)
    command = ["convert", sources, "--out", archive, "--jobs", 1, *(["--shard-size", shard_size] if shard_size else [])]
    running = start(*command, stderr=subprocess.PIPE, start_new_session=True)
    while done(archive) < 3:
        assert running.poll() is None
        time.sleep(0.01)
    if number == signal.SIGKILL:
        running.kill()
    else:
        os.killpg(running.pid, number)  # as a terminal does
    told = running.communicate()[1].decode()  # to its end: no worker is left that has the pipe
    note = f"qfmt: interrupted; {archive} keeps what was converted; run the same command again to continue\n"
    assert told == ("" if number == signal.SIGKILL else note)
    assert running.returncode == (-9 if number == signal.SIGKILL else 130)
    before = done(archive)
    assert 3 <= before < 12
    resumed = invoke(*command, "--json")
    results = [entry["result"] for entry in json.loads(resumed.stdout)["entries"]]
    assert (results.count("kept"), results.count("converted")) == (before, 12 - before)
    kept(sources, tmp_path / "uninterrupted", options={"shard_size": shard_size} if shard_size else {})
    assert lines(archive) == lines(tmp_path / "uninterrupted")
    assert all(bool(names) == bool(shard_size) for names in shards(archive).values())


def test_invalid_answers_of_a_worker_are_refused(sources: Path, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file may have taken it over."""
    for number, kind in enumerate(NONSENSE):
        digits(sources / f"{kind}.pt", number)
    assert invoke("convert", sources, "--out", archive).exit_code == 0
    for module in ("archive.filling", "cli.check", "cli.verify"):
        monkeypatch.setattr(f"qfmt.{module}.WORK", "support.making:nonsense")
    said, count = "the worker process sent an invalid answer", len(NONSENSE)
    for status, *command in (
        (2, "check", archive),
        (2, "check", archive, "--json"),
        (2, "verify", "--archive", archive),
    ):
        result = invoke(*command)
        assert (result.exit_code, result.stdout.count(said)) == (status, count), result.output
    other = archive.parent / "other"
    result = invoke("convert", sources, "--out", other)
    assert (result.exit_code, result.stderr.count(said), files(other)) == (1, count, [])


def test_an_answer_is_a_message() -> None:
    """The answer of a worker of Dask may be any object."""
    for answer in ([1], None, "text", {"error": 1}, {"error": ""}, {"error": "\ud800"}):
        assert accepted(answer, lambda message: False) == {"error": "the worker process sent an invalid answer"}
    for value in ("\ud800", 10**5000, b"x"):  # none of these could be read again in a manifest
        assert accepted({"x": value}, lambda message: True) == {"error": "the worker process sent an invalid answer"}


def test_workers_import_nothing_from_the_working_directory(
    sources: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digits(sources / "m.pt")
    for name in ("json", "numpy", "qfmt", "subprocess", "zipfile"):
        (sources / f"{name}.py").write_text("open('PWNED', 'w')\n")
    monkeypatch.chdir(sources)
    assert invoke("convert", "m.pt", "--out", archive).exit_code == 0
    assert not (sources / "PWNED").exists()


def test_an_interruption_at_the_start_is_one_line(sources: Path, archive: Path) -> None:
    digits(sources / "a.pt")
    running = start("convert", sources, "--out", archive, stderr=subprocess.PIPE, start_new_session=True)
    while not (archive / MANIFEST).exists():
        assert running.poll() is None
    time.sleep(0.1)  # the worker has started, or nearly so
    os.killpg(running.pid, signal.SIGINT)
    told = running.communicate()[1].decode()
    assert (told.startswith("qfmt: interrupted; "), told.count("\n")) == (True, 1)
    assert running.returncode == 130
    assert kept(sources, archive) == set()
    assert files(archive) == ["a.qfb"]


def done(archive: Path) -> int:
    """How many sources have a content id in a manifest that may be in the making."""
    path = archive / MANIFEST
    text = path.read_bytes() if path.exists() else b""
    return sum(bool(json.loads(line)["content_id"]) for line in text.split(b"\n")[:-1])


def test_what_cannot_be_converted_is_not_hashed(sources: Path, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have terabytes."""

    def fail(path: Path) -> str:
        raise AssertionError(path)

    sources.mkdir()
    qfmt.convert(DIGITS).save(sources / "a.qfb")
    monkeypatch.setattr(filling, "sha256_of", fail)
    for name, head in {"unknown.bin": b"", "longer.qfb": (sources / "a.qfb").read_bytes()}.items():
        with (sources / name).open("wb") as file:
            file.write(head)
            file.truncate(1 << 40)
        known = asdict(Entry(name, name, size=1))  # a small file, which it takes the place of
        task = task_for(sources / name)
        task["known"] = known
        answer = filling.convert_task(str(archive), "qfmt.cli.conversion:make", task)
        assert "unknown format" in answer["error"] or "longer than its header states" in answer["error"]


def test_another_source_of_the_same_name_is_not_read_first(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have terabytes, or be a FIFO, which nobody writes to."""
    digits(tmp_path / "a" / "net.pt")
    fill(archive, find([str(tmp_path / "a")], archive).sources)
    (tmp_path / "b").mkdir()
    other = tmp_path / "b" / "net.pt"
    os.mkfifo(other)
    results = fill(archive, find([f"{tmp_path}/b/*.pt"], archive).sources).results
    assert results == {"net.pt": "failed"}
    other.unlink()
    with other.open("wb") as file:
        file.truncate(1 << 40)
    monkeypatch.setattr(filling, "sha256_of", _fails)
    assert "two sources have the name net.pt" in trouble("convert", other, "--out", archive)


def test_a_source_that_changes_meanwhile_fails(sources: Path, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would have the digest of one content and the model of another, and never be converted again."""
    path = digits(sources / "a.pt")

    def converted(source: Path) -> qfmt.Model:
        model = qfmt.convert(source)
        digits(sources / "b.pt", 1).replace(source)
        return model

    monkeypatch.setattr(filling, "named", lambda name: converted)
    answer = filling.convert_task(str(archive), "", task_for(path))
    assert answer["error"] == "was changed while it was converted; run the same command again"
    assert not archive.exists()


def test_a_source_that_changes_while_its_result_is_written_fails(
    sources: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its arrays are read from the source where they are written."""
    path = digits(sources / "a.pt")

    def written(*arguments: Any, before_replacing: Callable[[BinaryIO], None], **options: Any) -> None:
        def change(file: BinaryIO) -> None:
            digits(sources / "b.pt", 1).replace(path)
            before_replacing(file)

        writer.write(*arguments, before_replacing=change, **options)

    monkeypatch.setattr(filling, "write", written)
    answer = filling.convert_task(str(archive), "qfmt.cli.conversion:make", task_for(path))
    assert answer["error"] == "was changed while it was converted; run the same command again"
    assert files(archive) == []


def test_no_empty_folder_is_left_by_a_file_that_is_not_written(
    sources: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source had the file of another one, and now has its own model."""
    for name in "a.pt", "sub/b.pt":
        digits(sources / name)
    kept(sources, archive)
    digits(sources / "sub" / "b.pt", 1)
    monkeypatch.setattr(filling.workers, "results", lambda work, *rest: (
        (task, filling.convert_task(str(archive), "qfmt.cli.conversion:make", task)) for task in work
    ))  # fmt: skip
    monkeypatch.setattr(filling, "write", _fails)
    filled = fill(archive, find([str(sources)], archive).sources)
    assert filled.results == {"a.pt": "kept", "sub/b.pt": "failed"}
    assert sorted(path.name for path in archive.iterdir()) == ["a.qfb", MANIFEST]


def _fails(*arguments: Any, **options: Any) -> None:
    raise OSError(ENOSPC, os.strerror(ENOSPC))


def test_a_file_of_the_archive_that_cannot_be_read_is_not_shared(
    sources: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digits(sources / "a.pt")
    kept(sources, archive)
    whole = filling.is_whole

    def fails(file: Path, entry: Entry) -> bool:
        if file.name == "a.qfb":
            raise PermissionError(EACCES, os.strerror(EACCES))
        return whole(file, entry)

    monkeypatch.setattr(filling, "is_whole", fails)
    others = sources.parent / "others"
    for number, name in enumerate("ez"):
        digits(others / f"{name}.pt", number)
    filled = fill(archive, find([str(others)], archive).sources)
    assert filled.results == {"e.pt": "converted", "z.pt": "converted"}


def test_external_data_that_is_exchanged_is_another_source(sources: Path, archive: Path) -> None:
    """By links, as in the cache of Hugging Face: the files and the model are the same."""
    onnx = pytest.importorskip("onnx")
    text = '<ir_version: 9, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { a = Add(x, v) y = Mul(a, w) }'
    model = onnx.parser.parse_model(text)
    sources.mkdir()
    for name in "vw":
        tensor = onnx.numpy_helper.from_array(np.array([1, ord(name)], np.float32), name)
        onnx.external_data_helper.set_external_data(tensor, f"{name}.bin")
        (sources / f"blob.{name}").write_bytes(tensor.raw_data)
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        model.graph.initializer.append(tensor)
    (sources / "m.onnx").write_bytes(model.SerializeToString())
    for targets in "vw", "wv":
        for name, target in zip("vw", targets, strict=True):
            (sources / f"{name}.bin").unlink(missing_ok=True)
            (sources / f"{name}.bin").symlink_to(f"blob.{target}")
        assert fill(archive, find([str(sources / "m.onnx")], archive).sources).results == {"m.onnx": "converted"}


def test_a_worker_that_dies_before_it_answers_has_converted(
    sources: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file has its name, and the manifest its digests; of a file that another one replaced, it has not."""
    for round_ in range(2):
        for number, name in enumerate(("failed", "killed", "other")):
            digits(sources / f"{name}.pt", 3 * round_ + number)
        monkeypatch.setattr(filling, "WORK", "support.making:written_last")
        filled = fill(archive, find([str(sources)], archive).sources, maker="qfmt.cli.conversion:make")
        assert set(filled.results.values()) == {"converted"}
        assert invoke("check", archive).exit_code == 0
    monkeypatch.undo()
    assert kept(sources, archive) == {"failed.pt", "killed.pt", "other.pt"}


def test_what_was_announced_and_not_written_is_an_error(archive: Path) -> None:
    archive.mkdir()
    task = task_for(Path("a.pt"))
    announced = {"sha256": "1", "external": "", "file": "a.qfb", "file_sha256": "1", "content_id": "1"}
    announced |= {"size": 1, "seconds": 1.0}
    for wrong in ({}, {"file": "../a.qfb"}, {"size": "1"}, {"error": "x"}):
        answer = {"error": "died", "announced": announced | wrong}
        assert filling._accepted(archive, task, answer) == {"error": "died"}


def test_a_file_that_cannot_be_read_has_no_size(sources: Path, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        digits(sources / f"{name}.pt", ord(name))
    assert invoke("convert", sources, "--out", archive).exit_code == 0

    def fail(path: Path) -> int:
        raise PermissionError(EACCES, "Permission denied", str(path))

    monkeypatch.setattr("qfmt.cli.convert_many.size_of", fail)
    result = invoke("convert", sources, "--out", archive)
    assert result.exit_code == 0, result.output
    assert f"write  {archive}, 2 files  " in result.stdout


@pytest.mark.parametrize("damage", ["unknown", "numpy", "fifo"])
def test_what_was_converted_is_a_source_whatever_it_is_now(damage: str, sources: Path, archive: Path) -> None:
    for name in "ab":
        digits(sources / name)
    (sources / "notes").write_text("models")
    assert invoke("convert", sources, "--out", archive).exit_code == 0
    before = described(Manifest(archive)), files(archive)
    if damage == "numpy":
        np.save(sources / "x.npy", np.zeros(2))
        (sources / "x.npy").replace(sources / "a")
    else:
        (sources / "a").unlink()
        os.mkfifo(sources / "a") if damage == "fifo" else (sources / "a").write_bytes(bytes(100))
    done = invoke("convert", sources, "--out", archive)
    assert done.exit_code == 1
    assert "left out: 1 file" in done.stdout
    assert "qfmt: error: a: is " in done.stderr
    assert (described(Manifest(archive)), files(archive)) == before


@pytest.mark.parametrize("form", ["truncated", "late", "unreadable"])
def test_what_fails_keeps_its_earlier_result(form: str, sources: Path, archive: Path) -> None:
    for name in "a", "b":
        digits(sources / f"{name}.pt")
    with_external_data(sources / "m" / "m.onnx", 0, 2)
    options = {"options": {"shard_size": 1000}}
    kept(sources, archive, **options)
    before = described(Manifest(archive)), files(archive)
    if form == "truncated":
        for path in sources.glob("*.pt"):
            path.write_bytes(path.read_bytes()[:-100])
    if form == "unreadable":
        (sources / "m" / "m.data").rename(sources.parent / "data")
    limits = Limits.of(None, 0.001, 1) if form == "late" else None
    found = find([str(sources)], archive).sources
    failed = {"truncated": {"a.pt", "b.pt"}, "late": {"a.pt", "b.pt", "m/m.onnx"}, "unreadable": {"m/m.onnx"}}
    filled = fill(archive, found, limits=limits, **options)
    assert {name for name, result in filled.results.items() if result == "failed"} == failed[form]
    assert (described(Manifest(archive)), files(archive)) == before
    assert all(bool(entry.error) == (name in failed[form]) for name, entry in Manifest(archive).entries.items())


def test_what_cannot_be_removed_stops_nothing(sources: Path, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digits(sources / "a.pt")
    digits(sources / "b.pt", 1)
    kept(sources, archive)
    digits(sources / "b.pt")

    def refuse(path: Path, **options: bool) -> None:
        raise PermissionError(1, "not permitted", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        assert fill(archive, find([str(sources)], archive).sources).results == {"a.pt": "kept", "b.pt": "equal"}
    result = invoke("check", archive)
    assert result.exit_code == 0 and "not checked: b.qfb, which the manifest does not name" in result.stdout


def test_an_empty_manifest_is_incomplete(sources: Path, archive: Path) -> None:
    digits(sources / "a.pt")
    kept(sources, archive)
    (archive / MANIFEST).write_bytes(b"")
    assert "the last line is incomplete; restore the manifest" in invoke("check", archive).stdout
    assert not kept(sources, archive)
    assert invoke("check", archive).exit_code == 0


def test_blank_lines_of_a_manifest_are_skipped(sources: Path, archive: Path) -> None:
    digits(sources / "a.pt")
    entries = fill(archive, find([str(sources)], archive).sources).manifest.entries
    path = archive / MANIFEST
    path.write_text(f"\n \r\n{path.read_text()}\n")
    assert Manifest(archive).entries == entries


def test_an_incomplete_last_line_is_forgotten(sources: Path, archive: Path) -> None:
    for number in range(3):
        digits(sources / f"{number}.pt", number)
    kept(sources, archive)
    whole, path = lines(archive), archive / MANIFEST
    path.write_bytes(path.read_bytes()[:-40])
    done = invoke("check", str(archive))
    assert done.exit_code == 1 and "archive.jsonl: the last line is incomplete" in done.output
    assert kept(sources, archive) == {"0.pt", "1.pt"}
    assert lines(archive) == whole
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    (archive / "folder.qfb").mkdir()
    done = invoke("check", str(archive))
    assert done.exit_code == 0 and "2 files, valid; not checked: 2.qfb, which the manifest does not name" in done.output


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("nonsense", "archive.jsonl:1: is not a line of a manifest"),
        ("[1]", "archive.jsonl:1: is not a line of a manifest"),
        ('{"source": "a", "path": "a", "key": 1}', "archive.jsonl:1: is not a line of a manifest"),
        ('{"source": "a", "path": "a", "file": 1}', "archive.jsonl:1: is not a line of a manifest"),
        ('{"source": "a", "path": "a", "options": 1}', "archive.jsonl:1: is not a line of a manifest"),
        ('{"source": "a", "path": "a", "seconds": "1"}', "archive.jsonl:1: is not a line of a manifest"),
        ('{"source": "a", "path": "a", "seconds": NaN}', "archive.jsonl:1: is not a line of a manifest"),
        ('{"source": "a", "path": "a", "size": -1}', "archive.jsonl:1: is not a line of a manifest"),
        ('{"source": "a", "path": "a", "size": 9223372036854775808}', "archive.jsonl:1: is not a line of a manifest"),
        ('{"source": "a", "path": "a", "seconds": 1e999}', "archive.jsonl:1: is not a line of a manifest"),
        ('{"source": "a", "path": "a", "file": "\\u0000"}', "archive.jsonl:1: is not a line of a manifest"),
        ('{"source": "a", "path": "a", "file": "a.qfb", "file": ""}', "archive.jsonl:1: is not a line of a manifest"),
        ('{"source": "a", "path": "a", "options": {"a": [[[[]]]]}}', "archive.jsonl:1: is not a line of a manifest"),
        ("0" * (1 << 24), "archive.jsonl:1: is too long a line"),
        ('{"source": "a", "path": "a", "file": "' + "d/" * 10**6 + 'a.qfb"}', "archive.jsonl:1: is not a line"),
        (
            '{"source": "a", "path": "a", "options": {"a": ' + 490 * "[" + 490 * "]" + "}}",
            "is not a line of a manifest",
        ),
        ('{"source": "a", "path": "a", "file": "./b.qfb"}', "the file of a is not in the archive: ./b.qfb"),
        ('{"source": "a", "path": "a", "file": "sub/../b.qfb"}', "the file of a is not in the archive: sub/../b.qfb"),
        ('{"source": "a", "path": "a", "file": "//host/b.qfb"}', "the file of a is not in the archive: //host/b.qfb"),
        ('{"source": "a", "path": "a", "file": "../b.qfb"}', "the file of a is not in the archive: ../b.qfb"),
        ('{"source": "a", "path": "a", "file": "thesis.txt"}', "the file of a is not a .qfb file: thesis.txt"),
        ('{"source": "a", "path": "a", "file": "/etc/b.qfb"}', "the file of a is not in the archive: /etc/b.qfb"),
        ('{"source": "a", "path": "a", "file": "out/b.qfb"}', "the file of a is not in the archive: out/b.qfb"),
    ],
)
def test_a_manifest_of_anyone_leads_nowhere_else(tmp_path: Path, archive: Path, line: str, said: str) -> None:
    archive.mkdir()
    (archive / "out").symlink_to(tmp_path)
    (tmp_path / "b.qfb").write_bytes(b"precious")
    (archive / MANIFEST).write_text(f"{line}\n")
    for command in (("check",), ("inspect",), ("verify", "--archive"), ("convert", DIGITS, "--out")):
        assert said in trouble(*command, archive)
    assert (tmp_path / "b.qfb").read_bytes() == b"precious"


@pytest.mark.parametrize(
    "lines",
    [
        b'{"source": "a", "path": "a", "options": {"a": [' + b",".join([b"[]"] * 400_000) + b"]}}\n",
        b'{"source":"a","path":""}\n' * 50_000,
    ],
    ids=["lists", "entries"],
)
def test_a_manifest_that_takes_much_memory_is_refused(archive: Path, lines: bytes) -> None:
    archive.mkdir()
    (archive / MANIFEST).write_bytes(lines)
    for command in ("check", "inspect"):
        assert f"reading {len(lines)} bytes would take more than" in trouble(command, archive)


@pytest.mark.parametrize(
    "path", ["//host/share/a.pt", r"\\host\share\a.pt", r"/\host\a.pt", r"\??\UNC\host\a.pt", "https://host/a.pt"]
)
def test_a_manifest_of_anyone_names_no_other_machine(archive: Path, path: str) -> None:
    archive.mkdir()
    (archive / MANIFEST).write_text(Entry("a.pt", path, file="a.qfb", content_id="1").line)
    result = invoke("verify", "--archive", archive)
    assert (result.exit_code, "only the manifest says" in result.stdout) == (2, True)


def test_links_in_an_archive_lead_nowhere_else(tmp_path: Path, sources: Path, archive: Path) -> None:
    """Of an archive of anyone, what is to be written may be a link: the manifest, a file, or its folder."""
    outside = tmp_path / "precious"
    digits(sources / "0.pt")
    for name, target, said in (
        (MANIFEST, outside, "is a link"),
        ("0.qfb", outside, "the file of 0.pt is not in the archive: 0.qfb"),
        ("0.qfb", "other.qfb", "the file of 0.pt is not in the archive: 0.qfb"),
    ):
        archive.mkdir()
        outside.write_bytes(b"precious")
        (archive / name).symlink_to(target)
        assert said in trouble("convert", sources, "--out", archive)
        assert outside.read_bytes() == b"precious"
        (archive / name).unlink()
        archive.rmdir()


def test_an_entry_without_a_file_gets_one(sources: Path, archive: Path) -> None:
    digits(sources / "0.pt")
    archive.mkdir()
    (archive / MANIFEST).write_text('{"source": "0.pt", "path": "0.pt"}\n')
    filled = fill(archive, find([str(sources)], archive).sources)
    assert filled.results == {"0.pt": "converted"}
    assert filled.manifest.entries["0.pt"].file == "0.qfb"


def test_only_one_process_fills_an_archive(sources: Path, archive: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    archive.mkdir()
    descriptor = os.open(archive, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    said = trouble("convert", digits(sources / "a.pt"), "--out", archive)
    os.close(descriptor)
    assert "another process is filling this archive" in said


def test_options_go_to_every_source_or_are_refused(tmp_path: Path, sources: Path, archive: Path) -> None:
    digits(sources / "a.pt")
    shape = ("--input-shape", "x=N,1,8,8")
    assert invoke("convert", sources, "--out", archive, "--engine", "qnnpack", *shape).exit_code == 0
    with qfmt.load(archive / "a.qfb") as model:
        assert (model.engine, model.tensors["x"].shape) == ("qnnpack", ("N", 1, 8, 8))
    (entry,) = lines(archive)
    assert entry["options"] == {"engine": "qnnpack", "input_shapes": {"x": ["N", 1, 8, 8]}}
    integers = tmp_path / "integers"
    result = invoke("convert", archive / "*.qfb", "--out", integers, "--integer-only", "--exact", "--quiet")
    assert (result.exit_code, result.output) == (0, "")
    assert qfmt.load(integers / "a.qfb").engine == "integer"
    for options, said in (
        (("--opset", 21), "--opset is for one source"),
        (("--same-types",), "--same-types is for one source"),
        (("--prepared", DIGITS), "--prepared is for one source"),
        (("--exact",), "--exact requires --integer-only"),
    ):
        assert said in trouble("convert", sources, "--out", tmp_path / "none", *options)
    assert not (tmp_path / "none").exists()
    assert "--jobs is for many sources" in trouble("convert", DIGITS, tmp_path / "m.qfb", "--jobs", 2)
    assert "add --out FOLDER" in trouble("convert", DIGITS, DIGITS, archive)
    assert "Missing argument 'DEST'" in trouble("convert", DIGITS)
    assert "Option '--out' requires an argument (see `qfmt convert --help`)" in trouble("convert", DIGITS, "--out")
    assert "Missing argument 'SOURCE': qfmt convert [OPTIONS] SOURCE DEST | SOURCES… --out FOLDER" in trouble("convert")
    assert "is a folder; to convert all that is in it, use --out FOLDER" in trouble("convert", tmp_path, "m.qfb")


def test_a_link_within_an_archive_replaces_no_other_model(sources: Path, archive: Path) -> None:
    digits(sources / "a.pt")
    kept(sources, archive)
    before = (archive / "a.qfb").read_bytes()
    digits(sources / "b.pt", 1)
    digits(sources / "same" / "a.pt", 2)
    for link, target, said in (("b.qfb", "a.qfb", "b.qfb"), ("same", ".", "same/a.qfb")):
        (archive / link).symlink_to(target)
        assert said in trouble("convert", sources, "--out", archive)
        assert (archive / "a.qfb").read_bytes() == before
        (archive / link).unlink()


def test_a_file_that_is_no_qfb_is_not_replaced_by_a_source_that_was_equal_before(sources: Path, archive: Path) -> None:
    digits(sources / "a.pt")
    digits(sources / "b.pt")
    kept(sources, archive)
    (archive / "b.qfb").write_text("my notes")
    digits(sources / "b.pt", 1)
    assert "is there, and is no .qfb" in invoke("convert", sources, "--out", archive).output
    assert (archive / "b.qfb").read_text() == "my notes"


def test_folders_have_other_names_than_files(sources: Path, archive: Path) -> None:
    """A source may come later that lies in a folder with the name of a file, or is in its way."""
    digits(sources / "archive.JSONL" / "a.pt", 4)
    digits(sources / "a.pt")
    kept(sources, archive)
    digits(sources / "a.qfb" / "b.pt", 1)
    digits(sources / "c.QFB" / "d.pt", 2)
    kept(sources, archive)
    digits(sources / "c.pt", 3)
    assert invoke("convert", sources, "--out", archive, "--quiet").exit_code == 0
    assert files(archive) == ["a.qfb", "a.qfb_/b.qfb", "archive.JSONL_/a.qfb", "c.QFB_/d.qfb", "c.qfb"]


def test_a_manifest_that_qfmt_wrote_can_be_read(archive: Path) -> None:
    """Of many sources that are only planned, have failed, or have names that look like JSON."""
    archive.mkdir()
    manifest = Manifest(archive)
    for number in range(12_000):
        manifest.entries[f"{number}"] = Entry(f"{number}", "{" * 190, file=f"{number}.qfb", error="cannot be read")
    manifest.save()
    assert Manifest(archive).entries == manifest.entries


@pytest.mark.parametrize("option", ["--memory", "--shard-size"])
def test_a_limit_of_nothing_is_an_error(option: str, sources: Path, archive: Path) -> None:
    assert "'0' is not a number of bytes above 0" in trouble(
        "convert", digits(sources / "a.pt"), "--out", archive, option, 0
    )


def test_any_number_of_processes_and_any_memory_may_be_allowed(sources: Path, archive: Path) -> None:
    """One source needs one process, which may have all of the memory."""
    digits(sources / "a.pt")
    for options in ("--jobs", 20_000), ("--jobs", 1, "--memory", f"{10**12}G"):
        assert invoke("convert", sources, "--out", archive, "--quiet", *options).exit_code == 0
        (archive / "a.qfb").unlink()


def test_what_is_no_file_is_in_the_way(sources: Path, archive: Path) -> None:
    """A FIFO would be read for ever."""
    digits(sources / "a.pt")
    digits(sources / "b.pt", 1)
    (archive / "b.qfb").mkdir(parents=True)
    os.mkfifo(archive / "a.qfb")
    said = invoke("convert", sources, "--out", archive).output
    assert "a.pt: is a FIFO, not a regular file" in said and "b.pt: is a directory, not a regular file" in said


def test_names_that_are_cut_alike_are_numbered_in_linear_time(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each source tried the numbers of all before it."""
    tried: list[str] = []
    alike = filling.alike
    monkeypatch.setattr(filling, "alike", lambda file: (tried.append(file), alike(file))[1])
    named = {"n" * 220 + f"{number}.pt": tmp_path / "none" for number in range(1000)}
    tasks = filling._planned(Manifest(archive), named, {})
    assert len({task["file"] for task in tasks}) == len(named)
    assert len(tried) < 10 * len(named)


@pytest.mark.parametrize("name", [".qfmt-", ".qfmt-../a.pt", ".qfmt-.qfmt-"])
def test_sources_with_the_prefix_of_temporary_files(name: str, sources: Path, archive: Path) -> None:
    filled = fill(archive, {name: digits(sources / name)})
    assert filled.results == {name: "converted"} and len(files(archive)) == 1


def test_a_bad_sector_is_the_failure_of_one_source(
    sources: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To look into the files of a folder, they are read: a bad sector under a mapping would end the process."""
    from qfmt.frontends import zips

    for number, name in enumerate("ab"):
        digits(sources / f"{name}.pt", number)
    whole = zips._Read.__getitem__

    def read(self: Any, part: slice) -> memoryview:
        if self._file.name.endswith("a.pt"):
            raise SourceError("cannot be read: Input/output error")
        return whole(self, part)

    monkeypatch.setattr(zips, "mapped", lambda path: pytest.fail("mapped"))
    monkeypatch.setattr(zips._Read, "__getitem__", read)
    assert set(find([str(sources)], archive).sources) == {"a.pt", "b.pt"}
    assert sniff(sources / "b.pt").key == "torchscript"
    with pytest.raises(SourceError, match="Input/output error"):
        sniff(sources / "a.pt")


def test_a_directory_as_large_as_its_sparse_file_takes_no_memory(sources: Path, archive: Path) -> None:
    digits(sources / "a.pt")
    nbytes = 1 << 33
    end = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 1, 1, nbytes - 4, 4)
    end += struct.pack("<4sLQL", b"PK\x06\x07", 0, nbytes, 1)
    end += struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    with (sources / "sparse.pt").open("wb") as file:
        file.write(b"PK\x03\x04")
        file.seek(nbytes)
        file.write(end)
    tracemalloc.start()
    found = find([str(sources)], archive).sources
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert set(found) == {"a.pt", "sparse.pt"} and peak < 10_000_000
    with pytest.raises(SourceError, match="is not a complete zip archive"):
        sniff(sources / "sparse.pt")


def test_too_little_memory_is_the_failure_of_one_source(
    sources: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(_: Path) -> Kind:
        raise MemoryError

    digits(sources / "a.pt")
    monkeypatch.setattr("qfmt.archive.sources.sniff", look)
    assert set(find([str(sources)], archive).sources) == {"a.pt"}


@pytest.mark.parametrize("number", [EIO, ESTALE])
def test_a_file_that_cannot_be_looked_at_is_the_failure_of_one(
    number: int, sources: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        digits(sources / f"{name}.pt", ord(name))
    kept(sources, archive)
    look = {"stat": os.stat, "lstat": os.lstat}

    def failing(name: str) -> Callable[..., os.stat_result]:
        def looked(path: Any, *args: Any, **options: Any) -> os.stat_result:
            if str(path).endswith(("a.pt", "a.qfb")):
                raise OSError(number, os.strerror(number), str(path))
            return look[name](path, *args, **options)

        return looked

    for name in look:
        monkeypatch.setattr(os, name, failing(name))
    assert set(find([str(sources)], archive).sources) == {"a.pt", "b.pt"}
    assert set(Manifest(archive).entries) == {"a.pt", "b.pt"}
    assert "is not a line of a manifest" not in invoke("check", archive).output


@pytest.mark.parametrize("number", [EIO, ESTALE])
def test_a_manifest_that_cannot_be_looked_at_is_no_absent_one(
    number: int, sources: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where `Path.exists` says that nothing is there if the system cannot say: since Python 3.14."""
    digits(sources / "a.pt")
    kept(sources, archive)
    before = (archive / MANIFEST).read_bytes()
    look, found = os.stat, find([str(sources)], archive).sources

    def looked(path: Any, *args: Any, **options: Any) -> os.stat_result:
        if str(path).endswith(MANIFEST):
            raise OSError(number, os.strerror(number), str(path))
        return look(path, *args, **options)

    def swallowing(method: Callable[..., bool]) -> Callable[..., bool]:
        def asked(path: Path, *args: Any, **options: Any) -> bool:
            try:
                return method(path, *args, **options)
            except OSError:
                return False

        return asked

    monkeypatch.setattr(os, "stat", looked)
    for name in ("exists", "is_file", "is_dir", "is_symlink"):
        monkeypatch.setattr(Path, name, swallowing(getattr(Path, name)))
    with pytest.raises(OSError, match=os.strerror(number)):
        fill(archive, found)
    monkeypatch.undo()
    assert (archive / MANIFEST).read_bytes() == before


@pytest.mark.skipif(sys.platform == "win32", reason="needs a descriptor for each file")
def test_what_a_mount_says_at_close_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mounts of buckets write a file when it is closed."""
    close, model = os.close, qfmt.convert(digits(tmp_path / "a.pt"))
    (tmp_path / "m.qfb").write_bytes(b"old")

    def fail(descriptor: int) -> None:
        close(descriptor)
        raise OSError(EIO, "Input/output error")

    monkeypatch.setattr("qfmt.file.replacing.os.close", fail)
    with pytest.raises(DestinationError, match="cannot be written: Input/output error"):
        model.save(tmp_path / "m.qfb")
    monkeypatch.undo()
    assert (tmp_path / "m.qfb").read_bytes() == b"old"
    assert {path.name for path in tmp_path.iterdir()} == {"a.pt", "m.qfb"}
