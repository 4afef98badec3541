"""The sources among the files, folders and globs that a user names."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qfmt.archive.sources import _fits, find
from qfmt.errors import DestinationError, MissingFileError, SourceError
from support.archives import digits
from support.command_line import trouble


def test_sources_are_named_by_their_place_in_a_folder_or_glob(
    tmp_path: Path, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.pt", "sub/b.pt", "sub/deep/c.pt", ".hidden/d.pt", "archive/e.pt"):
        digits(sources / name)
    (sources / "README.md").write_text("models")
    np.save(sources / "x.npy", np.zeros(2))
    (sources / "empty.pt").touch()
    (sources / "__init__.py").touch()
    (sources / "index.html").write_text("<!DOCTYPE html><html></html>")
    (sources / "labels.pkl").write_bytes(pickle.dumps(["cat", "dog"]))
    for kind in "zip", "tar":
        shutil.make_archive(str(sources / "data"), kind, sources / "sub", "b.pt")
    archive = sources / "archive"
    found = find([str(sources)], archive)
    assert list(found.sources) == ["a.pt", "empty.pt", "sub/b.pt", "sub/deep/c.pt"]
    assert found.left_out == 7
    for name in "damaged.onnx", "DAMAGED.PT":
        (sources / name).write_bytes(bytes(100))
        assert name in find([str(sources)], archive).sources
        (sources / name).unlink()
    assert list(find([str(sources / "sub" / "b.pt")], archive).sources) == ["b.pt"]
    assert list(find([f"{sources}/*/b.pt"], archive).sources) == ["sub/b.pt"]
    assert list(find([f"{sources}/**/*.pt"], archive / "other").sources)[-2:] == ["sub/b.pt", "sub/deep/c.pt"]
    assert list(find([f"{sources}/*.md"], archive).sources) == ["README.md"]  # a name that was asked for
    monkeypatch.chdir(sources)
    several = find(["s*/*.pt", "sub/b.pt", "."], archive).sources
    assert list(several) == ["a.pt", "b.pt", "empty.pt", "sub/b.pt", "sub/deep/c.pt"]


def test_an_archive_that_has_another_path_is_no_source(
    sources: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that is mounted twice: the results would replace the sources."""
    digits(sources / "a.qfb")
    monkeypatch.setattr(Path, "samefile", lambda folder, other: {folder, other} == {sources, archive})
    with pytest.raises(DestinationError, match="all sources are in the archive"):
        find([str(sources)], archive)


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


def _fits_by_definition(parts: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_fits_by_definition(parts[start:], pattern[1:]) for start in range(len(parts) + 1))
    return bool(parts) and pattern[0] in ("*", parts[0]) and _fits_by_definition(parts[1:], pattern[1:])


@settings(max_examples=500)
@given(st.lists(st.sampled_from("ab"), max_size=6), st.lists(st.sampled_from(["a", "b", "*", "**"]), max_size=6))
def test_a_glob_matches_by_its_definition(parts: list[str], pattern: list[str]) -> None:
    assert _fits(parts, pattern) == _fits_by_definition(tuple(parts), tuple(pattern))


def test_many_double_stars_in_deep_folders_take_no_time() -> None:
    assert not _fits(["c"] * 700 + ["empty.txt"], [*["**", "c"] * 20, "*.pt"])
