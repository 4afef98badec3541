"""Compares C programs with the interpreter, integer by integer: each operator with each rule, and networks."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.ao import quantization as tq
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

import qfmt
from networks.onnx_models import through_file
from networks.pytorch import definition, quantize, quiet, save_as
from networks.pytorch import flat as flat_tensors
from networks.requant_shifts import expected, network
from qfmt import Model
from qfmt.backends.c import program as texts_of
from qfmt.backends.c import write_c
from qfmt.errors import DestinationError
from qfmt.ops import Trait, has
from qfmt.passes.lowering import lower_integer
from support.c_program import (
    SANITIZED,
    STRICT,
    Library,
    Together,
    compile_c,
    compiler,
    flat,
    program,
    random_inputs,
    run_main,
)
from support.counts import tell
from support.paths import DIGITS, FLOAT_SUITE, INTEGER_SUITE


def without_floats() -> list[Path]:
    """Files of the family `float` of the suite that C expresses."""
    found = []
    for path in FLOAT_SUITE:
        with contextlib.suppress(DestinationError):
            texts_of(qfmt.load(path), "net")
            found.append(path)
    return found


def one_of_each(paths: list[Path] = INTEGER_SUITE, *, products: bool = False) -> list[Path]:
    """Files of the conformance suite that together contain every operator with every rule, or every product."""
    seen: set[tuple[str, str]] = set()
    chosen = []
    for path in paths:
        nodes = qfmt.load(path).nodes
        if products:
            kinds = {(node.operator, "") for node in nodes if has(node, Trait.PRODUCT)}
        else:
            kinds = {(node.operator, node.rule) for node in nodes}
        if not kinds <= seen:
            seen |= kinds
            chosen.append(path)
    return chosen


def passes(paths: list[Path], folder: Path, *flags: str, cc: str = "gcc", compact: bool = False) -> str:
    """Assert that all outputs of these files are as expected; return their number."""
    models = [qfmt.load(path) for path in paths]
    programs = Together(models, folder, *flags, cc=cc, compact=compact)
    count = 0
    for index, (path, model) in enumerate(zip(paths, models, strict=True)):
        for vector in model.vectors:
            got = programs(index, {name: each.array for name, each in vector.inputs.items()})
            want = flat({name: each.array for name, each in vector.outputs.items()}, model)
            assert got.tolist() == want.tolist(), (path.stem, vector.name)
            count += want.size
    return f"{len(paths)} files of the conformance suite, {count} of {count} integers equal"


def test_every_operator_by_every_rule(tmp_path: Path) -> None:
    tell(f"C: {passes(one_of_each(), tmp_path / 'suite')}")


def test_the_files_of_floats_that_have_a_form_in_c(tmp_path: Path) -> None:
    """Functions of one element with a rule for floats become tables; clamps and pads need no floats."""
    kinds = Counter(node.operator for path in without_floats() for node in qfmt.load(path).nodes)
    assert kinds == {"Abs": 2, "Clip": 6, "LeakyRelu": 3, "Neg": 7, "Pad": 3}
    tell(f"C: {passes(one_of_each(without_floats()), tmp_path / 'suite')}")


@pytest.mark.slow
@pytest.mark.parametrize(("cc", "compact"), [("gcc", False), ("clang", False), ("gcc", True)])
def test_the_whole_conformance_suite(tmp_path: Path, cc: str, compact: bool) -> None:
    told = passes([*INTEGER_SUITE, *without_floats()], tmp_path / "suite", cc=cc, compact=compact)
    tell(f"C ({cc}{', compact' if compact else ''}): {told}")


WAYS = ("-U__SSE2__ -U__ARM_NEON", "-mavx2", "-mavx2 -mavxvnni", "-mavx512vl -mavx512vnni")
"""Flags for each multiplication kernel that is not the default; the first is the portable loop."""


@pytest.mark.parametrize("whole_suite", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_multiply(tmp_path: Path, way: str, whole_suite: bool) -> None:
    """Tests the kernels that this compiler and this processor support."""
    flags = ("-O2", *way.split())
    known = subprocess.run([compiler("gcc"), *flags, "-E", "-x", "c", "/dev/null"], capture_output=True)
    if known.returncode:
        pytest.skip(f"the compiler has no {way}")
    model = digits(exact=True)[1]
    inputs = random_inputs(model, np.random.default_rng(5))
    main = program(model, tmp_path / "digits", *flags)
    raw = b"".join(inputs[name].tobytes() for name in model.graph.inputs)
    if subprocess.run([main], input=raw, capture_output=True).returncode == -signal.SIGILL:
        pytest.skip(f"the processor has no {way}")
    assert run_main(main, model, inputs).tolist() == flat(model.run(inputs), model).tolist()
    paths = INTEGER_SUITE if whole_suite else one_of_each(products=True)
    tell(f"C ({way}): {passes(paths, tmp_path / 'suite', *flags)}")


# Networks


def equal_on_random_inputs(model: Model, library: Library, count: int, what: str) -> None:
    rng = np.random.default_rng(count)
    equal = total = 0
    for _ in range(count):
        inputs = random_inputs(model, rng)
        want = flat(model.run(inputs), model)
        equal, total = equal + int((library(inputs) == want).sum()), total + want.size
    tell(f"C: {what}, {count} inputs, {equal} of {total} integers equal")
    assert equal == total > 0


def equal_to_real_numbers(model: Model, integers: Model, folder: Path, count: int, what: str) -> None:
    """Assert that the integers equal those of `model`, which quantizes its only input first and dequantizes its
    output last."""
    library = Library(integers, folder, "-O2")
    rng = np.random.default_rng(3)
    (given,), (scores,) = integers.graph.inputs, integers.graph.outputs
    grids = [integers.tensors[name].quantization for name in (given, scores)]
    assert grids[0] is not None and grids[1] is not None
    scales, points = [np.float32(grid.scale[0]) for grid in grids], [grid.zero_point[0] for grid in grids]
    shape = [size if isinstance(size, int) else 1 for size in integers.tensors[given].shape or ()]
    equal = total = 0
    for _ in range(count):
        q = rng.integers(0, 256, shape).astype(np.uint8)
        real = (q.astype(np.float32) - points[0]) * scales[0]
        want = next(iter(model.run({model.graph.inputs[0]: real}).values())) / scales[1] + points[1]
        equal, total = equal + int((library({given: q}) == np.rint(want).reshape(-1)).sum()), total + want.size
    tell(f"C: {what}, {count} inputs, {equal} of {total} integers equal to those of the rule of fbgemm")
    assert equal == total > 0


def digits(**options: object) -> tuple[Model, Model]:
    """The example network, as converted and integer-only."""
    model = qfmt.convert(DIGITS, input_shapes={"x": ("N", 1, 8, 8)})
    return model, lower_integer(model, **options)  # type: ignore[arg-type]


def test_digits_equal_the_float_network(tmp_path: Path) -> None:
    """End to end: the exact form computes the integers of PyTorch's rule."""
    equal_to_real_numbers(*digits(exact=True), tmp_path / "digits", 40, "digits, exact")


@pytest.mark.parametrize(
    ("form", "bits"),
    [("fixed_point_single", 32), ("fixed_point_double", 32), ("power_of_two", 32), ("thresholds", 32),
     ("multiply_add_divide", 32), ("multiply_shift", 8)],
)  # fmt: skip
def test_every_form_of_requantization(tmp_path: Path, form: str, bits: int) -> None:
    _, integers = digits(form=form, bits=bits)
    equal_on_random_inputs(integers, Library(integers, tmp_path / "digits", "-O1"), 8, f"digits by {form}")


class KeywordSpotting(nn.Module):
    """The small DS-CNN of "Hello Edge" (Zhang et al. 2017): 49 × 10 speech coefficients, 12 words."""

    def __init__(self) -> None:
        super().__init__()
        blocks: list[nn.Module] = [nn.Conv2d(1, 64, (10, 4), (2, 2), (4, 1)), nn.ReLU()]
        for _ in range(4):
            blocks += [nn.Conv2d(64, 64, 3, padding=1, groups=64), nn.ReLU(), nn.Conv2d(64, 64, 1), nn.ReLU()]
        self.features = nn.Sequential(*blocks)
        self.pool, self.words = nn.AdaptiveAvgPool2d(1), nn.Linear(64, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.words(self.pool(self.features(x)).flatten(1))


@quiet()
def spotter() -> Model:
    torch.manual_seed(1)
    inputs = [torch.randn(1, 1, 49, 10) for _ in range(4)]
    chosen = tq.QConfig(tq.MinMaxObserver, tq.default_per_channel_weight_observer)
    prepared = prepare_fx(KeywordSpotting().eval(), tq.QConfigMapping().set_global(chosen), (inputs[0],))
    with torch.no_grad():
        for each in inputs:
            prepared(each)
    return qfmt.convert(convert_fx(prepared), example_inputs=(inputs[0],), input_shapes={"x": (1, 1, 49, 10)})


def test_a_network_that_spots_keywords(tmp_path: Path) -> None:
    integers = lower_integer(spotter(), exact=True)
    equal_on_random_inputs(integers, Library(integers, tmp_path / "words", "-O2"), 8, "DS-CNN")


def test_a_network_of_requant_shifts_keeps_its_outputs(tmp_path: Path) -> None:
    """ONNX → qfb → integer-only → C, compared with NumPy on the integers of the ONNX file."""
    rng = np.random.default_rng(9)
    source, weights = network(rng, 9, "int")
    integers = lower_integer(through_file(qfmt.convert(source, input_quantization={"x": (1.0, 0, "int8")}), tmp_path))
    main = program(integers, tmp_path / "shifts")
    (given,) = integers.graph.inputs
    equal = total = 0
    for _ in range(8):
        x = rng.integers(-128, 128, (1, 3, 8, 8))
        got, want = run_main(main, integers, {given: x.astype(np.int8)}), expected(x, weights).reshape(-1)
        equal, total = equal + int((got == want).sum()), total + want.size
    tell(f"C: a network of RequantShift, 8 inputs, {equal} of {total} integers equal")
    assert equal == total


@pytest.mark.slow
def test_the_real_mobilenet(shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "torchscript" / "ios_mobilenet_quantized.pt"
    integers = lower_integer(qfmt.convert(source, input_shapes={"X": ("N", 3, 224, 224)}))
    equal_on_random_inputs(integers, Library(integers, tmp_path / "mobilenet", "-O2"), 8, "MobileNetV2")


@pytest.mark.slow
def test_the_real_mobilenet_follows_the_rule_of_pytorch(shared_data: Path, tmp_path: Path) -> None:
    """Compares the exact form, end to end, with the float network of the PyTorch file."""
    source = shared_data / "torchscript" / "ios_mobilenet_quantized.pt"
    model = qfmt.convert(source, input_shapes={"X": ("N", 3, 224, 224)})
    equal_to_real_numbers(model, lower_integer(model, exact=True), tmp_path / "mobilenet", 8, "MobileNetV2, exact")


INTEGRAL = (
    "mobilenet_v2", "resnet18", "mobilenet_v3", "shufflenet_v2", "conv1d", "conv3d", "convolutions", "activations",
    "layout", "two_inputs", "dictionary",
)  # fmt: skip
"""Networks of the matrix that can be lowered completely."""


@pytest.mark.slow
@pytest.mark.parametrize("name", INTEGRAL)
def test_a_network_of_the_matrix(name: str, tmp_path: Path) -> None:
    module, inputs = quantize(name, definition(name).modes[0])
    path = save_as(module, inputs, "trace", tmp_path / "net.pt")
    names = qfmt.convert(path).graph.inputs
    shapes = {given: tuple(each.shape) for given, each in zip(names, flat_tensors(inputs), strict=True)}
    integers = lower_integer(qfmt.convert(path, input_shapes=shapes), exact=True)
    equal_on_random_inputs(integers, Library(integers, tmp_path / "net", "-O1"), 3, f"{name}, exact")


@pytest.mark.slow
def test_resnet18(tmp_path: Path) -> None:
    path = save_as(*quantize("resnet18_224", "fx"), "trace", tmp_path / "resnet.pt")
    integers = lower_integer(qfmt.convert(path, input_shapes={"x": ("N", 3, 224, 224)}))
    equal_on_random_inputs(integers, Library(integers, tmp_path / "resnet", "-O2"), 8, "ResNet-18")


# The text of the program


def test_there_is_no_floating_point(tmp_path: Path) -> None:
    """Neither the text nor the machine code has floats: the compiler may not use the vector registers that floats
    need."""
    folder = tmp_path / "digits"
    write_c(digits(exact=True)[1], folder)
    for path in folder.iterdir():
        assert not re.search(r"\bfloat\b|\bdouble\b|malloc|\bmath\b", path.read_text(encoding="ascii")), path.name
    compile_c(folder, "net.o", "-O2", "-mgeneral-regs-only", "-r", leave="main.c")


@pytest.mark.parametrize(
    "target", ["thumbv7em-none-eabi", "thumbv6m-none-eabi", "riscv32-none-elf", "aarch64_be-none-elf"]
)
def test_it_compiles_for_machines_without_a_system(tmp_path: Path, target: str) -> None:
    """Cortex-M4 and M0, RISC-V, and big-endian ARM: of the C library only functions that copy memory are needed."""
    folder = tmp_path / "digits"
    write_c(digits(exact=True)[1], folder, name="net")
    made = folder / "net.o"
    command = [
        compiler("clang"),
        f"--target={target}",
        "-ffreestanding",
        *STRICT,
        "-Os",
        "-c",
        "-o",
        made,
        folder / "net.c",
    ]
    subprocess.run(command, check=True, capture_output=True)
    listed = subprocess.run(
        [compiler("llvm-nm"), "-u", made], check=True, capture_output=True, text=True
    ).stdout.split()
    needed = {name for name in listed if name != "U" and not name.startswith("net_data_")}
    assert needed <= {"memcpy", "memset", "__aeabi_memcpy", "__aeabi_memclr", "__aeabi_memset", "__aeabi_idiv",
                      "__aeabi_lasr", "__aeabi_lmul", "__muldi3", "__ashrdi3", "__mulsi3", "__divsi3", "__modsi3",
                      "__aeabi_idivmod"}, needed  # fmt: skip


def test_the_text_is_deterministic_and_compiles_without_warnings(tmp_path: Path) -> None:
    integers = digits()[1]
    for name in ("a", "b"):
        write_c(integers, tmp_path / name, name="net")
    texts = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("a", "b")]
    assert texts[0] == texts[1]
    for flags in (SANITIZED, ("-O3",)):
        compile_c(tmp_path / "a", "main", *flags, cc="clang")
