"""`check`, `inspect` and `verify` of an archive."""

from __future__ import annotations

import json
import shutil
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

import qfmt
from qfmt.archive.filling import fill
from qfmt.archive.manifest import MANIFEST, Manifest
from qfmt.archive.sources import find
from qfmt.errors import QfmtError
from support.archives import FINDINGS, digits
from support.command_line import invoke, trouble
from support.paths import DIGITS, HOSTILE


@pytest.fixture
def three(sources: Path, archive: Path) -> Path:
    """One model of two sources, another one, and a failure."""
    digits(sources / "a.pt")
    digits(sources / "b.pt")
    digits(sources / "c.pt", 1)
    shutil.copy(FINDINGS, sources / "d.pt")
    assert invoke("convert", sources, "--out", archive, "--quiet").exit_code == 1
    return archive


def test_check_counts_what_it_proved_and_replayed(sources: Path, archive: Path) -> None:
    model = qfmt.convert(DIGITS)
    lowered = model.to_integers(input_shapes={"x": ("N", 1, 8, 8)})
    sources.mkdir(exist_ok=True)
    for name, each in {"a": model, "b": lowered}.items():
        each.save(sources / f"{name}.qfb")
    assert invoke("convert", sources, "--out", archive, "--quiet").exit_code == 0
    counts = invoke("check", sources / "b.qfb", "--proofs").stdout.partition("valid; ")[2]
    both = invoke("check", archive, "--proofs", "--replay").stdout
    assert both == f"{archive}: 2 files, valid; {counts.strip()}; there are no test vectors\n"
    model.with_vectors({"x": np.zeros((1, 1, 8, 8), np.float32)}).save(sources / "a.qfb")
    assert invoke("convert", sources, "--out", archive, "--quiet").exit_code == 0
    said = "all outputs of the test vectors are equal: 1; 1 file without test vectors"
    assert invoke("check", archive, "--replay").stdout == f"{archive}: 2 files, valid; {said}\n"


def test_sources_that_are_qfb_files_are_verified(sources: Path, archive: Path) -> None:
    model = qfmt.convert(DIGITS)
    sources.mkdir(exist_ok=True)
    model.save(sources / "a.qfb")
    model.to_integers(input_shapes={"x": ("N", 1, 8, 8)}).save(sources / "b.qfb")
    assert invoke("convert", sources, "--out", archive, "--quiet").exit_code == 0
    result = invoke("verify", "--archive", archive)
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, f"{archive}: 2 of 2 are right")


def test_check_finds_what_is_not_as_it_was_written(three: Path) -> None:
    result = invoke("check", three, "--proofs")
    assert (result.exit_code, result.stdout) == (
        0,
        f"{three}: 2 files, valid; there are no integer sums; no file for 1 of 4 sources: see `qfmt inspect {three}`\n",
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
    (three / "c.qfb").mkdir()
    assert "c.qfb: is a directory, not a regular file" in invoke("check", three).stdout


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


def test_check_finds_another_engine(three: Path) -> None:
    """That of the first entry of a file, and of another one."""
    lines = (three / MANIFEST).read_text().splitlines(keepends=True)
    shared = [number for number, line in enumerate(lines) if json.loads(line)["file"] == "a.qfb"]
    differs = "a.qfb: two entries of the manifest differ about it\n"
    other = "a.qfb: its engine is not that of the manifest; remove it, and convert again\n"
    for number, said in (shared[0], other + differs), (shared[-1], differs):
        changed = lines[number].replace('"engine": "fbgemm"', '"engine": "x86"')
        (three / MANIFEST).write_text("".join([*lines[:number], changed, *lines[number + 1 :]]))
        result = invoke("check", three)
        assert (result.exit_code, result.stdout) == (1, said)


def test_check_finds_entries_that_contradict_each_other(three: Path) -> None:
    """Two entries of one file: the first one states another network."""
    manifest = Manifest(three)
    first, *rest = (three / MANIFEST).read_text().splitlines(keepends=True)
    changed = first.replace(manifest.entries["a.pt"].content_id, "0" * 64)
    (three / MANIFEST).write_text("".join([changed, *rest]))
    result = invoke("check", three)
    said = "a.qfb: its content id is not that of the manifest\na.qfb: two entries of the manifest differ about it\n"
    assert (result.exit_code, result.stdout) == (1, said)


def test_a_file_is_read_once_however_often_it_is_listed(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = json.loads((three / MANIFEST).read_text().splitlines()[0])
    with (three / MANIFEST).open("a") as manifest:
        for number in range(9):
            manifest.write(json.dumps(entry | {"source": f"{number}"}) + "\n")
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


@pytest.mark.parametrize("options", [("--vectors", "1"), ("--shard-size", "1k")])
def test_equal_models_with_other_vectors_or_shards_are_two_files(
    sources: Path, archive: Path, options: tuple[str, str]
) -> None:
    """Their content ids are equal, but the second would not have what was asked for."""
    for name in "ab":
        digits(sources / f"{name}.pt")
    assert invoke("convert", sources, "--out", archive, "--quiet").exit_code == 0
    assert invoke("convert", sources / "b.pt", "--out", archive, *options, "--quiet").exit_code == 0
    entries = Manifest(archive).entries
    assert [entry.file for entry in entries.values()] == ["a.qfb", "b.qfb"]
    assert len({entry.content_id for entry in entries.values()}) == 1
    has_vectors, has_shards = qfmt.load(archive / "b.qfb").vectors, [*archive.glob("b.*.qfs")]
    assert [bool(has_vectors), bool(has_shards)] == [option in options for option in ("--vectors", "--shard-size")]
    assert invoke("convert", sources / "a.pt", "--out", archive, *options, "--quiet").exit_code == 0
    assert {entry.file for entry in Manifest(archive).entries.values()} == {"b.qfb"}
    assert invoke("check", archive).stdout == f"{archive}: 1 file, valid\n"


def test_no_empty_folders_remain(tmp_path: Path, archive: Path) -> None:
    """Neither of a file that could not be written, nor of one whose model another source has now."""
    sources = {"a.pt": digits(tmp_path / "a.pt"), "sub/deep/b.pt": digits(tmp_path / "b.pt", 1)}
    (archive / "sub" / "mine").mkdir(parents=True)
    filled = fill(archive, {"fails/too/b.pt": sources["sub/deep/b.pt"]}, options={"shard_size": 0})
    assert filled.results == {"fails/too/b.pt": "failed"}
    fill(archive, sources)
    assert (archive / "sub" / "deep" / "b.qfb").is_file() and not (archive / "fails").exists()
    digits(tmp_path / "b.pt")
    assert fill(archive, sources).results == {"a.pt": "kept", "sub/deep/b.pt": "equal"}
    assert sorted(path.name for path in archive.rglob("*")) == ["a.qfb", MANIFEST, "mine", "sub"]


@pytest.mark.parametrize("prefix", [".qfmt-", ".qfmt-.qfmt-"])
def test_a_source_that_is_named_like_what_a_killed_process_left(prefix: str, tmp_path: Path, archive: Path) -> None:
    name = f"d/{prefix}{'0' * 16}.tmp/net.pt"
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


def test_an_archive_may_be_a_link(three: Path, tmp_path: Path) -> None:
    """The paths of sources are relative to the folder that it leads to."""
    (tmp_path / "below").mkdir()
    link = tmp_path / "below/link"
    link.symlink_to(three, target_is_directory=True)
    assert f"{link}: 3 of 3 are right" in invoke("verify", "--archive", link, "--samples", 1).output


def test_errors_of_an_archive_are_errors_of_qfmt(archive: Path) -> None:
    archive.write_text("a file")
    with pytest.raises(QfmtError, match="cannot be created"):
        fill(archive, {"a.pt": DIGITS})
