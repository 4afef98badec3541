"""Writes generated C programs, compiles them without a warning, runs them, and compares them with the
interpreter."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

import qfmt
import qfmt.backends.c
from qfmt import Model
from qfmt.backends.c import write_c

STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-Wshadow", "-Wconversion")
CAN_COMPILE = all(map(shutil.which, ("cc", "make")))

SANITIZED = ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def compiler(name: str) -> str:
    """The path of a compiler; skips the test if it is not installed."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"needs the C compiler {name}")
    return found


def compile_c(folder: Path, target: str, *flags: str, cc: str = "gcc", leave: str = "") -> Path:
    """Compile all C files of the folder except `leave`, and link them to `target`."""
    sources = sorted(path for path in folder.glob("*.c") if path.name != leave)
    made = folder / target
    done = subprocess.run([compiler(cc), *STRICT, *flags, "-o", made, *sources], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]
    return made


def program(model: Model, folder: Path, *flags: str, cc: str = "gcc", **options: object) -> Path:
    """The program of a network, with its generated `main`."""
    write_c(model, folder, **options)  # type: ignore[arg-type]
    return compile_c(folder, "main", *(flags or SANITIZED), cc=cc)


def run_main(main: Path, model: Model, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Run the program; return all integers that it prints."""
    raw = b"".join(inputs[name].tobytes() for name in model.graph.inputs)
    done = subprocess.run([main], input=raw, capture_output=True)
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
    return np.array(done.stdout.split(), np.int64)


def flat(outputs: Mapping[str, np.ndarray], model: Model) -> np.ndarray:
    return np.concatenate([np.asarray(outputs[name]).reshape(-1).astype(np.int64) for name in model.graph.outputs])


def random_inputs(model: Model, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Integers within the range of each input; a size that has only a name is 1."""
    made = {}
    for name in model.graph.inputs:
        tensor = model.tensors[name]
        shape = [size if isinstance(size, int) else 1 for size in tensor.shape or ()]
        grid = tensor.quantization
        low, high = (-1000, 1000) if grid is None else (grid.quant_min, grid.quant_max)
        made[name] = rng.integers(low, high + 1, shape).astype(qfmt.model.numpy_dtype(tensor.dtype))
    return made


class Together:
    """Many small networks in one program, each in one file, as linking and compiling more take time:
    `together(i, inputs)` runs one."""

    def __init__(
        self, models: Sequence[Model], folder: Path, *flags: str, cc: str = "gcc", compact: bool = False
    ) -> None:
        self._models = models
        folder.mkdir()
        cases = []
        for index, model in enumerate(models):
            texts = qfmt.backends.c.program(model, f"net{index}", compact=compact)
            own = {name: text for name, text in texts.items() if name.startswith("net") and "_check" not in name}
            sources = [own.pop(name) for name in [*own] if name.endswith(".c")]
            for name, text in {**own, f"net{index}.c": "\n".join(sources)}.items():
                (folder / name).write_text(text, encoding="ascii")
            cases.append(_case(index, model))
        includes = "".join(f'#include "net{index}.h"\n' for index in range(len(models)))
        body = "".join(cases)
        (folder / "all.c").write_text(
            f"#include <stdio.h>\n#include <stdlib.h>\n{includes}int main(int argc, char **argv)\n{{\n"
            f"    switch (argc > 1 ? atoi(argv[1]) : -1) {{\n{body}    }}\n    return 1;\n}}\n"
        )
        self._main = compile_c(folder, "all", *(flags or SANITIZED), cc=cc)

    def __call__(self, index: int, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        model = self._models[index]
        raw = b"".join(inputs[name].tobytes() for name in model.graph.inputs)
        done = subprocess.run([self._main, str(index)], input=raw, capture_output=True)
        assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
        return np.frombuffer(done.stdout, "<i8").astype(np.int64)


def _case(index: int, model: Model) -> str:
    """C code that reads the inputs of one network, runs it, and writes its outputs as int64."""
    lines, given = [], []
    for role, names in (("INPUT", model.graph.inputs), ("OUTPUT", model.graph.outputs)):
        for place, name in enumerate(names):
            dtype = model.tensors[name].dtype
            spelled = "uint8_t" if dtype == "bool" else f"{qfmt.model.numpy_dtype(dtype).name}_t"
            size, variable = f"NET{index}_{role}_{place}_SIZE", f"{role.lower()}{place}"
            lines.append(f"static {spelled} {variable}[{size} + 1];")
            given.append(variable)
            if role == "INPUT":
                lines.append(f"if (fread({variable}, sizeof *{variable}, {size}, stdin) != {size}) return 2;")
    lines.append(f"net{index}_run({', '.join(given)});")
    for place in range(len(model.graph.outputs)):
        loop = f"for (int i = 0; i < NET{index}_OUTPUT_{place}_SIZE; i++)"
        lines.append(f"{loop} {{ int64_t v = (int64_t)output{place}[i]; fwrite(&v, 8, 1, stdout); }}")
    return f"    case {index}: {{\n" + "".join(f"        {line}\n" for line in (*lines, "return 0;")) + "    }\n"


class Library:
    """A network as a shared library, for many runs: `library(inputs)` returns its outputs, concatenated."""

    def __init__(self, model: Model, folder: Path, *flags: str, cc: str = "gcc", compact: bool = False) -> None:
        write_c(model, folder, name="net", compact=compact)
        path = compile_c(folder, "net.so", *flags, "-shared", "-fPIC", cc=cc, leave="main.c")
        self._model, self._run = model, ctypes.CDLL(str(path)).net_run
        header = (folder / "net.h").read_text(encoding="ascii")
        sizes = map(int, re.findall(r"#define NET_OUTPUT_\d+_SIZE (\d+)", header))
        self._outputs = [
            np.empty(size, qfmt.model.numpy_dtype(model.tensors[name].dtype))
            for name, size in zip(model.graph.outputs, sizes, strict=True)
        ]

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        given = [np.ascontiguousarray(inputs[name]) for name in self._model.graph.inputs]
        self._run(*(each.ctypes.data_as(ctypes.c_void_p) for each in (*given, *self._outputs)))
        return np.concatenate([each.astype(np.int64) for each in self._outputs])
