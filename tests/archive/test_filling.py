"""Many sources are converted into one folder, equal models once."""

from __future__ import annotations

import shutil
import zipfile
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch

import qfmt
from qfmt.archive import filling
from qfmt.archive.filling import fill
from qfmt.archive.manifest import MANIFEST, Entry, Manifest
from qfmt.archive.sources import find
from qfmt.file import sharding
from support.archives import FINDINGS, digits, files, kept, lines, shards, task_for, with_external_data
from support.command_line import invoke, trouble
from support.paths import SAMPLES


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


def test_what_a_training_keeps_beside_its_model_is_left_out(sources: Path, archive: Path) -> None:
    """Without tensors, whatever the suffix; modules, and tensors that are refused, are sources."""
    sources.mkdir()
    for name, value in {
        "optimizer.pt": {"state": {0: torch.ones(2)}},
        "scheduler.pt": {"last_epoch": 3, "_last_lr": [0.1]},
        "training_args.bin": {"seed": 1},
        "rates.pth": np.ones(3),
        "layers.pt": torch.nn.Sequential(torch.nn.ReLU()),
        "nested.pt": {"net": torch.nn.Sequential(torch.nn.ReLU())},
    }.items():
        torch.save(value, sources / name)
    result = invoke("convert", sources, "--out", archive)
    assert result.exit_code == 0, result.output
    assert "left out: 3 files" in result.stdout
    assert set(Manifest(archive).entries) == {"optimizer.pt", "layers.pt", "nested.pt"}
    torch.save({"weight": torch.ones(2, device="meta")}, sources / "meta.pt")
    assert "meta tensor" in invoke("convert", sources, "--out", archive).stderr


def test_equal_models_of_other_engines_are_stored_apart(sources: Path, archive: Path) -> None:
    """The content id has no engine, but `verify` runs a source with the one that the file states."""
    model = qfmt.convert(digits(sources / "net.pt"))
    model.replace(engine="qnnpack").save(sources / "a.qfb")  # which comes first
    model.save(sources / "b.qfb")
    assert invoke("convert", sources, "--out", archive).exit_code == 0
    files = {name: entry.file for name, entry in Manifest(archive).entries.items()}
    assert files == {"a.qfb": "a.qfb", "b.qfb": "b.qfb", "net.pt": "b.qfb"}
    assert invoke("verify", "--archive", archive).exit_code == 0


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
        "engine": "fbgemm",
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
    with_external_data(sources / "m.onnx", 1, 2)
    assert not kept(sources, archive)
    assert kept(sources, archive) == {"m.onnx"}
    (sources / "m.data").write_bytes(np.array([2, 2], np.float32).tobytes())
    assert not kept(sources, archive)
    with qfmt.load(archive / "m.qfb") as model:
        assert model.tensors["w"].array.tolist() == [2, 2]


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


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_damaged_file_that_sources_share_is_repaired(jobs: int, sources: Path, archive: Path) -> None:
    for name in "a", "b", "c":
        digits(sources / f"{name}.pt")
    kept(sources, archive)
    before = lines(archive), (archive / "a.qfb").read_bytes()
    (archive / "a.qfb").write_bytes(before[1][:-1])
    results = fill(archive, find([str(sources)], archive).sources, jobs=jobs).results
    assert results["a.pt"] == "converted"
    assert (lines(archive), (archive / "a.qfb").read_bytes()) == before
    assert files(archive) == ["a.qfb"]


def test_a_name_belongs_to_one_source(tmp_path: Path, archive: Path) -> None:
    one, other = digits(tmp_path / "1" / "net.pt"), digits(tmp_path / "2" / "net.pt", 1)
    assert invoke("convert", one, "--out", archive).exit_code == 0
    before = (archive / MANIFEST).read_text()
    said = "two sources have the name net.pt: ../1/net.pt, whose model is in the archive, and ../2/net.pt"
    for path in other, archive / ".." / "2" / "net.pt", other.parent / "." / ".." / "2" / "net.pt":
        assert said in trouble("convert", path, "--out", archive)
    assert (archive / MANIFEST).read_text() == before
    other.unlink()
    other.hardlink_to(one)
    assert kept(other.parent, archive) == {"net.pt"}  # the same file
    other.unlink()
    shutil.copy(one, other)
    assert kept(other.parent, archive) == {"net.pt"}  # a copy
    other.rename(tmp_path / "net.pt")
    digits(tmp_path / "net.pt", 2)
    result = invoke("convert", tmp_path / "net.pt", "--out", archive)  # it was moved, and then changed
    assert result.exit_code == 0, result.output
    assert "note: net.pt: replaces the model of another file, ../2/net.pt\n" in result.stderr
    assert lines(archive)[0]["path"] == "../net.pt"


def test_a_link_may_lead_to_another_file_later(sources: Path, archive: Path) -> None:
    for number in range(2):
        digits(sources.parent / f"v{number}.pt", number)
    sources.mkdir()
    link, contents = sources / "latest.pt", set[str]()
    for number in range(3):
        link.unlink(missing_ok=True)
        link.symlink_to(f"../v{number}.pt") if number < 2 else digits(link, number)
        result = invoke("convert", sources, "--out", archive)
        assert result.exit_code == 0, result.output
        (entry,) = lines(archive)
        assert entry["path"] == "../sources/latest.pt"
        contents.add(entry["content_id"])
    assert len(contents) == 3
    other = sources.parent / "others" / "latest.pt"
    other.parent.mkdir()
    other.symlink_to("../v0.pt")
    assert "two sources have the name latest.pt" in trouble("convert", other, "--out", archive)


def test_a_link_to_a_folder_may_lead_to_another_one_later(tmp_path: Path, archive: Path) -> None:
    link = tmp_path / "current"
    for number in range(2):
        digits(tmp_path / f"v{number}" / "net.pt", number)
        link.unlink(missing_ok=True)
        link.symlink_to(f"v{number}")
        result = invoke("convert", link, "--out", archive)
        assert result.exit_code == 0, result.output
    assert "note: net.pt: replaces the model of another file, ../v0/net.pt\n" in result.stderr


def test_a_name_belongs_to_one_source_with_its_data(tmp_path: Path, archive: Path) -> None:
    """The graphs are equal, and the weights are not."""
    for number in range(2):
        with_external_data(tmp_path / str(number) / "m.onnx", number, 2)
    assert invoke("convert", tmp_path / "0" / "m.onnx", "--out", archive).exit_code == 0
    said = trouble("convert", tmp_path / "1" / "m.onnx", "--out", archive)
    assert "two sources have the name m.onnx: ../0/m.onnx" in said


def test_sources_that_differ_in_the_suffix_have_files_of_their_own(sources: Path, archive: Path) -> None:
    digits(sources / "net.pt")
    digits(sources / "net.ptl", 1)
    kept(sources, archive)
    assert files(archive) == ["net.ptl.qfb", "net.qfb"]
    assert kept(sources, archive) == {"net.pt", "net.ptl"}


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


def test_a_file_with_shards_is_written_without_a_look_at_others(
    sources: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the time would grow with the square of the number of files."""

    def fail(*path: object) -> None:
        raise AssertionError(path)

    path = digits(sources / "a.pt")
    for shard_size in 1000, 2000:
        with monkeypatch.context() as patched:
            patched.setattr(sharding, "stated", fail)
            patched.setattr(sharding, "named_like", fail)
            task = task_for(path, shard_size=shard_size)
            answer = filling.convert_task(str(archive), "qfmt.cli.conversion:make", task)
        assert "error" not in answer, answer
    own = archive / "a.qfb"
    assert len([*archive.glob("*.qfs")]) > len(sharding.stated(own))
    sharding.tidy([own, archive / "b.qfb", sources / "none" / "c.qfb"])
    assert {path.name for path in archive.glob("*.qfs")} == {shard.name for shard in sharding.stated(own)}


def test_shards_that_cannot_be_removed_stay(sources: Path, archive: Path) -> None:
    """What takes the name of a lock is one reason of many."""
    digits(sources / "a.pt")
    kept(sources, archive, options={"shard_size": 1000})
    shard = next(archive.glob("*.qfs"))
    left = shard.with_name(f"{shard.name[:-8]}0000.qfs")
    shutil.copy(shard, left)
    lock = archive / f".qfmt-{sha256(b'a').hexdigest()[:16]}.tmp"
    lock.mkdir()
    (lock / "file").touch()
    assert kept(sources, archive, options={"shard_size": 1000}) == {"a.pt"} and left.exists()
    shutil.rmtree(lock)
    assert kept(sources, archive, options={"shard_size": 1000}) == {"a.pt"} and not left.exists()


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


def test_an_archive_by_url_is_not_named_as_a_file(sources: Path) -> None:
    said = trouble("convert", digits(sources / "a.pt"), "--out", "s3://bucket/archive.qfb")
    assert "s3://bucket/archive.qfb: names a file, and an archive is a folder; omit .qfb" in said


def test_equal_models_that_come_in_reverse_are_noted_twice(
    sources: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each was the first until the next came, and all before it were noted again."""
    names = [f"{number}.pt" for number in range(9)]
    for name in names:
        digits(sources / name)
    archive.mkdir()
    planned = (Entry(name, f"../sources/{name}", file=f"{name}.qfb").line for name in reversed(names))
    (archive / MANIFEST).write_text("".join(planned))
    noted: list[str] = []
    note = filling._Settling._note
    monkeypatch.setattr(filling._Settling, "_note", lambda self, entry: (noted.append(entry.source), note(self, entry)))
    kept(sources, archive, jobs=1)
    assert files(archive) == ["8.pt.qfb"] and {entry["file"] for entry in lines(archive)} == {"8.pt.qfb"}
    assert len(noted) == 2 * len(names)
    assert kept(sources, archive) == {*names}
