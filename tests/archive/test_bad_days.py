"""Archives on bad days: killed workers, full disks, odd names and folders."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pytest

from qfmt.archive import workers
from qfmt.archive.filling import _journal, fill
from qfmt.archive.manifest import MANIFEST, Entry, Manifest
from qfmt.archive.sources import find
from qfmt.errors import DestinationError, QfmtError, SourceError
from support.archives import digits, files, kept, shards
from support.command_line import invoke, trouble
from support.paths import DIGITS, ROOT
from support.processes import has_ended


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

    def refuse_details(path: Any, **options: Any) -> Any:
        if Path(path).parent.name == "secret":
            raise PermissionError(13, "Permission denied", str(path))
        return details(path, **options)

    details = os.lstat
    monkeypatch.setattr(os, "scandir", refuse)
    monkeypatch.setattr(os, "lstat", refuse_details)
    for named in (str(sources), f"{sources}/**/*.pt", f"{sources}/*/*.pt", f"{sources}/*/b.pt"):
        with pytest.raises(SourceError, match="Permission denied"):
            find([named], archive)


def test_links_to_folders_are_not_followed(sources: Path, archive: Path) -> None:
    digits(sources / "a" / "b.pt")
    for name in "xyz":  # `glob` would find 3 ** 40 paths
        (sources / "a" / name).symlink_to("..")
    for named in (str(sources), f"{sources}/**", f"{sources}/**/*.pt", f"{sources}/*/**/b.pt", f"{sources}/**/**/b*"):
        assert [*find([named], archive).sources] == ["a/b.pt"]


def test_the_folder_that_cannot_be_read_is_named(sources: Path, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digits(sources / "a.pt")

    def fail(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(sources / "sub"))

    monkeypatch.setattr("qfmt.archive.sources._below", fail)
    said = trouble("convert", sources, "--out", archive)
    assert f"{sources / 'sub'}: cannot be read: Permission denied" in said


def test_a_folder_that_is_listed_but_not_searched(
    sources: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digits(sources / "sub" / "a.pt")
    digits(sources / "b.pt", 1)
    assert invoke("convert", sources, "--out", archive).exit_code == 0
    (archive / "b.qfb").write_bytes(b"")
    is_dir = Path.is_dir

    def search(path: Path) -> bool:
        if path.parent == archive / "sub":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return is_dir(path)

    monkeypatch.setattr(Path, "is_dir", search)
    result = invoke("check", archive)
    assert result.exit_code == 1 and "1 invalid" in result.output


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
    """File systems take 255 bytes, and the name of a shard no colon."""
    for number, name in enumerate(("a" * 252, "a" * 251 + "b", "a:b\\c\x01", "\xe9" * 126)):
        digits(sources / f"{name}.pt", number)
    digits(sources / f"{'d' * 251}.qfb" / "m.pt", 9)
    digits(sources / f"{'e' * 196}.qfbe" / "m.pt", 10)
    options = {"shard_size": shard_size} if shard_size else {}
    assert kept(sources, archive, options=options) == set()
    assert [entry.file for entry in Manifest(archive).entries.values()] == [
        "a_b_c_.qfb",
        f"{'a' * 200}.qfb",
        f"{'a' * 200}.2.qfb",
        f"{'d' * 200}/m.qfb",
        f"{'e' * 196}.qfb_/m.qfb",
        f"{chr(0xE9) * 100}.qfb",
    ]
    assert len(kept(sources, archive, options=options)) == 6


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have shorter paths")
def test_a_name_that_the_disk_cannot_hold_is_the_failure_of_one(sources: Path, tmp_path: Path) -> None:
    archive = tmp_path
    while (left := 3700 - len(bytes(archive))) > 1:
        (archive := archive / ("d" * min(left - 1, 200))).mkdir()
    below = "e" * 100 + "/" + "f" * 100
    digits(sources / below / "a.pt")
    digits(sources / below / f"{'g' * 200}.pt", 1)  # Linux takes paths of 4,095 bytes
    kept(sources, archive)
    first, second = Manifest(archive).entries.values()
    assert not first.error and (archive / first.file).is_file()
    assert "File name too long" in second.error and not second.content_id
    assert kept(sources, archive) == {f"{below}/a.pt"}


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


def test_a_worker_that_starts_no_thread_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (
        "import threading",
        'def fail(*_): raise RuntimeError("can\'t start new thread")',
        "threading.Thread.start = fail",
    )
    monkeypatch.setattr(workers, "_START", "\n".join([*lines, workers._START]))
    for _, answer in workers.results([{}] * 3, "json:dumps", (), 2):
        assert answer["error"].startswith("a thread cannot be started: the system allows no more")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not tell that a parent has ended")
def test_a_worker_whose_command_was_killed_converts_nothing(
    sources: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even the task that waits for it: the next command may be at work."""
    digits(sources / "a.pt")
    with monkeypatch.context() as patched:
        patched.setattr(workers.os, "getpid", lambda: 1 << 30)
        filled = fill(archive, find([str(sources)], archive).sources)
    assert filled.manifest.entries["a.pt"].error == "the worker process ended with status 1"
    assert files(archive) == []


PARENT = """
import sys, time
sys.path[:0] = [SOURCES]
from qfmt.archive.workers import Limits, _Worker
worker = _Worker("copy:copy", (), Limits(1 << 30))
assert worker.answer({"a": 1}) == {"a": 1}
print(worker.process.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a signal that only Linux has")
def test_a_stopped_worker_ends_with_its_command() -> None:
    code = PARENT.replace("SOURCES", repr(str(ROOT)))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        worker = int(running.stdout.readline())
        os.kill(worker, signal.SIGSTOP)
        running.kill()
    if not has_ended(worker):
        os.kill(worker, signal.SIGKILL)
        pytest.fail("it still waits for a signal to go on")


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


def test_deep_folders_and_long_chains_of_links(tmp_path: Path, sources: Path, archive: Path) -> None:
    """Python 3.11 fails in both: `os.walk` and `os.path.realpath` recurse, and so does the removal by pytest."""
    digits(sources / "a.pt")
    for number in range(700):
        (sources / f"{number}.pt").symlink_to(f"{number + 1}.pt")
    deep = f"cd {sources} && i=0; while [ $i -lt 1100 ]; do mkdir d && cd d && i=$((i + 1)); done"
    subprocess.run(["sh", "-c", deep], check=True)
    try:
        found = find([str(sources)], archive)
        assert len(found.sources) == 701
        short = {name: found.sources[name] for name in ("0.pt", "a.pt")}
        assert fill(archive, short).results == {"0.pt": "failed", "a.pt": "converted"}
        short = {"d/" * 1100 + "a.pt": sources / "a.pt"}
        assert [*fill(archive, short).results.values()] == ["equal"]
        (sources / "d").rename(archive / "d")
        assert invoke("check", archive).exit_code == 0
        assert Manifest(archive).unlisted() == []
    finally:
        subprocess.run(["rm", "-rf", tmp_path], check=True)


def test_shards_that_a_killed_run_left_are_removed(sources: Path, archive: Path) -> None:
    """Equal models are stored once. The file of the second one is removed at once, its shards when the run ends."""
    for name in "abc":
        digits(sources / f"{name}.pt")
    options = {"options": {"shard_size": 1000}}
    kept(sources, archive, **options)
    first = shards(archive)
    for name in first["a.qfb"]:
        for other in "bc":
            shutil.copy(archive / name, archive / name.replace("a.", f"{other}.", 1))
    left = {path.name for path in archive.glob("[bc].*.qfs")}
    assert left == {*Manifest(archive).unlisted()} and left
    assert ", to which no file refers" in invoke("check", archive).stdout
    assert kept(sources, archive, **options) == {"a.pt", "b.pt", "c.pt"}
    assert shards(archive) == first
