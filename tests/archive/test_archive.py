"""Archives: many sources in one folder, converted in processes that may be killed, and what reads such a folder."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pytest

import qfmt
from qfmt.archive import filling, workers
from qfmt.archive.filling import _journal, fill
from qfmt.archive.manifest import MANIFEST, Entry, Manifest
from qfmt.archive.sources import find
from qfmt.archive.workers import accepted
from qfmt.errors import DestinationError, MissingFileError, QfmtError, SourceError
from qfmt.file.sharding import stated
from support.command_line import invoke, start, trouble
from support.making import NONSENSE
from support.paths import DIGITS, HOSTILE, SAMPLES

FINDINGS = HOSTILE / "stride0.pt"
WEIGHTS = 1280
"""Bytes of the only member of DIGITS that has as many: the weights of its last layer."""


def digits(path: Path, number: int = 0, form: int = zipfile.ZIP_STORED) -> Path:
    """The network of DIGITS with some other weights; another form of the zip has other bytes and the same model."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(DIGITS) as source, zipfile.ZipFile(path, "w", form) as target:
        for name in source.namelist():
            content = source.read(name)
            target.writestr(name, bytes([number]) + content[1:] if len(content) == WEIGHTS else content)
    return path


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    return tmp_path / "sources"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tmp_path / "archive"


def kept(sources: Path, archive: Path, **options: Any) -> set[str]:
    """Fill an archive; the sources that were there already."""
    results = fill(archive, find([str(sources)], archive).sources, **options).results
    return {name for name, result in results.items() if result == "kept"}


def lines(archive: Path) -> list[dict[str, Any]]:
    """The lines of a manifest, without what differs between two runs."""
    entries = map(json.loads, (archive / MANIFEST).read_text().splitlines())
    return [{key: value for key, value in entry.items() if key != "seconds"} for entry in entries]


def files(archive: Path) -> list[str]:
    return sorted(path.relative_to(archive).as_posix() for path in archive.rglob("*.qfb"))


# Sources


def test_sources_are_named_by_their_place_in_a_folder_or_glob(
    tmp_path: Path, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.pt", "sub/b.pt", "sub/deep/c.pt", ".hidden/d.pt", "archive/e.pt"):
        digits(sources / name)
    (sources / "README.md").write_text("models")
    np.save(sources / "x.npy", np.zeros(2))
    (sources / "empty.pt").touch()
    archive = sources / "archive"
    found = find([str(sources)], archive)
    assert list(found.sources) == ["a.pt", "empty.pt", "sub/b.pt", "sub/deep/c.pt"]
    assert found.left_out == 2
    assert list(find([str(sources / "sub" / "b.pt")], archive).sources) == ["b.pt"]
    assert list(find([f"{sources}/*/b.pt"], archive).sources) == ["sub/b.pt"]
    assert list(find([f"{sources}/**/*.pt"], archive / "other").sources)[-2:] == ["sub/b.pt", "sub/deep/c.pt"]
    assert list(find([f"{sources}/*.md"], archive).sources) == ["README.md"]  # a name that was asked for
    monkeypatch.chdir(sources)
    several = find(["s*/*.pt", "sub/b.pt", "."], archive).sources
    assert list(several) == ["a.pt", "b.pt", "empty.pt", "sub/b.pt", "sub/deep/c.pt"]


def test_what_is_no_source_is_said_before_anything_is_converted(sources: Path, archive: Path) -> None:
    a, b = digits(sources / "1" / "net.pt"), digits(sources / "2" / "net.pt")
    (archive / "inside").mkdir(parents=True)
    shutil.copy(a, archive / "inside" / "net.pt")
    (sources / "none").mkdir()
    for places, kind, said in (
        ([a, b], SourceError, "two sources have the name net.pt"),
        ([sources / "none.pt"], MissingFileError, "there is no such file"),
        ([sources / "*.onnx"], MissingFileError, "no file matches"),
        ([archive / "inside" / "net.pt"], DestinationError, "the source is in the archive"),
        ([sources / "none"], SourceError, "there are no models"),
        ([archive], DestinationError, "all sources are in the archive"),
    ):
        with pytest.raises(kind, match=said):
            find([str(place) for place in places], archive)
    assert said in trouble("convert", archive, "--out", archive)


# Converting


def test_an_archive_holds_what_single_conversions_write(tmp_path: Path, sources: Path, archive: Path) -> None:
    for number in range(2):
        digits(sources / f"net{number}.pt", number)
    shutil.copytree(SAMPLES, sources / "samples")
    result = invoke("convert", sources, "--out", archive, "--jobs", 2)
    assert result.exit_code == 0, result.output
    assert "left out: 2 files" in result.stdout  # .npz
    firsts = {entry.file: entry.source for entry in reversed(Manifest(archive).entries.values())}
    assert len(firsts) == 4
    for file, source in firsts.items():
        single = tmp_path / "single.qfb"
        assert invoke("convert", sources / source, single).exit_code == 0
        assert single.read_bytes() == (archive / file).read_bytes()
    assert invoke("check", archive).exit_code == 0


def test_the_manifest_says_what_became_of_each_source(sources: Path, archive: Path) -> None:
    a = digits(sources / "a.pt")
    shutil.copy(FINDINGS, sources / "b.pt")
    result = invoke("convert", sources, "--out", archive)
    assert result.exit_code == 1
    good, bad = lines(archive)
    written = archive / "a.qfb"
    assert good == {
        "source": "a.pt",
        "path": "../sources/a.pt",
        "options": {},
        "size": a.stat().st_size,
        "sha256": sha256(a.read_bytes()).hexdigest(),
        "external": "",
        "file": "a.qfb",
        "file_sha256": sha256(written.read_bytes()).hexdigest(),
        "content_id": qfmt.load(written).content_id().hex(),
        "error": "",
    }
    assert bad["error"].startswith("data.pkl, byte 126: converting 5526 bytes would take more than")
    assert (bad["content_id"], bad["file_sha256"]) == ("", "")
    assert f"qfmt: error: b.pt: {bad['error']}\n" in result.stderr
    assert [row.split()[:2] for row in result.stdout.splitlines()[1:3]] == [["converted", "1"], ["failed", "1"]]
    assert files(archive) == ["a.qfb"]


def test_nothing_is_converted_twice(sources: Path, archive: Path) -> None:
    for number in range(3):
        digits(sources / f"{number}.pt", number)
    assert not kept(sources, archive, jobs=2)
    before = (archive / MANIFEST).read_bytes()
    stamps = [path.stat().st_mtime_ns for path in archive.glob("*.qfb")]
    assert kept(sources, archive) == {"0.pt", "1.pt", "2.pt"}
    assert (archive / MANIFEST).read_bytes() == before
    assert [path.stat().st_mtime_ns for path in archive.glob("*.qfb")] == stamps
    (archive / "0.qfb").unlink()
    (archive / "1.qfb").write_bytes(b"damaged")
    assert kept(sources, archive) == {"2.pt"}
    digits(sources / "2.pt", 9)
    digits(sources / "3.pt", 3)
    assert kept(sources, archive) == {"0.pt", "1.pt"}
    assert len({entry["content_id"] for entry in lines(archive)}) == 4
    assert kept(sources, archive, options={"engine": "qnnpack"}) == set()
    assert invoke("check", archive).exit_code == 0


def test_the_number_of_jobs_changes_nothing_but_seconds(tmp_path: Path, sources: Path) -> None:
    for number in range(6):
        digits(sources / f"{number}.pt", number // 2)
    shutil.copy(FINDINGS, sources / "hostile.pt")
    one, two = tmp_path / "one", tmp_path / "two"
    kept(sources, one, jobs=1)
    kept(sources, two, jobs=2)
    assert lines(one) == lines(two)
    assert files(one) == files(two) == ["0.qfb", "2.qfb", "4.qfb"]


def test_changed_external_data_is_a_changed_source(sources: Path, archive: Path) -> None:
    onnx = pytest.importorskip("onnx")
    sources.mkdir()
    path = sources / "m.onnx"
    text = '<ir_version: 9, opset_import: ["": 17]> agraph (float[2] x) => (float[2] y) { y = Add(x, w) }'
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1, 2], np.float32), "w"))
    onnx.save(model, path, save_as_external_data=True, location="m.data", size_threshold=0)
    assert not kept(sources, archive)
    assert kept(sources, archive) == {"m.onnx"}
    (sources / "m.data").write_bytes(np.array([2, 2], np.float32).tobytes())
    assert not kept(sources, archive)
    with qfmt.load(archive / "m.qfb") as model:
        assert model.tensors["w"].array.tolist() == [2, 2]


# Equal models


def test_equal_models_are_stored_once(sources: Path, archive: Path) -> None:
    a = digits(sources / "a.pt")
    shutil.copy(a, sources / "copy.pt")
    digits(sources / "deflated.pt", form=zipfile.ZIP_DEFLATED)
    digits(sources / "other.pt", 1)
    kept(sources, archive, jobs=2)
    assert files(archive) == ["a.qfb", "other.qfb"]
    assert {entry["source"]: entry["file"] for entry in lines(archive)} == {
        "a.pt": "a.qfb",
        "copy.pt": "a.qfb",
        "deflated.pt": "a.qfb",
        "other.pt": "other.qfb",
    }


def test_equal_models_have_the_name_of_the_first_source_whichever_was_ready_first(sources: Path, archive: Path) -> None:
    digits(sources / "a.pt")
    digits(sources / "b.pt", form=zipfile.ZIP_DEFLATED)
    fill(archive, find([str(sources)], archive).sources, maker="support.making:last_first", jobs=2)
    assert [entry["file"] for entry in lines(archive)] == ["a.qfb", "a.qfb"]
    assert files(archive) == ["a.qfb"]
    with qfmt.load(archive / "a.qfb") as model:
        assert model.source["sha256"] == lines(archive)[0]["sha256"]


def test_a_file_that_is_in_the_archive_keeps_its_name(sources: Path, archive: Path) -> None:
    """Whatever comes later, also before it in the order of names, or in the place of a failure."""
    sources.mkdir()
    shutil.copy(FINDINGS, sources / "b.pt")
    digits(sources / "c.pt")
    kept(sources, archive)
    for name in ("a", "b", "d"):
        digits(sources / f"{name}.pt", form=zipfile.ZIP_DEFLATED)
    assert kept(sources, archive, jobs=2) == {"c.pt"}
    assert {entry["file"] for entry in lines(archive)} == {"c.qfb"}
    assert files(archive) == ["c.qfb"]


def test_a_file_that_other_sources_share_is_not_replaced(sources: Path, archive: Path) -> None:
    digits(sources / "a.pt")
    b = digits(sources / "b.pt")
    kept(sources, archive)
    b.unlink()
    digits(sources / "a.pt", 1)
    kept(sources, archive)
    assert {entry["source"]: entry["file"] for entry in lines(archive)} == {"a.pt": "a.pt.qfb", "b.pt": "a.qfb"}
    assert invoke("check", archive).exit_code == 0


def test_sources_that_differ_in_the_suffix_have_files_of_their_own(sources: Path, archive: Path) -> None:
    digits(sources / "net.pt")
    digits(sources / "net.ptl", 1)
    kept(sources, archive)
    assert files(archive) == ["net.ptl.qfb", "net.qfb"]
    assert kept(sources, archive) == {"net.pt", "net.ptl"}


def shards(archive: Path) -> dict[str, set[str]]:
    """The names of the shards that each file of an archive states; the folder has these and no others."""
    found = {file: {shard.name for shard in stated(archive / file)} for file in files(archive)}
    assert {path.name for path in archive.iterdir()} == {*found, MANIFEST}.union(*found.values())
    return found


def test_files_of_an_archive_may_have_shards(tmp_path: Path, sources: Path, archive: Path) -> None:
    a, options = digits(sources / "a.pt"), {"options": {"shard_size": 1000}}
    digits(sources / "b.pt", form=zipfile.ZIP_DEFLATED)
    digits(sources / "c.pt", 1)
    assert invoke("convert", sources, "--out", archive, "--shard-size", 1000, "--jobs", 2).exit_code == 0
    first = shards(archive)
    assert [*first] == ["a.qfb", "c.qfb"]
    assert min(map(len, first.values())) > 1
    assert invoke("check", archive).exit_code == 0
    assert kept(sources, archive, **options) == {"a.pt", "b.pt", "c.pt"}
    lost = archive / min(first["c.qfb"])
    lost.unlink()
    assert "is missing" in invoke("check", archive).output
    assert kept(sources, archive, **options) == {"a.pt", "b.pt"}
    assert shards(archive) == first
    digits(a, 2)  # b has its model no longer
    kept(sources, archive, **options)
    assert [*shards(archive)] == sorted({entry["file"] for entry in lines(archive)})
    assert invoke("check", archive).exit_code == 0
    kept(sources, archive)
    assert not set().union(*shards(archive).values())
    assert invoke("check", archive).exit_code == 0


def test_shards_of_an_equal_model_that_was_ready_first_are_removed(sources: Path, archive: Path) -> None:
    digits(sources / "a.pt")
    digits(sources / "b.pt", form=zipfile.ZIP_DEFLATED)
    found, options = find([str(sources)], archive).sources, {"shard_size": 1000}
    fill(archive, found, maker="support.making:last_first", options=options, jobs=2)
    assert [*shards(archive)] == ["a.qfb"]


def test_shards_of_others_are_not_removed(sources: Path, archive: Path) -> None:
    """A file may state any shards of its folder."""
    a = digits(sources / "a.pt")
    kept(sources, archive, options={"shard_size": 1000})
    shutil.copy(archive / "a.qfb", archive / "mine.qfb")
    digits(a, 1)
    kept(sources, archive)
    with qfmt.load(archive / "mine.qfb") as model:
        assert model.tensors["fc.weight"].array.size


def test_an_archive_by_url_has_no_shards(sources: Path) -> None:
    said = trouble("convert", digits(sources / "a.pt"), "--out", "s3://bucket/archive", "--shard-size", "1K")
    assert "shards cannot be put into an archive by URL" in said


# What may go wrong


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
    for command in (("check", archive), ("check", archive, "--json"), ("verify", "--archive", archive)):
        result = invoke(*command)
        assert (result.exit_code, result.stdout.count(said)) == (1, count), result.output
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
        task = {"source": name, "path": str(sources / name), "file": "a.qfb", "options": {}, "known": known}
        answer = filling.convert_task(str(archive), "qfmt.cli.conversion:make", task)
        assert "unknown format" in answer["error"] or "longer than its header states" in answer["error"]


def test_a_source_that_changes_meanwhile_fails(sources: Path, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would have the digest of one content and the model of another, and never be converted again."""
    path = digits(sources / "a.pt")

    def converted(source: Path) -> qfmt.Model:
        model = qfmt.convert(source)
        digits(sources / "b.pt", 1).replace(source)
        return model

    monkeypatch.setattr(filling, "named", lambda name: converted)
    task = {"source": "a.pt", "path": str(path), "file": "a.qfb", "options": {}, "known": None}
    answer = filling.convert_task(str(archive), "", task)
    assert answer["error"] == "was changed while it was converted; run the same command again"
    assert not archive.exists()


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
        ('{"source": "a", "path": "a", "seconds": 1e999}', "archive.jsonl:1: is not a line of a manifest"),
        ('{"source": "a", "path": "a", "file": "\\u0000"}', "archive.jsonl:1: is not a line of a manifest"),
        ('{"source": "a", "path": "a", "file": "a.qfb", "file": ""}', "archive.jsonl:1: is not a line of a manifest"),
        ('{"source": "a", "path": "a", "options": {"a": [[[[]]]]}}', "archive.jsonl:1: is not a line of a manifest"),
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
    assert (result.exit_code, "only the manifest says" in result.stdout) == (1, True)


def test_links_in_an_archive_lead_nowhere_else(tmp_path: Path, sources: Path, archive: Path) -> None:
    """Of an archive of anyone, what is to be written may be a link: the manifest, a file, or its folder."""
    outside = tmp_path / "precious"
    digits(sources / "0.pt")
    for name, said in (
        (MANIFEST, "is a link"),
        ("0.qfb", "the file of 0.pt is not in the archive: 0.qfb"),
    ):
        archive.mkdir()
        outside.write_bytes(b"precious")
        (archive / name).symlink_to(outside)
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
    assert "Missing argument 'SOURCE': qfmt convert [OPTIONS] SOURCE DEST | SOURCES… --out FOLDER" in trouble("convert")
    assert "is a folder; to convert all that is in it, use --out FOLDER" in trouble("convert", tmp_path, "m.qfb")


# Reading an archive


@pytest.fixture
def three(sources: Path, archive: Path) -> Path:
    """One model of two sources, another one, and a failure."""
    digits(sources / "a.pt")
    digits(sources / "b.pt")
    digits(sources / "c.pt", 1)
    shutil.copy(FINDINGS, sources / "d.pt")
    assert invoke("convert", sources, "--out", archive, "--quiet").exit_code == 1
    return archive


def test_check_finds_what_is_not_as_it_was_written(three: Path) -> None:
    result = invoke("check", three, "--proofs")
    assert (result.exit_code, result.stdout) == (
        0,
        f"{three}: 2 files, valid; no file for 1 of 4 sources: see `qfmt inspect {three}`\n",
    )
    content = bytearray((three / "a.qfb").read_bytes())
    content[-1] ^= 1
    (three / "a.qfb").write_bytes(content)
    (three / "c.qfb").unlink()
    result = invoke("check", three)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "a.qfb: is not the file that was written: its sha256 differs",
        "c.qfb: is missing",
    ]
    told = json.loads(invoke("check", three, "--json").stdout)
    assert [(each["file"], each["valid"]) for each in told["files"]] == [("a.qfb", False), ("c.qfb", False)]


def test_check_finds_broken_rules_and_another_content_id(three: Path) -> None:
    manifest = Manifest(three)
    path = HOSTILE / "lower-bias.qfb"
    shutil.copy(path, three / "a.qfb")
    changes = {"a.qfb": sha256(path.read_bytes()).hexdigest()}
    text = (three / MANIFEST).read_text()
    for entry in manifest.entries.values():
        text = (
            text.replace(entry.file_sha256, changes.get(entry.file, entry.file_sha256)) if entry.file_sha256 else text
        )
    (three / MANIFEST).write_text(text.replace(manifest.entries["c.pt"].content_id, "0" * 64))
    result = invoke("check", three)
    assert result.exit_code == 1
    assert [line[:50] for line in result.stdout.splitlines()] == [
        "a.qfb: V43 node 0 (qfmt.Linear → y): a bias of sha",
        "c.qfb: its content id is not that of the manifest",
    ]


def test_check_finds_entries_that_contradict_each_other(three: Path) -> None:
    """Two entries of one file: the first one states another network."""
    manifest = Manifest(three)
    first, *rest = (three / MANIFEST).read_text().splitlines(keepends=True)
    changed = first.replace(manifest.entries["a.pt"].content_id, "0" * 64)
    (three / MANIFEST).write_text("".join([changed, *rest]))
    result = invoke("check", three)
    said = "a.qfb: its content id is not that of the manifest\na.qfb: the manifest states two contents of it\n"
    assert (result.exit_code, result.stdout) == (1, said)


def test_a_file_is_read_once_however_often_it_is_listed(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (three / "again").symlink_to(".")
    entry = json.loads((three / MANIFEST).read_text().splitlines()[0])
    with (three / MANIFEST).open("a") as manifest:
        for number in range(9):
            manifest.write(json.dumps(entry | {"source": f"{number}", "file": f"again/{entry['file']}"}) + "\n")
    read: list[Path] = []
    load = qfmt.load
    monkeypatch.setattr(qfmt, "load", lambda path: (read.append(path), load(path))[1])
    models = json.loads(invoke("inspect", three, "--json").stdout)["models"]
    assert len([model for model in models if model.get("nodes") == 11]) == 12
    assert len(read) == 2
    assert len(json.loads(invoke("check", three, "--json").stdout)["files"]) == 2


def test_no_other_file_is_replaced(sources: Path, archive: Path) -> None:
    """It may hold data of a source."""
    digits(sources / "a.pt")
    archive.mkdir()
    (archive / "a.qfb").write_bytes(b"weights")
    filled = fill(archive, find([str(sources)], archive).sources)
    assert filled.results == {"a.pt": "failed"} and (archive / "a.qfb").read_bytes() == b"weights"
    assert filled.manifest.entries["a.pt"].error.startswith("is there, and is no .qfb")


def test_a_source_that_is_named_like_what_a_killed_process_left(tmp_path: Path, archive: Path) -> None:
    name = f"d/.qfmt-{'0' * 16}.tmp/net.pt"
    filled = fill(archive, {name: digits(tmp_path / "net.pt"), "d/z.pt": digits(tmp_path / "z.pt", 1)})
    assert set(filled.results.values()) == {"converted"}
    assert invoke("check", archive).exit_code == 0


def test_inspect_shows_one_line_a_source(three: Path) -> None:
    title, *rows, blank, total = invoke("inspect", three).stdout.splitlines()
    assert title.split()[:3] == ["source", "from", "engine"]
    assert [row.split()[0] for row in rows] == ["a.pt", "b.pt", "c.pt", "d.pt"]
    assert "11,402" in rows[0]
    assert rows[1].endswith("a.qfb")
    assert "would take more than" in rows[3]
    assert (blank, total) == ("", f"{three}: 4 sources")
    _, row, _, total = invoke("inspect", three, "--filter", "C.QFB").stdout.splitlines()
    assert row.startswith("c.pt ") and total == f"{three}: 1 of 4 sources"
    models = json.loads(invoke("inspect", three, "--json", "--filter", "a.qfb").stdout)["models"]
    assert [(model["source"], model["nodes"], model["parameters"]) for model in models] == [
        ("a.pt", 11, 11402),
        ("b.pt", 11, 11402),
    ]
    assert "an archive is shown with" in trouble("inspect", three, "--nodes")
    assert "--filter is for archives" in trouble("inspect", three / "a.qfb", "--filter", "a")
    assert "is neither a file nor a folder that `qfmt convert --out` wrote" in trouble("inspect", three.parent)


def test_verify_compares_each_source_with_its_file(three: Path) -> None:
    result = invoke("verify", "--archive", three, "--samples", 1)
    assert result.exit_code == 0, result.output
    rows = [row.split() for row in result.stdout.splitlines()[1:4]]
    assert [(row[0], row[-1]) for row in rows] == [("a.pt", "equal"), ("b.pt", "equal"), ("c.pt", "equal")]
    assert result.stdout.endswith(f"{three}: 3 of 3 are right; no file for 1 of 4 sources\n")
    sources = three.parent / "sources"
    (sources / "b.pt").unlink()
    digits(sources / "c.pt", 2)
    result = invoke("verify", "--archive", three, "--samples", 1, "--json")
    told = json.loads(result.stdout)
    assert (result.exit_code, told["ok"]) == (1, False)
    assert [report["ok"] for report in told["reports"]] == [True, False, False]
    assert "there is no such file" in told["reports"][1]["error"]
    last = invoke("verify", "--archive", three, "--samples", 1).stdout.splitlines()[-1]
    assert last == f"{three}: 1 of 3 are right; 1 could not be verified; no file for 1 of 4 sources"
    for arguments in ((three.parent,), (three, DIGITS, three / "a.qfb")):
        assert "--help" in trouble("verify", "--archive", *arguments)
    assert "Missing argument 'FILE'" in trouble("verify", DIGITS)


def test_errors_of_an_archive_are_errors_of_qfmt(archive: Path) -> None:
    archive.write_text("a file")
    with pytest.raises(QfmtError, match="cannot be created"):
        fill(archive, {"a.pt": DIGITS})


# Bad days


def test_a_folder_that_cannot_be_read_is_an_error(
    sources: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digits(sources / "a.pt")
    digits(sources / "secret" / "b.pt")
    scan = os.scandir

    def refuse(path: Any) -> Any:
        if Path(path).name == "secret":
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    for named in (str(sources), f"{sources}/**/*.pt"):
        with pytest.raises(SourceError, match="Permission denied"):
            find([named], archive)


def test_links_to_folders_are_not_followed(sources: Path, archive: Path) -> None:
    digits(sources / "a" / "b.pt")
    for name in "xyz":  # `glob` would find 3 ** 40 paths
        (sources / "a" / name).symlink_to("..")
    for named in (str(sources), f"{sources}/**", f"{sources}/**/*.pt", f"{sources}/*/**/b.pt", f"{sources}/**/**/b*"):
        assert [*find([named], archive).sources] == ["a/b.pt"]


def test_a_link_to_nothing_is_a_source_that_fails(sources: Path, archive: Path) -> None:
    """The disk that it leads to may be missing."""
    sources.mkdir()
    (sources / "a.pt").symlink_to("nowhere")
    (sources / "b.pt").symlink_to("b.pt")
    os.mkfifo(sources / "c.pt")
    for named, left_out in (sources, 1), (f"{sources}/[ab].pt", 0):
        found = find([str(named)], archive)
        assert ([*found.sources], found.left_out) == (["a.pt", "b.pt"], left_out)
    results = fill(archive, find([f"{sources}/*"], archive).sources).results
    assert results == dict.fromkeys(("a.pt", "b.pt", "c.pt"), "failed")
    (sources / "d.pt").symlink_to(os.devnull)
    told = json.loads(invoke("convert", f"{sources}/[cd].pt", "--out", archive, "--json", "--timeout", "60").stdout)
    said = ("is a FIFO, not a regular file", "is a character device, not a regular file")
    assert tuple(entry["error"] for entry in told["entries"]) == said


@pytest.mark.skipif(sys.platform != "linux", reason="names of other systems are Unicode")
def test_names_that_are_not_text_are_refused(sources: Path, archive: Path) -> None:
    """A manifest with them could not be read again."""
    digits(sources / "a.pt")
    digits(sources / "folder-\udcff" / "b.pt")
    (source,) = find([str(sources / "folder-\udcff" / "b.pt")], archive).sources.items()
    for given in (find([str(sources)], archive).sources, dict([source])):
        with pytest.raises(SourceError, match="its name, its path or an option is not UTF-8"):
            fill(archive, given)
    with pytest.raises(SourceError, match="is not UTF-8"):
        fill(archive, {"a.pt": DIGITS}, options={"input_shapes": {"\udcff": [1]}})
    assert files(archive) == []


def test_a_file_that_the_system_cannot_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where its encoding is ASCII."""

    def fail(self: Manifest, entry: Entry) -> Any:
        return entry.file.encode("ascii")

    (tmp_path / MANIFEST).write_text(Entry("\xe9.pt", "\xe9.pt", file="\xe9.qfb").line)
    monkeypatch.setattr(Manifest, "place", fail)
    with pytest.raises(QfmtError, match="names a file that this system cannot name in ascii"):
        Manifest(tmp_path)


@pytest.mark.parametrize("shard_size", [None, 1000], ids=["one file", "shards"])
def test_names_have_room_for_suffixes(sources: Path, archive: Path, shard_size: int | None) -> None:
    """File systems take 255 bytes."""
    for number, name in enumerate(("a" * 252, "a" * 251 + "b", "\xe9" * 126)):
        digits(sources / f"{name}.pt", number)
    options = {"shard_size": shard_size} if shard_size else {}
    assert kept(sources, archive, options=options) == set()
    assert [entry.file for entry in Manifest(archive).entries.values()] == [
        f"{'a' * 200}.qfb",
        f"{'a' * 200}.2.qfb",
        f"{chr(0xE9) * 100}.qfb",
    ]
    assert len(kept(sources, archive, options=options)) == 3


def test_files_have_names_that_differ_on_every_system(sources: Path, archive: Path) -> None:
    names = ("Net.pt", "net.pt", "NET.pth", "\xe9.pt", "e\u0301.pt", "deep.pt", "deep.qfb/net.pt")
    for number, name in enumerate(names):
        digits(sources / name, number)
    assert kept(sources, archive) == set()
    entries = Manifest(archive).entries
    assert set(entries) == set(names) and not any(entry.error for entry in entries.values())
    alike = {normalize("NFC", entry.file.casefold()) for entry in entries.values()}
    assert len(alike) == len(names)
    assert kept(sources, archive) == set(names)


def test_an_error_beside_a_worker_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(workers._Worker, "answer", fail)
    with pytest.raises(RuntimeError, match="new thread"):
        list(workers.results([{}] * 4, "json:dumps", (), 2))


def test_a_system_that_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", fail)
    with pytest.raises(QfmtError, match=r"a process cannot be started: Resource .*; use fewer --jobs"):
        list(workers.results([{}], "json:dumps", (), 1))


def test_a_signal_without_a_name() -> None:
    """Python's enumeration lacks some of those for real-time programs."""
    assert workers._end(-40) == "was ended by signal 40"


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")
def test_a_worker_without_memory_prints_nothing(
    sources: Path, archive: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    digits(sources / "a.pt")
    filled = fill(archive, find([str(sources)], archive).sources, limits=workers.Limits(1))
    assert "needs more memory than" in filled.manifest.entries["a.pt"].error
    assert capfd.readouterr().err == ""


def test_a_manifest_that_another_program_wrote(sources: Path, archive: Path) -> None:
    for number in range(2):
        digits(sources / f"{number}.pt", number)
    kept(sources, archive)
    path = archive / MANIFEST
    entries = [json.loads(line) | {"seconds": 1} for line in path.read_text().splitlines()]
    path.write_text("\n".join(map(json.dumps, entries)))  # nothing ends the last line
    assert kept(sources, archive) == {"0.pt", "1.pt"}


def test_a_manifest_that_cannot_be_appended_to(archive: Path) -> None:
    archive.mkdir()
    with (
        pytest.raises(DestinationError, match=r"archive\.jsonl: cannot be written: No space left"),
        _journal(Manifest(archive)),
    ):
        raise OSError(28, "No space left on device")


def test_names_that_lead_nowhere(tmp_path: Path, sources: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    source = digits(sources / "a.pt")
    assert "cannot be created" in trouble("convert", source, "--out", loop)
    assert "the path is empty" in trouble("convert", "", "--out", tmp_path / "archive")
    assert "the path is empty" in trouble("convert", source, "--out", "")


def test_an_archive_without_files_is_not_right(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text("")
    result = invoke("verify", "--archive", tmp_path)
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (1, f"{tmp_path}: 0 of 0 are right")
