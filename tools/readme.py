"""Execute the examples in README.md and docs/ and write their output.

    python tools/readme.py                          # of all pages
    python tools/readme.py docs/tutorial.md …       # of these
    python tools/readme.py --check                  # compare only

A `console` block contains commands (`$ …`), each followed by its output, including stderr. In a `python` block the
output of a statement follows `# → `: on its line, or on lines of its own if it is long. All blocks of a page share one
folder, which contains `examples/`, and Python blocks share their names. Seconds, digests and sizes of programs may
differ. A `sh` block is set-up and is not executed. A page with the comment `<!-- needs PATH -->` gets that file of the
checkout or of ../shared/data; where it is absent, the page is left out.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared" / "data"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "questions").glob("*.md")))
NEEDS = re.compile(r"^<!-- needs (\S+) -->$", re.MULTILINE)
BLOCK = re.compile(r"^```(console|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WIDTH = 104
"""Characters of a block of code that are in sight on the site."""
VARYING = re.compile(r"\d+\.\d+ s$|\b[0-9a-f]{64}\b|\d+\.\d kB, \d+ files", re.MULTILINE)
"""Output that varies: seconds, sizes of C programs, and digests of files, which contain the version of qfmt."""


def blocks(text: str) -> list[tuple[str, str]]:
    """(kind, content) of every example."""
    return BLOCK.findall(text)


def needed(text: str) -> list[Path]:
    """Files that the examples of a page need: of the checkout, or of ../shared/data."""
    return [ROOT / name if (ROOT / name).is_file() else SHARED / name for name in NEEDS.findall(text)]


def executed(examples: list[tuple[str, str]], files: Iterable[Path] = ()) -> Iterator[str]:
    """Each example of a page with its current output; `files` are copied into its folder."""
    names: dict[str, object] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "examples", Path(folder, "examples"))
        for path in files:
            shutil.copyfile(path, Path(folder, path.name))
        for kind, content in examples:
            yield console(content, folder) if kind == "console" else python(content, folder, names)


def console(content: str, folder: str) -> str:
    """The commands of a block, each with its output."""
    commands = re.findall(r"^\$ .*$", content, re.MULTILINE)
    return "\n".join(f"{command}\n{shell(command[2:], folder)}" for command in commands)


ONE_COMMAND = re.compile(r"qfmt [^|&;<>$*`(){}#]*")


def shell(command: str, folder: str) -> str:
    """The output of a command on stdout and stderr; `qfmt` and `python` are those of this checkout and
    interpreter."""
    printed = qfmt(command, folder) if ONE_COMMAND.fullmatch(command) else by_bash(command, folder)
    if "unexpected" in printed or "Traceback" in printed:
        raise SystemExit(f"{command}\n{printed}")
    return printed


def qfmt(command: str, folder: str) -> str:
    """The same without a process, which would import everything again."""
    from click.testing import CliRunner

    from qfmt.cli import main

    with inside(folder):
        result = CliRunner().invoke(main, shlex.split(command)[1:], prog_name="qfmt")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def by_bash(command: str, folder: str) -> str:
    interpreter = f'"{sys.executable}"'
    functions = f'qfmt() {{ {interpreter} -m qfmt "$@"; }}; python() {{ {interpreter} "$@"; }}; '
    finished = subprocess.run(
        ["bash", "-c", functions + command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=120,
    )
    return finished.stdout


def python(content: str, folder: str, names: dict[str, object]) -> str:
    """The block with the output of its statements."""
    bare = re.sub(r"  # → .*$|^# → .*\n", "", content, flags=re.MULTILINE)
    lines = bare.splitlines()
    with inside(folder):
        for statement in ast.parse(bare).body:
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(ast.Module([statement], []), "<example>", "exec"), names)
            assert statement.end_lineno is not None
            lines[statement.end_lineno - 1] += said(statement, lines, printed.getvalue())
    return "\n".join(lines) + "\n"


def said(statement: ast.stmt, lines: list[str], printed: str) -> str:
    """What follows a statement."""
    last = lines[(statement.end_lineno or 0) - 1]
    beside = f"  # → {printed.rstrip()}"
    if not printed:
        return ""
    if printed.count("\n") == 1 and statement.lineno == statement.end_lineno and len(last + beside) <= WIDTH:
        return beside
    return "".join(f"\n# → {line}" for line in printed.splitlines())


@contextlib.contextmanager
def inside(folder: str) -> Iterator[None]:
    """Work in this folder."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def fixed(text: str) -> str:
    """The text without parts that differ between runs."""
    return VARYING.sub("…", text)


def renewed(text: str) -> str:
    """A page with the current output of its examples."""
    examples = blocks(text)
    contents = iter(
        [
            content if fixed(content) == fixed(result) else result
            for (_, content), result in zip(examples, executed(examples, needed(text)), strict=True)
        ]
    )
    return BLOCK.sub(lambda block: f"```{block.group(1)}\n{next(contents)}```", text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help="[default: README.md, and those of docs/]")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is not current")
    options = parser.parse_args()
    status = 0
    for page in [page.resolve() for page in options.pages] or PAGES:
        text, name = page.read_text(encoding="utf-8"), page.relative_to(ROOT)
        if missing := [path for path in needed(text) if not path.is_file()]:
            print(f"{name} is left out: there is no {missing[0].name} in {missing[0].parent}")
            continue
        written = renewed(text)
        if written == text:
            continue
        if options.check:
            print(f"{name} is not what its examples print; run `python tools/readme.py`")
            status = 1
        else:
            page.write_text(written, encoding="utf-8")
            print(f"{name} written")
    return status


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
