#!/usr/bin/env python3
"""Set up and run: `python3 tools/dev.py demo`, likewise `test`, `lint`, `docs`, `build`.

Each command creates the virtual environment that it needs, once. `.venv-demo` contains qfmt and its dependencies,
without torch; `.venv-test`, `.venv-docs` and `.venv-release` also contain the extra of that name. An environment is
created again when pyproject.toml or the Python that runs this changes. Needs Python 3.10 or newer and a network
connection, and only the standard library.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = ROOT / "pyproject.toml"
OLDEST = (3, 10)
SCRIPTS = "Scripts" if os.name == "nt" else "bin"
EVERY_CORE = ["-n", "auto", "--dist", "loadfile", "--no-loadscope-reorder", "-p", "no:logging"]
"""One process per file, so that its counts are printed once, in the order of tests/conftest.py. No test reads a log."""


def main():
    if sys.version_info < OLDEST:
        sys.exit("qfmt needs Python {}.{} or newer; this is {}.{}".format(*OLDEST, *sys.version_info))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("demo", help="rescue the network of examples/digits in an environment without torch")
    commands.add_parser("test", help="lint, then pytest; with arguments, only pytest, with these", add_help=False)
    commands.add_parser("lint", help="ruff check, ruff format --check, mypy")
    commands.add_parser("docs", help="build the site of the documentation, in build/site")
    commands.add_parser("build", help="build and check what is published, in dist/: docs/releasing.md")
    options, rest = parser.parse_known_args()
    if rest and options.command != "test":
        parser.error("unknown arguments: " + " ".join(rest))
    os.chdir(ROOT)
    try:
        sys.exit({"demo": demo, "test": test, "lint": lint, "docs": docs, "build": build}[options.command](rest))
    except subprocess.CalledProcessError as error:
        sys.exit(f"failed with status {error.returncode}: {' '.join(error.cmd)}")
    except KeyboardInterrupt:
        sys.exit(130)


def demo(_rest):
    """The main use on a real network: convert, check, inspect, run. Stops at the first failure."""
    python = environment("demo", [["-e", "."]])
    qfmt = str(Path(python).with_name("qfmt"))
    source, result = "examples/digits/digits_int8.pt", "digits.qfb"
    for command in (
        ["qfmt", "convert", source, result],
        ["qfmt", "check", result],
        ["qfmt", "inspect", result],
        ["python", "examples/digits/demo.py", result],
    ):
        say("\n$ " + " ".join(command))
        call([{"qfmt": qfmt, "python": python}[command[0]], *command[1:]])
    return 0


def test(rest):
    """Lint and pytest, a process for each core; both run even if the first fails. pytest's closing line comes last."""
    python = test_environment()
    failed = False if rest else bool(lint(rest))
    finished = subprocess.run([python, "-m", "pytest", *(rest or EVERY_CORE)], env=clean_environment())
    return finished.returncode or int(failed)


def lint(_rest):
    """Everything that reads the code without running it. Returns 1 if anything was found."""
    python = test_environment()
    failed = 0
    for command in ("-m ruff check .", "-m ruff format --check .", "-m mypy", "tools/words.py"):
        say("$ " + command.removeprefix("-m "))
        failed |= subprocess.run([python, *command.split()], env=clean_environment()).returncode
    return int(failed != 0)


def docs(_rest):
    """Build the site, without a network; a warning is an error. Internal links are checked."""
    python = environment("docs", [["-e", ".[docs]"]])
    call([python, "-m", "sphinx", "-W", "--keep-going", "-q", "-c", "docs", ".", "build/site"])
    say("open build/site/index.html")
    return 0


def build(_rest):
    """Build the source archive, and the wheel from it, and check them as the package index will."""
    python = environment("release", [["-e", ".[release]"]])
    shutil.rmtree("dist", ignore_errors=True)
    committed = subprocess.run(["git", "log", "-1", "--format=%ct"], capture_output=True, text=True).stdout.strip()
    if committed:
        os.environ["SOURCE_DATE_EPOCH"] = committed  # for reproducible builds
    call([python, "-m", "build"])
    artefacts = sorted(map(str, Path("dist").iterdir()))
    call([python, "-m", "twine", "check", "--strict", *artefacts])
    call([python, "-m", "check_wheel_contents", *(name for name in artefacts if name.endswith(".whl"))])
    return 0


def test_environment():
    """Install torch first, separately: packages that depend on it then use this build."""
    torch = re.search(r'"(torch==[^"]+)"', PYPROJECT.read_text(encoding="utf-8")).group(1)
    return environment("test", [[torch], ["-e", ".[test]"]])


def environment(name, installs):
    """The Python of `.venv-NAME`, created with `pip install` unless its stamp is current."""
    folder = ROOT / f".venv-{name}"
    python = str(folder / SCRIPTS / "python")
    stamp = folder / "stamp"
    wanted = hashlib.sha256(f"{sys.version}\n{sys.base_prefix}\n{installs}\n".encode() + PYPROJECT.read_bytes())
    if stamp.is_file() and stamp.read_text() == wanted.hexdigest():
        return python
    begin = time.monotonic()
    say(f"making {folder.name} (only the first time, or when pyproject.toml changed)")
    make(folder)
    for packages in installs:
        say("$ pip install " + " ".join(packages))
        call([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages])
    stamp.write_text(wanted.hexdigest())
    say(f"made {folder.name} in {time.monotonic() - begin:.0f} s")
    return python


def make(folder):
    """Create an empty virtual environment with pip; replaces an existing folder."""
    try:
        import ensurepip  # noqa: F401  Debian leaves it out of its Python, and venv then fails halfway
        import venv  # noqa: F401
    except ImportError as error:
        sys.exit(
            f"this Python cannot make virtual environments ({error.name} is missing). On Debian and Ubuntu: "
            f"apt-get install python3-venv; elsewhere use a Python from python.org, uv or conda"
        )
    if folder.exists():
        shutil.rmtree(folder)
    call([sys.executable, "-m", "venv", str(folder)])


def call(command):
    """Run a command to its end; CalledProcessError if it fails."""
    subprocess.run(command, env=clean_environment(), check=True)


def clean_environment():
    """This process's environment without variables that would add outside packages.

    Nor may one forbid to keep compiled modules: tests start hundreds of processes.
    """
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__", "PYTHONDONTWRITEBYTECODE")
    return {**{key: value for key, value in os.environ.items() if key not in hidden}, "PYTHONNOUSERSITE": "1"}


def say(line):
    print(line, flush=True)


if __name__ == "__main__":
    main()
