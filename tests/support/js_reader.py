"""Builds the reader in JavaScript once, in a copy, and runs it with node; and dumps files from Python in the same
form."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - NumPy learns its types
import numpy as np
import pytest

import qfmt
from qfmt.arithmetic import dequantize
from qfmt.model import Attribute, Model, Node, Quantization, StoredArray, Tensor, attribute_kind
from qfmt.quantization import PARAMETERS, Parameter

from .paths import ROOT
from .shared import made_once

PACKAGE = Path("readers/js")
NO_NETWORK = ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ECONNRESET", "ETIMEDOUT", "ENETUNREACH", "network")


class Reader:
    """The built package with its tests, in a copy of the parts of the project that they read."""

    def __init__(self) -> None:
        if shutil.which("node") is None or shutil.which("npm") is None:
            pytest.skip("needs node and npm")
        self.root = made_once("js", self._make)

    def _make(self, folder: Path) -> None:
        self.root = folder
        ignored = shutil.ignore_patterns("node_modules", "dist", "build")
        shutil.copytree(ROOT / PACKAGE, folder / PACKAGE, ignore=ignored)
        for part in ("schema/generated/ts", "tests/golden"):
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        installed = self.npm("ci", "--no-audit", "--no-fund", "--prefer-offline")
        if installed.returncode and any(word in installed.stderr for word in NO_NETWORK):
            pytest.skip("npm cannot install the compiler: there is no network")
        assert installed.returncode == 0, installed.stderr
        for script in (["build"], ["build:tests", "--", "--noCheck"]):  # test_types_are_right checks those of the tests
            finished = self.npm("run", "--silent", *script)
            assert finished.returncode == 0, finished.stdout + finished.stderr

    def npm(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [shutil.which("npm") or "npm", *arguments]
        return subprocess.run(command, cwd=self.root / PACKAGE, capture_output=True, text=True)

    def node(self, *arguments: str | Path) -> str:
        """The output of node; the first argument is a program of the tests, without its suffix."""
        program = self.root / PACKAGE / "build" / PACKAGE / "tests" / f"{arguments[0]}.js"
        command = [shutil.which("node") or "node", program, *arguments[1:]]
        finished = subprocess.run(command, cwd=self.root / PACKAGE, capture_output=True, text=True)
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    def script(self, program: str, path: Path, *options: str) -> str:
        """What a module prints whose argument is a path."""
        command = [
            shutil.which("node") or "node",
            *options,
            "--no-warnings",
            "--input-type=module",
            "-e",
            program,
            path,
        ]
        return subprocess.run(command, cwd=self.root / PACKAGE, capture_output=True, text=True, check=True).stdout

    def error(self, path: Path, *options: str) -> str:
        """The error of reading a whole file; "" if there is none."""
        program = """import { open } from "qfb-reader"; const path = process.argv[1];
            await open(path).then((model) => model.verify()).catch((error) => console.log(error.message));"""
        return self.script(program, path, *options)

    def dump(self, *paths: Path) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.node("dump", *paths).strip().split("\n")]

    def verdicts(self, files: Iterable[bytes], folder: Path, *, verify: bool = True) -> list[str]:
        """For each file "ok", or the rule by which it is refused."""
        path = folder / "files.bin"
        with path.open("wb") as joined:
            for data in files:
                joined.write(struct.pack("<I", len(data)) + data)
        return self.node("verdicts", path, *([] if verify else ["--no-verify"])).strip().split("\n")


# The output of dump.ts


def dump(model: Model) -> dict[str, Any]:
    graph = model.graph
    return {
        "inputs": list(graph.inputs),
        "outputs": list(graph.outputs),
        "name": graph.name,
        "producer": model.producer,
        "engine": model.engine,
        "maps": [[list(pair) for pair in pairs.items()] for pairs in (model.source, model.metadata)],
        "content": model.content_id().hex(),
        "tensors": [_tensor(tensor) for tensor in graph.tensors.values()],
        "nodes": [_node(node) for node in graph.nodes],
        "vectors": [
            [
                vector.name,
                [
                    [name, _stored(value, graph.tensors[name].quantization)]
                    for end in (vector.inputs, vector.outputs)
                    for name, value in end.items()
                ],
            ]
            for vector in model.vectors
        ],
    }


def facts(value: object) -> int:
    """The number of single values in a dump."""
    if isinstance(value, dict):
        return sum(map(facts, value.values()))
    return sum(map(facts, value)) if isinstance(value, list) else 1


def _bits(values: Sequence[float]) -> list[str]:
    return [struct.pack(">d", value).hex() for value in values]


def _digest(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def _digest_of_floats(values: np.ndarray) -> str:
    codes = values.astype("<f4").view("<u4").reshape(-1).copy()
    codes[np.isnan(values).reshape(-1)] = 0x7FC00000
    return _digest(codes.tobytes())


def _stored(stored: StoredArray | None, quantization: Quantization | None) -> dict[str, Any] | None:
    """An array with its quantization: a constant, a value of a test vector, numbers of a quantization."""
    if stored is None:
        return None
    array = stored.array
    with np.errstate(over="ignore", invalid="ignore"):
        real = array.astype(np.float32)
        dequantized = real if quantization is None else dequantize(array, quantization)
    return {
        "dtype": stored.dtype,
        "shape": [str(size) for size in stored.shape],
        "length": array.size,
        "bytes": _digest(stored.data.view()),
        "array": _digest(array.tobytes()),
        "float32": _digest_of_floats(real),
        "dequantized": _digest_of_floats(dequantized),
        "sha256": stored.data.sha256().hex(),
        "quantization": quantization and _level(quantization),
    }


def _level(q: Quantization) -> dict[str, Any]:
    parameters: list[Parameter | None] = [getattr(q, name) for name in PARAMETERS]
    return {
        "block": [str(size) for size in q.block],
        **{name: _stored(each, each and each.quantization) for name, each in zip(PARAMETERS, parameters, strict=True)},
    }


def _grid(q: Quantization) -> dict[str, Any]:
    seen = q.observed
    return {
        **_level(q),
        "limits": [str(q.quant_min), str(q.quant_max)],
        "names": list(q.names),
        "observed": seen
        and [
            seen.observer,
            _bits(seen.minimum),
            _bits(seen.maximum),
            "null" if seen.quant_min is None else str(seen.quant_min),
            "null" if seen.quant_max is None else str(seen.quant_max),
            seen.qscheme,
        ],
    }


def _tensor(tensor: Tensor) -> dict[str, Any]:
    sizes = None if tensor.shape is None else [_size(size) for size in tensor.shape]
    stored = None if tensor.data is None else StoredArray(tensor.dtype, tensor.array.shape, tensor.data)
    return {
        "name": tensor.name,
        "dtype": tensor.dtype,
        "shape": sizes,
        "aliases": list(tensor.aliases),
        "quantization": tensor.quantization and _grid(tensor.quantization),
        "data": _stored(stored, tensor.quantization),
    }


def _size(size: int | str | None) -> str:
    return str(size) if isinstance(size, int) else f"?{size or ''}"


def _node(node: Node) -> dict[str, Any]:
    return {
        "operator": node.operator,
        "version": node.version,
        "inputs": list(node.inputs),
        "outputs": list(node.outputs),
        "attributes": [[name, _attribute(value)] for name, value in node.attributes.items()],
        "rule": node.rule,
        "name": node.name,
        "scope": node.scope,
        "sourceOperator": node.source_operator,
    }


def _attribute(value: Attribute) -> list[str]:
    kind = {"i": "int", "f": "float", "s": "string"}[attribute_kind(value)]
    values = value if isinstance(value, tuple) else (value,)
    words = _bits(values) if kind == "float" else [str(item) for item in values]  # type: ignore[arg-type]
    return [kind + "s" * isinstance(value, tuple), *words]


def refusal(path: Path, *, verify: bool = True) -> str:
    """ "ok", or the rule by which Python refuses a file."""
    from .mutants import touch

    try:
        touch(qfmt.load(path, verify=verify))
    except qfmt.errors.QfmtError as error:
        if isinstance(error, qfmt.errors.ValidityError):
            return error.violations[0].rule
        return str(getattr(error, "rule", "")) or error.what
    return "ok"
