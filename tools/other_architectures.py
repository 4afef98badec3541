"""Run tests on emulated processors of other architectures, for `tools/processors.py`.

First the reader in C, compiled for the architecture: its tests run here, its programs under qemu. Then the
conversion of every TorchScript file, compared with the conversion here. Then tests of the core, which needs no
torch, in a Python of that architecture. Everything is kept in `build/processors`. ml_dtypes is compiled there, since
PyPI has no wheel for s390x.

It needs Debian, a network connection, and the packages qemu-user, g++-aarch64-linux-gnu and g++-s390x-linux-gnu.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HERE = ROOT / ".venv-test" / "bin" / "python"
ARCHITECTURES = {"aarch64": "arm64", "s390x": "s390x"}
"""Name → its name in Debian."""

RELEASE, PYTHON = "trixie", "3.13"
PACKAGES = ("python3", "python3-numpy", f"libpython{PYTHON}-dev")
PURE = ("click", "rich", "flatbuffers", "pytest", "pytest-timeout", "hypothesis")
ML_DTYPES = "0.6.0"

C_TESTS = ("tests/readers/test_c_reader.py", "tests/readers/test_c_reader_run.py")
NATIVE = "not clang and not registers_for_floats"
"""Excludes C tests of this machine's compilers."""

CORE_TESTS = tuple(
    f"tests/{name}.py"
    for name in (
        "arithmetic/test_arithmetic", "file/test_file", "file/test_vectors", "file/test_witnesses",
        "conformance/test_suite", "test_interpreter", "ops/test_integers", "ops/test_overflow", "ops/test_shapes",
        "frontends/torch/test_lift", "passes/lowering/test_requantizing", "passes/lowering/test_nodes", "test_names",
        "compare/test_diff", "cli/test_cli", "cli/test_convert", "cli/test_inspect", "cli/test_run",
    )
)  # fmt: skip


CONVERT = """
import sys
import numpy as np
import qfmt
for path in sys.argv[1:]:
    try:
        print(path, qfmt.convert(path).content_id().hex())
    except qfmt.QfmtError as error:
        print(path, error.what)
held = np.load("examples/digits/heldback.npz")
y = qfmt.convert("examples/digits/digits_int8.pt").run({"x": held["x"]})["dequant"]
print((y == held["outputs"]).sum(), "of", y.size, "outputs are PyTorch's")
"""


@dataclass(frozen=True)
class Machine:
    name: str

    @property
    def folder(self) -> Path:
        return ROOT / "build" / "processors" / self.name

    @property
    def root(self) -> Path:
        """Unpacked Debian packages of this architecture."""
        return self.folder / "root"

    def prepare(self) -> None:
        """Make a Python with everything that the core and its tests need."""
        if (self.folder / "ready").exists():
            return
        self.root.mkdir(parents=True, exist_ok=True)
        self._unpack()
        self._install()
        self._compile_ml_dtypes()
        (self.folder / "ready").touch()

    def _unpack(self) -> None:
        """Unpack Debian packages, with a separate apt that does not change the system's."""
        apt = self.folder / "apt"
        for each in ("lists/partial", "cache/archives/partial"):
            (apt / each).mkdir(parents=True, exist_ok=True)
        (apt / "status").touch()
        signed = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
        (apt / "sources").write_text(f"deb {signed} {_archive()} {RELEASE} main\n")
        (apt / "conf").write_text(
            f'APT::Architecture "{ARCHITECTURES[self.name]}"; APT::Architectures {{ "{ARCHITECTURES[self.name]}"; }};\n'
            f'Dir::State "{apt}"; Dir::State::status "{apt}/status"; Dir::Cache "{apt}/cache";\n'
            f'Dir::Etc::sourcelist "{apt}/sources"; Dir::Etc::sourceparts "-"; Dir::Etc::preferencesparts "-";\n'
            'Acquire::Languages "none"; APT::Install-Recommends "false"; Debug::NoLocking "true";\n'
        )
        environment = {**os.environ, "APT_CONFIG": str(apt / "conf")}
        for arguments in (["update"], ["install", "--yes", "--download-only", *PACKAGES]):
            subprocess.run(["apt-get", "-q", *arguments], env=environment, check=True)
        for package in sorted((apt / "cache" / "archives").glob("*.deb")):
            subprocess.run(["dpkg-deb", "--extract", package, self.root], check=True)
        for link in ("lib", "lib64"):
            if not (self.root / link).exists():
                (self.root / link).symlink_to(f"usr/{link}")
        libraries = self.root / "usr" / "lib" / f"{self.name}-linux-gnu"
        for name in ("blas", "lapack"):  # Debian's alternatives would create these links
            (libraries / f"lib{name}.so.3").symlink_to(f"{name}/lib{name}.so.3")

    def _install(self) -> None:
        """Install packages that are pure Python."""
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", self.folder / "site"]
        pure = ["--only-binary=:all:", "--platform=any", "--implementation=py", "--abi=none"]
        subprocess.run([*pip, *pure, f"--python-version={PYTHON}", *PURE], check=True)

    def _compile_ml_dtypes(self) -> None:
        sources = self.folder / "sources"
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=ml_dtypes"]
        subprocess.run([*pip, "--dest", sources, f"ml_dtypes=={ML_DTYPES}"], check=True)
        (archive,) = sources.glob("*.tar.gz")
        with tarfile.open(archive) as file:
            file.extractall(sources, filter="data")
        source, package = sources / f"ml_dtypes-{ML_DTYPES}", self.folder / "site" / "ml_dtypes"
        package.mkdir(exist_ok=True)
        for each in (source / "ml_dtypes").glob("*.py"):
            (package / each.name).write_bytes(each.read_bytes())
        numpy = self.root / "usr" / "lib" / f"{self.name}-linux-gnu" / "python3-numpy" / "numpy" / "_core" / "include"
        headers = (source / "third_party" / "eigen", source, self.root / "usr" / "include" / f"python{PYTHON}", numpy)
        flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-DEIGEN_MPL2_ONLY"]
        flags += [f"-I{header}" for header in headers] + ["-idirafter", str(self.root / "usr" / "include")]
        files = [source / "ml_dtypes" / "_src" / name for name in ("dtypes.cc", "numpy.cc")]
        command = [f"{self.name}-linux-gnu-g++", *flags, *files, "-o", package / "_ml_dtypes_ext.so"]
        subprocess.run(command, check=True)

    def python(self) -> Path:
        """A Python of this architecture, as a program that its child processes can start, too."""
        launcher = self.folder / "python"
        launcher.write_text(
            "#!/bin/sh\n"
            f'export PYTHONHOME="{self.root}/usr" PYTHONPATH="{self.folder}/site:$PYTHONPATH"\n'
            f'exec qemu-{self.name} -0 "$0" -L "{self.root}" "{self.root}/usr/bin/python{PYTHON}" "$@"\n'
        )
        launcher.chmod(0o755)
        return launcher

    def compilers(self) -> Path:
        """A folder with a `cc` and a `gcc` for this architecture, whose programs run here: scripts that call qemu."""
        folder = self.folder / "compilers"
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("cc", "gcc"):
            (folder / name).write_text(CC.replace("ARCHITECTURE", self.name))
            (folder / name).chmod(0o755)
        return folder


def _archive() -> str:
    """The archive from which this system gets its Debian packages."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    found = [uri for uri in listed if uri.rstrip("/").endswith("/debian")]
    if not found:
        sys.exit("no archive of Debian among the sources of apt: run `apt-get update` first")
    return found[0]


CC = """#!/bin/sh
# Sanitizers are left out: they do not run under qemu.
for each do
    shift
    case "$each" in -fsanitize=* | -fno-sanitize*) ;; *) set -- "$@" "$each" ;; esac
    [ "$previous" = -o ] && out=$each
    case "$each" in -c) compiles=yes ;; esac
    previous=$each
done
ARCHITECTURE-linux-gnu-gcc -static "$@" || exit
[ -n "$compiles" ] || [ -z "$out" ] && exit
mv "$out" "$out.elf"
printf '#!/bin/sh\\nexec qemu-ARCHITECTURE "%s" "$@"\\n' "$(realpath "$out.elf")" > "$out"
chmod +x "$out"
"""


def pytest(python: Path | str, arguments: list[str], **variables: str) -> int:
    untimed = "--hypothesis-profile=ci"  # otherwise Hypothesis fails tests that take more than 200 ms
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "timeout=3000", untimed, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    print(*command, flush=True)
    return subprocess.run(command, cwd=ROOT, env=environment).returncode


def conversions(python: Path) -> int:
    """Compare the conversion of every TorchScript file with the conversion here."""
    folders = (ROOT / "examples", ROOT.parent / "shared" / "data")
    files = [str(path) for folder in folders for path in sorted(folder.rglob("*.pt"))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    here, there = (
        subprocess.run([each, "-c", CONVERT, *files], cwd=ROOT, env=environment, capture_output=True, text=True).stdout
        for each in (HERE, python)
    )
    lines = list(zip(here.splitlines(), there.splitlines(), strict=False))
    print(f"{sum(a == b for a, b in lines)} of {len(files) + 1} conversions and runs agree; {there.splitlines()[-1:]}")
    return int(here != there or not here)


def run(name: str, chosen: list[str]) -> int:
    """Run all tests, or pytest there with these arguments."""
    machine = Machine(name)
    machine.prepare()
    if chosen:
        return pytest(machine.python(), chosen)
    path = f"{machine.compilers()}:{os.environ['PATH']}"
    found = [
        pytest(HERE, ["-n0", "-k", NATIVE, *C_TESTS], PATH=path),
        conversions(machine.python()),
        pytest(machine.python(), [*CORE_TESTS]),
    ]
    return max(found)
