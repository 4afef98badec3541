"""docs/signing.md: its commands sign and verify, and a change is detected. Needs model-signing (CONTRIBUTING.md)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import qfmt
from support.paths import DIGITS, ROOT

PROGRAM = os.environ.get("MODEL_SIGNING", "")
PAGE = (ROOT / "docs" / "signing.md").read_text(encoding="utf-8")
INSTALL, KEY, CERTIFICATE, FOLDER = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
SUCCEEDED = "Verification succeeded"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PROGRAM, reason="MODEL_SIGNING does not say where model_signing is (CONTRIBUTING.md)"),
    pytest.mark.skipif(not shutil.which("openssl"), reason="there is no openssl, which makes keys"),
]


def sh(commands: str, folder: Path) -> tuple[int, str]:
    """Status and output of commands as in a terminal, where each follows the one before."""
    path = os.pathsep.join((str(Path(PROGRAM).absolute().parent), os.environ["PATH"]))
    finished = subprocess.run(
        ["bash", "-ec", commands], cwd=folder, env={"PATH": path}, capture_output=True, text=True, timeout=120
    )
    return finished.returncode, finished.stdout + finished.stderr


def verification(commands: str) -> str:
    """The last command of a block: what users run."""
    return commands.rpartition("\n\n")[2]


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which all commands of the page were run."""
    folder = tmp_path_factory.mktemp("signed")
    model = qfmt.convert(DIGITS)
    model.save(folder / "digits.qfb")
    model.replace(producer="another").save(folder / "again.qfb")
    assert "model-signing==" in INSTALL
    for commands in (KEY, CERTIFICATE, FOLDER):
        status, output = sh(commands, folder)
        assert status == 0, output
        assert commands is CERTIFICATE or SUCCEEDED in output
    return folder


def damage(path: Path) -> None:
    """Another number in the last weight."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def link(folder: Path) -> None:
    """The same bytes, in a place that is not signed."""
    path = folder / "release" / "again.qfb"
    path.rename(folder / "elsewhere.qfb")
    path.symlink_to(folder / "elsewhere.qfb")


def other_key(folder: Path) -> None:
    assert sh(KEY.partition("\nmodel_signing")[0], folder)[0] == 0


def other_root(folder: Path) -> None:
    assert sh(CERTIFICATE, folder)[0] == 0


@pytest.mark.parametrize(
    ("commands", "change"),
    [
        (KEY, lambda folder: damage(folder / "digits.qfb")),
        (KEY, lambda folder: damage(folder / "digits.qfb.sig")),
        (KEY, other_key),
        (FOLDER, lambda folder: damage(folder / "release" / "again.qfb")),
        (FOLDER, lambda folder: (folder / "release" / "again.qfb").unlink()),
        (FOLDER, lambda folder: (folder / "release" / "more.txt").write_text("more")),
        (FOLDER, lambda folder: (folder / "release" / "again.qfb").rename(folder / "release" / "other.qfb")),
        (FOLDER, link),
        (FOLDER, other_root),
    ],
    ids=["file", "signature", "key", "folder", "removed", "added", "renamed", "link", "certificate"],
)
def test_a_change_is_detected(commands: str, change: Callable[[Path], object], signed: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(signed, tmp_path / "copy"))
    status, output = sh(verification(commands), folder)
    assert status == 0 and SUCCEEDED in output
    change(folder)
    status, output = sh(verification(commands), folder)
    assert status != 0 and SUCCEEDED not in output, output


def test_the_name_of_a_file_is_not_signed(signed: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(signed, tmp_path / "copy"))
    (folder / "digits.qfb").rename(folder / "other.qfb")
    status, output = sh(verification(KEY).replace("digits.qfb ", "other.qfb "), folder)
    assert status == 0 and SUCCEEDED in output


def test_a_signed_file_stands_for_its_shards(tmp_path: Path) -> None:
    """The signature is that of the file, which states the digests of its shards."""
    qfmt.convert(DIGITS).save(tmp_path / "digits.qfb", shard_size=1000)
    assert sh(KEY, tmp_path)[0] == 0
    assert qfmt.check(tmp_path / "digits.qfb") == []
    damage(min(tmp_path.glob("*.qfs")))
    assert sh(verification(KEY), tmp_path)[0] == 0
    assert "F15" in {broken.rule for broken in qfmt.check(tmp_path / "digits.qfb")}


def test_new_digests_do_not_help(signed: Path, tmp_path: Path) -> None:
    """Who changes a file can make it valid, so that only the signature tells."""
    folder = Path(shutil.copytree(signed, tmp_path / "copy"))
    model = qfmt.load(folder / "digits.qfb")
    name = next(iter(model.graph.constants())).name
    model.replace_tensor(name, 0 * model.tensors[name].array).save(folder / "forged.qfb")
    (folder / "forged.qfb").replace(folder / "digits.qfb")
    assert qfmt.check(folder / "digits.qfb") == []
    assert sh(verification(KEY), folder)[0] != 0
