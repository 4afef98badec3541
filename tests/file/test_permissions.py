"""Permissions, groups and links: a result keeps those of what it replaces."""

from __future__ import annotations

import os
import stat
import struct
import sys
from contextlib import suppress
from errno import EPERM
from pathlib import Path
from typing import Any

import pytest

import qfmt
from qfmt.archive.filling import fill
from qfmt.errors import DestinationError
from qfmt.file import replacing
from qfmt.file.replacing import replacing_folder
from support.command_line import invoke
from support.paths import DIGITS

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has other permissions")


def test_no_result_gets_the_rights_of_its_writer(tmp_path: Path) -> None:
    """By a set-user-ID bit of what someone else put there. A folder may give its group to files."""
    lowered = qfmt.convert(DIGITS).to_integers(input_shapes={"x": ("N", 1, 8, 8)})
    lowered.save(tmp_path / "lowered.qfb")
    for name in "dest.qfb", "dest.onnx":
        (tmp_path / name).touch()
        (tmp_path / name).chmod(0o6751)
        assert invoke("convert", DIGITS, tmp_path / name).exit_code == 0
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o751
    (program := tmp_path / "program").mkdir()
    made = program, program / "main.c"
    assert invoke("convert", tmp_path / "lowered.qfb", f"{program}/").exit_code == 0
    for path in made:
        path.chmod(0o6755)
    assert invoke("convert", tmp_path / "lowered.qfb", f"{program}/").exit_code == 0
    assert [stat.S_IMODE(path.stat().st_mode) for path in made] == [0o2755, 0o755]


def test_a_folder_that_is_read_only_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could be renamed, but not removed."""
    (tmp_path / "dest").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    with pytest.raises(DestinationError, match="it is read-only"), replacing_folder(tmp_path / "dest"):
        pytest.fail("was made")
    assert [*tmp_path.iterdir()] == [tmp_path / "dest"]


def test_a_private_folder_stays_private(tmp_path: Path) -> None:
    for _ in range(2):
        with replacing_folder(tmp_path / "dest") as made:
            (made / "weights.c").write_text("")
        (tmp_path / "dest").chmod(0o700)
        (tmp_path / "dest" / "weights.c").chmod(0o600)
    with replacing_folder(tmp_path / "dest") as made:
        (made / "weights.c").write_text("")
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert modes == {"dest": 0o700, "weights.c": 0o600}


@pytest.mark.parametrize(("mode", "cut"), [(0o660, 0o600), (0o664, 0o644), (0o646, 0o646), (0o640, 0o600)])
def test_a_result_is_for_the_group_of_what_it_replaces(
    mode: int, cut: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the group cannot be kept, that of the writer may do no more than all others."""
    path, model = tmp_path / "m.qfb", qfmt.convert(DIGITS)
    path.write_bytes(b"old")
    group = path.stat().st_gid + 1
    with suppress(PermissionError):
        os.chown(path, -1, group)
    path.chmod(mode)
    before = path.stat()
    model.save(path)
    assert (path.stat().st_mode, path.stat().st_gid) == (before.st_mode, before.st_gid)
    if before.st_gid == group:

        def refuse(*_: object) -> None:
            raise PermissionError(EPERM, "Operation not permitted")

        monkeypatch.setattr("qfmt.file.replacing.os.chown", refuse)
        model.save(path)
        assert stat.S_IMODE(path.stat().st_mode) == cut and path.stat().st_gid != group


def test_links_of_others_in_shared_folders_are_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shared := tmp_path / "shared").mkdir()
    shared.chmod(0o1777)
    (tmp_path / "mine").write_text("precious")
    (shared / "out.qfb").symlink_to(tmp_path / "mine")
    model, me = qfmt.convert(DIGITS), os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    shared.chmod(0o1777)
    look = Path.stat

    def looked(path: Path, *args: Any, **options: Any) -> os.stat_result:
        found = look(path, *args, **options)
        if path != shared:
            return found
        return os.stat_result((*found[:4], me + 2, *found[5:10]))  # of a third user

    monkeypatch.setattr(Path, "stat", looked)
    (tmp_path / "first.qfb").symlink_to("second.qfb")  # own links, which lead to that of another
    (tmp_path / "second.qfb").symlink_to(shared / "out.qfb")
    (shared / "archive").symlink_to(tmp_path)
    for path in shared / "out.qfb", tmp_path / "first.qfb":
        with pytest.raises(DestinationError, match="it is a link of another user in a shared folder"):
            model.save(path)
    with pytest.raises(DestinationError, match="it is a link of another user in a shared folder"):
        fill(shared / "archive", {"a.pt": DIGITS})
    assert not (tmp_path / "archive.jsonl").exists()
    assert (tmp_path / "mine").read_text() == "precious"
    monkeypatch.undo()
    model.save(shared / "out.qfb")
    assert qfmt.load(tmp_path / "mine").content_id() == model.content_id()


def test_a_result_is_private_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it has a name meanwhile: if it replaces a private file."""
    monkeypatch.setattr(replacing, "_nameless", lambda _directory: None)
    path, modes = tmp_path / "m.qfb", []
    for mode in None, 0o600, 0o640:
        if mode is not None:
            path.chmod(mode)
        with replacing.replacing(str(path)) as file:
            file.write(b"new")
            modes += [stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir() if each != path]
    assert modes == [0o666 & ~umask(), 0o600, 0o640 & ~umask()]


def umask() -> int:
    os.umask(before := os.umask(0))
    return before


@pytest.mark.skipif(sys.platform != "linux", reason="needs access control lists of Linux")
def test_a_result_keeps_the_access_control_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group bits of a mode are then what the list allows at most, not what the group may do."""
    path, model, name = tmp_path / "m.qfb", qfmt.convert(DIGITS), "system.posix_acl_access"
    path.write_bytes(b"old")
    nobody = 0xFFFFFFFF
    entries = (1, 6, nobody), (2, 6, 12345), (4, 0, nobody), (16, 6, nobody), (32, 0, nobody)  # the owner, a user, …
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<2HI", *entry) for entry in entries)
    try:
        os.setxattr(path, name, acl)
    except OSError:
        pytest.skip("the file system has no access control lists")
    model.save(path)
    assert os.getxattr(path, name) == acl and stat.S_IMODE(path.stat().st_mode) == 0o660
    (plain := tmp_path / "plain.qfb").write_bytes(b"old")
    plain.chmod(0o640)
    os.setxattr(tmp_path, "system.posix_acl_default", acl)  # which new files get
    model.save(plain)
    assert name not in os.listxattr(plain) and stat.S_IMODE(plain.stat().st_mode) == 0o640
    model.save(tmp_path / "new.qfb")
    assert name in os.listxattr(tmp_path / "new.qfb")
    os.removexattr(tmp_path, "system.posix_acl_default")

    def refuse(*_: object) -> None:
        raise OSError(EPERM, "Operation not permitted")

    monkeypatch.setattr("qfmt.file.replacing.os.setxattr", refuse)
    model.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
