"""The files of a release, built by `tools/dev.py build`, then installed and used on every installed Python."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

import dev
import other_architectures
import qfmt
from support.paths import DIGITS, HELD_BACK, ROOT, TOOLS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

PYTHONS = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def run(*command: str | Path, folder: Path = ROOT, **environment: str) -> str:
    """Run a command that must succeed; return its output."""
    clean = dev.clean_environment() | environment
    done = subprocess.run([*map(str, command)], cwd=folder, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist() -> Path:
    run(sys.executable, TOOLS / "dev.py", "build")
    return ROOT / "dist"


@pytest.fixture(params=PYTHONS)
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The programs of an empty virtual environment."""
    python = f"python{request.param}"
    probe = [python, "-c", "import ensurepip, venv"]
    if shutil.which(python) is None or subprocess.run(probe, capture_output=True).returncode:
        pytest.skip(f"{python} is not on the path, or cannot make environments")
    run(python, "-m", "venv", tmp_path / "environment")
    return tmp_path / "environment" / dev.SCRIPTS


def test_a_build_can_be_repeated(dist: Path) -> None:
    first = {path.name: path.read_bytes() for path in dist.iterdir()}
    run(sys.executable, TOOLS / "dev.py", "build")
    assert {path.name: path.read_bytes() for path in dist.iterdir()} == first
    assert [name.rpartition("-")[2] for name in sorted(first)] == ["any.whl", f"{qfmt.__version__}.tar.gz"]


def test_the_wheel_needs_no_framework(dist: Path, environment: Path, tmp_path: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    run(environment / "python", "-m", "pip", "install", wheel)
    installed = run(environment / "python", "-m", "pip", "list", "--format=freeze")
    assert not re.search(r"^(torch|onnx|flatbuffers)", installed, re.MULTILINE)

    def command(*arguments: str | Path) -> str:
        return run(environment / "qfmt", *arguments, folder=tmp_path, PYTHONWARNINGS="error")

    assert command("--version") == f"qfmt {qfmt.__version__}\n"
    command("convert", DIGITS, "m.qfb")
    assert command("check", "m.qfb") == "m.qfb: valid\n"
    assert "fc.weight" in command("inspect", "m.qfb")
    command("run", "m.qfb", "--input", HELD_BACK, "--output", "y.npy")
    assert np.array_equal(np.load(tmp_path / "y.npy"), np.load(HELD_BACK)["outputs"])
    command("convert", "m.qfb", "integers.qfb", "--integer-only", "--input-shape", "x=N,1,8,8")
    command("convert", "integers.qfb", "program")
    assert (tmp_path / "program" / "Makefile").is_file()


def test_the_source_archive_is_installed_and_tested(dist: Path, environment: Path, tmp_path: Path) -> None:
    """Runs the tests that need neither torch nor onnx."""
    (archive,) = dist.glob("*.tar.gz")
    run(environment / "python", "-m", "pip", "install", archive, *other_architectures.PURE)
    with tarfile.open(archive) as file:
        file.extractall(tmp_path, filter="data")
    options = ["-q", "-p", "no:cacheprovider", "--hypothesis-profile=ci"]  # otherwise tests fail on a slow machine
    folder = tmp_path / archive.name.removesuffix(".tar.gz")
    print(run(environment / "pytest", *options, *other_architectures.CORE_TESTS, folder=folder))
