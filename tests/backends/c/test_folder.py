"""The parts around a C program: header, main, Makefile, test vectors, memory as a linker counts it."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import qfmt
from qfmt import Model
from qfmt.backends.c import write_c
from qfmt.passes.lowering import lower_integer
from support.c_program import SANITIZED, Library, compile_c, compiler, flat, program, random_inputs, run_main
from support.counts import tell
from support.paths import DIGITS, EXAMPLES

SIZES = {"x": ("N", 1, 12, 12)}
ARM = ("CC=arm-none-eabi-gcc", "CFLAGS=-Os -mcpu=cortex-m4 -mthumb -Wall -Wextra -Werror")


@pytest.fixture(scope="module")
def digits() -> Model:
    source = DIGITS
    return lower_integer(qfmt.convert(source, input_shapes={"x": ("N", 1, 8, 8)}), exact=True)


@pytest.fixture(scope="module")
def tested(digits: Model) -> Model:
    """The same network with two test vectors, and one with another batch size."""
    rng = np.random.default_rng(2)
    three = {"quant": rng.integers(0, 256, (3, 1, 8, 8)).astype(np.uint8)}
    given = [random_inputs(digits, rng), three, random_inputs(digits, rng)]
    return digits.with_vectors(*given, names=("one", "*/ three", "last"))


def make(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    if not shutil.which("make"):
        pytest.skip("needs make")
    return subprocess.run(["make", "-C", folder, *words], capture_output=True, text=True)


# The header


def test_the_header_states_the_origin_and_the_proof(digits: Model, tmp_path: Path) -> None:
    write_c(digits, tmp_path / "net")
    header = (tmp_path / "net" / "net.h").read_text(encoding="ascii")
    assert f"written by qfmt {qfmt.__version__}" in header
    assert digits.content_id().hex() in header and digits.source["sha256"] in header
    said = re.search(r"compared with ([a-z_, ]+): equal on all ([\d,]+) reachable sums", header)
    assert said is not None and "float_bias" in said[1].split(", ")
    assert int(said[2].replace(",", "")) > 100_000_000
    assert "where real is x of the source" in header and "round(fma(real, 1 / NET_INPUT_0_SCALE, NET" in header
    assert "may not overlap" in header and "restrict" not in header


def test_a_header_lists_what_was_not_compared(digits: Model, tmp_path: Path) -> None:
    nodes = tuple(
        node
        if node.proof is None
        else replace(node, proof=replace(node.proof, differs=(3,) * len(node.proof.low), largest=2))
        if node.proof.compared == "float_bias"
        else replace(node, proof=replace(node.proof, compared="", differs=()))
        for node in digits.nodes
    )
    write_c(digits.replace(graph=replace(digits.graph, nodes=nodes)), tmp_path / "net")
    text = " ".join((tmp_path / "net" / "net.h").read_text(encoding="ascii").split())
    assert re.search(
        r"compared with float_bias: differs on \d+ of [\d,]+ reachable sums, by 2 at most; 2 of 7 requantizations",
        text,
    )


def test_macros_are_numbers_in_c_and_cpp(tmp_path: Path) -> None:
    """Compiles the header alone as C++; MIN, MAX, ZERO_POINT and SCALE equal those of the file, or the least
    int32."""
    x = qfmt.Tensor("x", "int32", (1, 3), quantization=qfmt.Quantization.of((1e-05,), (-7,), -(2**31), 2**31 - 1))
    node = qfmt.Node("Identity", ("x",), ("y",), version=23)
    model = Model(qfmt.Graph(("x",), ("y",), (node,), {"x": x, "y": replace(x, name="y")}))
    write_c(model, tmp_path / "net")
    (tmp_path / "net" / "try.cpp").write_text(
        '#include "net.h"\n#include <cstdio>\n'
        'int main() { std::printf("%lld %lld %d %.17g\\n", 0LL-NET_INPUT_0_MIN,'
        " 0LL-NET_INPUT_0_MAX, -NET_INPUT_0_ZERO_POINT, NET_INPUT_0_SCALE); }\n"
    )
    flags = ["-Wall", "-Wextra", "-Werror", "-pedantic"]
    made = tmp_path / "try"
    subprocess.run([compiler("g++"), *flags, "-o", made, tmp_path / "net" / "try.cpp"], check=True)
    printed = subprocess.run([made], capture_output=True, text=True, check=True).stdout.split()
    assert [*map(int, printed[:3]), float(printed[3])] == [2**31, -(2**31) + 1, 7, 1e-05]


# main and Makefile


def test_the_makefile_builds_it(digits: Model, tmp_path: Path) -> None:
    folder = tmp_path / "digits"
    write_c(digits, folder)
    assert make(folder, "CFLAGS=-O1").returncode == 0
    inputs = random_inputs(digits, np.random.default_rng(1))
    assert run_main(folder / "main", digits, inputs).tolist() == flat(digits.run(inputs), digits).tolist()
    if (full := Path("/dev/full")).exists():
        with full.open("wb") as output:
            failed = subprocess.run(
                [folder / "main"], input=bytes(64), stdout=output, stderr=subprocess.PIPE, check=False
            )
        assert (failed.returncode, failed.stderr) == (2, b"main: the output cannot be written\n")
    done = make(folder, "-s", "check")
    assert done.returncode == 2 and "has no test vector to compare with: qfmt run FILE" in done.stderr
    write_c(digits, folder)  # over the built program
    assert not (folder / "main").exists()


def test_main_requires_an_input_of_exact_size(digits: Model, tmp_path: Path) -> None:
    main = program(digits, tmp_path / "net")
    for raw, said in ((bytes(63), "too short: it must have 64 bytes"), (bytes(65), "too long: it must have 64 bytes")):
        done = subprocess.run([main], input=raw, capture_output=True)
        assert done.returncode == 2 and said in done.stderr.decode() and not done.stdout
    usage = "usage: main [FILE]\nFILE, or standard input, has 64 bytes: see "
    wrong = ((["a", "b"], usage), (["--help"], usage), ([tmp_path / "nothing"], "nothing cannot be read"))
    for arguments, said in wrong:
        done = subprocess.run([main, *arguments], capture_output=True)
        assert done.returncode == 2 and said in done.stderr.decode() and not done.stdout
    (tmp_path / "image").write_bytes(bytes(64))
    assert subprocess.run([main, tmp_path / "image"], capture_output=True, check=True).stdout.count(b"\n") == 10


def test_make_check_compares_with_the_test_vectors(tested: Model, tmp_path: Path) -> None:
    folder = tmp_path / "net"
    names = write_c(tested, folder)
    assert "net_check.c" in names and "#define NET_CHECKED 20" in (folder / "net.h").read_text()
    done = make(folder, "-s", "CFLAGS=-O1", "check")
    assert done.returncode == 0 and done.stdout.split("\n")[0] == "0 of 20 outputs differ", done.stderr
    wrong = tested.vectors[2]
    values = np.array(wrong.outputs["fc"].array)
    values[0, 4] ^= 1
    stored = type(wrong.outputs["fc"]).of(values)
    changed = replace(tested, vectors=(*tested.vectors[:2], replace(wrong, outputs={"fc": stored})))
    write_c(changed, folder)
    done = make(folder, "-s", "CFLAGS=-O1", "check")
    assert done.returncode != 0 and "1 of 20 outputs differ" in done.stdout
    compile_c(folder, "strict", *SANITIZED, cc="clang")


# Memory


def constants(archive: Path, size: str) -> int:
    """Bytes of read-only data in a library."""
    listed = subprocess.run([compiler(size), "-A", archive], check=True, capture_output=True, text=True).stdout
    return sum(map(int, re.findall(r"^\.rodata\S*\s+(\d+)", listed, re.MULTILINE)))


@pytest.mark.parametrize("network", ["digits", "two_layers"])
def test_the_size_of_constants_equals_that_of_a_linker(network: str, digits: Model, tmp_path: Path) -> None:
    """For a Cortex-M4, with the command in the Makefile; within 3 percent, because compilers omit some constants."""
    model = digits
    if network == "two_layers":
        model = lower_integer(qfmt.convert(EXAMPLES / network / f"{network}_int8.pt"), exact=True, input_shapes=SIZES)
    compiler("arm-none-eabi-gcc")
    found = []
    for compact in (False, True):
        folder = tmp_path / f"net{compact}"
        write_c(model, folder, name="net", compact=compact)
        done = make(folder, *ARM, "libnet.a")
        assert done.returncode == 0, done.stderr
        header = (folder / "net.h").read_text()
        stated = int(re.findall(r"#define NET_CONSTANT_BYTES (\d+)", header)[0])
        seen = constants(folder / "libnet.a", "arm-none-eabi-size")
        assert 0.97 * stated - 8 <= seen <= stated + 8
        found.append(seen)
        make(folder, "clean")
        packed = make(folder, ARM[0], f"{ARM[1]} -DNET_ALIGNED=", "libnet.a")
        assert packed.returncode == 0 and constants(folder / "libnet.a", "arm-none-eabi-size") <= seen
    assert found[1] <= found[0]
    tell(f"C: constants of {network} on a Cortex-M4: {found[0]} bytes, compact {found[1]}")


def test_a_compact_program_is_the_same(digits: Model, tmp_path: Path) -> None:
    library = Library(digits, tmp_path / "net", "-O2", compact=True)
    rng = np.random.default_rng(8)
    equal = total = 0
    for _ in range(20):
        inputs = random_inputs(digits, rng)
        want = flat(digits.run(inputs), digits)
        equal, total = equal + int((library(inputs) == want).sum()), total + want.size
    tell(f"C: digits, compact, {equal} of {total} integers equal")
    assert equal == total
