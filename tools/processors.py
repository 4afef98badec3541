"""Run the tests on processors that this machine does not have.

python tools/processors.py without-vnni    # all tests, at full speed: VNNI and AVX-512 hidden (gcc, Linux on Intel)
python tools/processors.py avx2            # some, on x86 with AVX2: emulated by qemu-user, as all of the following
python tools/processors.py sse             # x86 with SSE4.2, without AVX
python tools/processors.py aarch64         # Arm, without torch: tools/other_architectures.py
python tools/processors.py s390x           # big-endian, likewise
python tools/processors.py avx2 sums       # not the tests: what `tools/engines.py --sums 5000` prints there
python tools/processors.py avx2 -k linear  # other arguments go to pytest, instead of the chosen tests

qemu-user is a Debian package.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import other_architectures
from dev import EVERY_CORE

ROOT = Path(__file__).resolve().parent.parent


class Processor(NamedTuple):
    emulator: tuple[str, ...]
    environment: dict[str, str]


PROCESSORS = {
    # NumPy's AVX2 kernels compute wrong results in qemu 7.2, a bug of the emulator
    "avx2": Processor(("qemu-x86_64", "-cpu", "max"), {"NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4"}),
    "sse": Processor(("qemu-x86_64", "-cpu", "Nehalem"), {}),
}

CHOSEN = (
    "tests/ops/test_overflow.py",
    "--deselect=tests/ops/test_overflow.py::test_torch_as_on_a_processor_without_vnni",  # hides instructions itself
    "tests/ops/test_overflow_onnx.py",
    "tests/backends/onnx/test_sums.py::test_sums",
    "tests/ops/test_recurrent.py::test_cells",
    "tests/ops/test_recurrent.py::test_layers_of_other_engines",
    "tests/ops/test_recurrent.py::test_the_oldest_cell_parameters",
    "tests/ops/test_dynamic.py::test_inputs_without_a_range_to_speak_of",
    "tests/frontends/torch/test_networks.py::test_other_engines_differ_only_where_rounding_ties[onednn-linears]",
    "tests/frontends/torch/test_networks.py::test_other_engines_differ_only_where_rounding_ties[qnnpack-conv1d]",
)
"""Fast tests that compare with engines: emulation takes ten times as long."""

STARTED = "import sys; sys.executable = sys.argv.pop(1); import pytest; sys.exit(pytest.main(sys.argv[1:]))"


def run(processor: Processor, arguments: list[str]) -> int:
    """Run Python on this processor; the argument `PYTHON` stands for the path of the emulated Python.

    A child process is emulated only if its program is a script that calls qemu, so the interpreter is such a script.
    """
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder, "python")
        python.write_text(f'#!/bin/sh\nexec {" ".join(processor.emulator)} "{sys.executable}" "$@"\n')
        python.chmod(0o755)
        given = [str(python) if each == "PYTHON" else each for each in arguments]
        environment = os.environ | processor.environment | {"PYTHONPATH": str(ROOT)}
        return subprocess.run([str(python), *given], cwd=ROOT, env=environment, check=False).returncode


def hidden(arguments: list[str]) -> int:
    """Run pytest on this processor; `without_vnni.c` hides its newer instructions from every program."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "without_vnni.so")
        compiler = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(ROOT / "tools/without_vnni.c"), "-ldl"]
        subprocess.run(compiler, check=True)
        environment = os.environ | {"LD_PRELOAD": str(library), "ASAN_OPTIONS": "verify_asan_link_order=0"}
        return subprocess.run([sys.executable, "-m", "pytest", *arguments], cwd=ROOT, env=environment).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("processor", choices=("without-vnni", *PROCESSORS, *other_architectures.ARCHITECTURES))
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="`sums`, or arguments of pytest")
    given = parser.parse_args()
    name, rest = given.processor, given.arguments
    if name == "without-vnni":
        return hidden(rest or EVERY_CORE)
    if name in other_architectures.ARCHITECTURES:
        return other_architectures.run(name, rest)
    if rest == ["sums"]:
        return run(PROCESSORS[name], ["tools/engines.py", "--sums", "5000"])
    options = ["-n0", "-q", "-p", "no:cacheprovider", "-o", "timeout=3000", "--hypothesis-profile=ci"]
    return run(PROCESSORS[name], ["-c", STARTED, "PYTHON", *options, *(rest or CHOSEN)])


if __name__ == "__main__":
    sys.exit(main())
