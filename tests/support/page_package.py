"""Builds the page of readers/page in a copy, with npm."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .js_reader import NO_NETWORK
from .paths import ROOT
from .shared import made_once

PACKAGE = Path("readers/page")


_DESCRIBED = """
    import { readFileSync } from "node:fs";
    import { describeFile } from "./src/from_file.ts";
    for (const path of process.argv.slice(2)) {
        const made = await describeFile(new Blob([readFileSync(path)]), path);
        for (const tensor of made.tensors) {
            await tensor.load?.();
        }
        console.log(JSON.stringify(made));
    }
"""


_SYMBOLS = """
    import { readFileSync } from "node:fs";
    import { entriesOf } from "./src/entries.ts";
    import { arithmeticOf } from "./src/formulas.ts";
    import { describeFile } from "./src/from_file.ts";
    for (const path of process.argv.slice(2)) {
        const made = await describeFile(new Blob([readFileSync(path)]), path);
        const symbols = entriesOf(made).map((entry) => arithmeticOf(entry, 0).symbols);
        console.log(JSON.stringify(symbols.map((each) => each.map(({ name, value }) => [name, value]))));
    }
"""


def _program(name: str) -> str:
    return shutil.which(name) or name


class PagePackage:
    """The installed packages, and the page that is built from the sources."""

    def __init__(self) -> None:
        if shutil.which("node") is None or shutil.which("npm") is None:
            pytest.skip("needs node and npm")
        folder = made_once("page", self._make)
        self.root = folder / PACKAGE
        self.built = folder / "qfmt" / "view" / "page.html"

    def _make(self, folder: Path) -> None:
        ignored = shutil.ignore_patterns("node_modules")
        for part in (PACKAGE, Path("readers/js/src"), Path("docs/spec")):
            shutil.copytree(ROOT / part, folder / part, ignore=ignored)
        (folder / "schema").mkdir()
        shutil.copy(ROOT / "schema" / "operators.json", folder / "schema")
        (folder / "qfmt" / "view").mkdir(parents=True)
        self.root = folder / PACKAGE
        installed = self._npm("ci", "--no-audit", "--no-fund", "--prefer-offline")
        if installed.returncode and any(word in installed.stderr for word in NO_NETWORK):
            pytest.skip("npm cannot install esbuild: there is no network")
        assert installed.returncode == 0, installed.stderr

    def build(self) -> bytes:
        finished = self._npm("run", "--silent", "build")
        assert finished.returncode == 0, finished.stdout + finished.stderr
        return self.built.read_bytes()

    def described(self, *files: Path) -> list[Any]:
        """What the page makes of files, with statistics of all their constants."""
        return self._run(_DESCRIBED, files)

    def symbols(self, *files: Path) -> list[Any]:
        """For each file and node, the numbers of its formula by symbol."""
        return self._run(_SYMBOLS, files)

    def _run(self, source: str, files: tuple[Path, ...]) -> list[Any]:
        """The output of a program of the page, a line of JSON for each file."""
        program = self.root / "program.mjs"
        asked = 'import { weights } from "./weights.mjs"; console.log(JSON.stringify(weights))'
        command = [_program("node"), "--input-type=module", "-e", asked]
        weights = subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=True).stdout.strip()
        command = [
            self.root / "node_modules" / ".bin" / "esbuild",
            "--bundle",
            "--format=esm",
            "--platform=node",
            f"--define:WEIGHTS={weights}",
            '--define:SPEC={"rules":{},"operators":{}}',
            f"--outfile={program}",
        ]
        finished = subprocess.run(command, cwd=self.root, input=source, capture_output=True, text=True)
        assert finished.returncode == 0, finished.stderr
        finished = subprocess.run([_program("node"), program, *files], capture_output=True, text=True)
        assert finished.returncode == 0, finished.stderr
        return [json.loads(line) for line in finished.stdout.splitlines()]

    def axe(self) -> str:
        """The source of axe-core."""
        return (self.root / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")

    def _npm(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [_program("npm"), *arguments]
        return subprocess.run(command, cwd=self.root, capture_output=True, text=True)
