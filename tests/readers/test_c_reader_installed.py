"""The C reader as an installed library: CMake builds it without a warning; find_package and pkg-config find it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import qfmt
from support.c_reader import FOLDER, STRICT, compiler
from support.paths import INTEGER_SUITE

FLAGS = f"-DCMAKE_C_FLAGS={' '.join(STRICT)}"
PROJECT = f"""
cmake_minimum_required(VERSION 3.15)
project(example LANGUAGES C)
find_package(qfb {qfmt.__version__.rpartition(".")[0]} REQUIRED)
add_executable(example qfb_run.c)
target_link_libraries(example PRIVATE qfb::qfb)
"""
"""A user's program, whose source is one of ours."""


def run(*command: str | Path, **environment: str) -> str:
    """Run a command that must succeed; return its output."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=os.environ | environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def cmake(source: Path, build: Path, *options: str) -> None:
    run("cmake", "-Werror=dev", "-S", source, "-B", build, FLAGS, *options)
    run("cmake", "--build", build)


@pytest.fixture(scope="module", params=["shared", pytest.param("static", marks=pytest.mark.slow)])
def prefix(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler()
    if shutil.which("cmake") is None:
        pytest.skip("needs cmake")
    folder = tmp_path_factory.mktemp(request.param)
    cmake(FOLDER, folder / "build", f"-DBUILD_SHARED_LIBS={request.param == 'shared'}", "-DCMAKE_INSTALL_LIBDIR=lib")
    run("cmake", "--install", folder / "build", "--prefix", folder / "prefix")
    return folder / "prefix"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for own in ("failure.h", "opening.h"):
        shutil.copy(FOLDER / own, tmp_path)
    return shutil.copy(FOLDER / "qfb_run.c", tmp_path)


def test_find_package_finds_it(prefix: Path, source: Path, tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text(PROJECT, "utf-8")
    cmake(tmp_path, tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    _works(tmp_path / "build" / "example", prefix)


def test_pkg_config_finds_it(prefix: Path, source: Path, tmp_path: Path) -> None:
    if shutil.which("pkg-config") is None:
        pytest.skip("needs pkg-config")
    found = {"PKG_CONFIG_PATH": str(prefix / "lib" / "pkgconfig")}
    assert run("pkg-config", "--modversion", "qfb", **found).strip() == qfmt.__version__
    flags = run("pkg-config", "--cflags", "--libs", "qfb", **found).split()
    run(compiler(), *STRICT, "-o", tmp_path / "example", source, *flags)
    _works(tmp_path / "example", prefix)


def test_its_own_programs_are_installed(prefix: Path) -> None:
    _works(prefix / "bin" / "qfb_run", prefix)
    assert run(prefix / "bin" / "qfb_dump", INTEGER_SUITE[0], LD_LIBRARY_PATH=str(prefix / "lib")).startswith("{")


def _works(program: Path, prefix: Path) -> None:
    run(program, "--vectors", *INTEGER_SUITE, LD_LIBRARY_PATH=str(prefix / "lib"))


def test_every_exported_name_has_the_prefix(prefix: Path) -> None:
    """A library must not define names that a program may define."""
    if shutil.which("nm") is None:
        pytest.skip("needs nm")
    (library,) = {path.resolve() for path in (prefix / "lib").glob("libqfb.*")}
    dynamic = ["-D"] if ".so" in library.name else []
    names = [
        line.split()[-1] for line in run("nm", "-g", "--defined-only", *dynamic, library).splitlines() if " " in line
    ]
    assert "qfb_plan_run" in names
    assert [name for name in names if not name.startswith("qfb_")] == []
