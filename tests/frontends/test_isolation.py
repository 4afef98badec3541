"""Engines in a worker process: messages, crashes, bombs, and data that torch must not get."""

from __future__ import annotations

import io
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import qfmt
from qfmt.backends.torch.processor import quantized_kernels
from qfmt.cli import main
from qfmt.errors import QfmtError, RunError
from qfmt.frontends.isolation import parent, wire
from qfmt.frontends.isolation.parent import EngineDied, Session
from qfmt.frontends.torch.execution import apply
from qfmt.frontends.torch.program import Call, Constant, Made, Program, Slot, Stored
from qfmt.frontends.torch.values import DTYPE_CODES
from qfmt.frontends.witness import is_array, is_computed
from support.examples import examples
from support.paths import DIGITS, HOSTILE, ROOT
from support.processes import end_of_fork, has_ended

QUIET = pytest.mark.filterwarnings("ignore")
"""Ignores torch's deprecation warnings, whose text changes."""


# -- messages --------------------------------------------------------------------------------------------

kinds = st.sampled_from(["bool", "int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64"])
tensors = kinds.flatmap(lambda kind: arrays.arrays(kind, arrays.array_shapes(min_dims=0, min_side=0, max_side=4)))
plain = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9), tensors)
values = st.recursive(
    plain,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=5), inner, max_size=3),
        st.builds(Slot, st.text(max_size=3)),
        st.builds(Stored, tensors, st.just("int8"), st.floats(), st.integers(), st.none()),
    ),
    max_leaves=12,
)


def sent(value: Any) -> bytes:
    stream = io.BytesIO()
    wire.write(stream, value)
    return stream.getvalue()


def is_same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(is_same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(is_same(a[key], b[key]) for key in a)
    return a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b))


@given(values)
def test_messages_arrive_unchanged(value: Any) -> None:
    assert is_same(wire.read(io.BytesIO(sent(value))), value)


@given(values, st.data())
@examples(100)
def test_damaged_messages_are_refused_or_plain_data(value: Any, data: st.DataObject) -> None:
    message = bytearray(sent([value]))
    for _ in range(data.draw(st.integers(1, 3))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    try:
        wire.read(io.BytesIO(bytes(message)))
    except wire.Closed:
        return


@pytest.mark.parametrize("value", [object(), np.array(["text"]), np.array([object()]), 1j, {1, 2}, [b"bytes"]])
def test_values_that_are_not_data_are_not_sent(value: Any) -> None:
    with pytest.raises(RunError, match="cannot be sent to the worker"):
        sent(value)


# -- schemas ---------------------------------------------------------------------------------------------


@QUIET
@pytest.mark.parametrize("code", [*DTYPE_CODES])
def test_codes_of_element_types_are_those_of_torch(code: int) -> None:
    """torch itself also accepts the integer; it cannot make plain tensors of quantized types."""
    if code in (12, 13, 14, 16, 17):
        return
    theirs = torch.ops.aten.empty([1], dtype=code)
    assert apply("aten::to", [torch.ones(1), code], {}).dtype == theirs.dtype


@pytest.mark.parametrize(
    ("target", "args", "kwargs", "words"),
    [
        ("aten::to", [torch.ones(2), -1], {}, "dtype=-1 is not a ScalarType"),
        ("aten::to", [torch.ones(2), 1 << 40], {}, "is not a ScalarType"),
        ("aten::sum", [torch.ones(2)], {"dtype": 99}, "dtype=99 is not a ScalarType"),
        ("aten::quantize_per_tensor", [torch.ones(2), 0.1, 0, 77], {}, "dtype=77 is not a ScalarType"),
        ("aten::clone", [torch.ones(2)], {"memory_format": 9}, "memory_format=9 is not a MemoryFormat"),
        ("aten::contiguous", [torch.ones(2)], {"memory_format": -1}, "is not a MemoryFormat"),
    ],
)
def test_invalid_codes_do_not_reach_torch(target: str, args: list[Any], kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        apply(target, args, kwargs)


TABLE, LIST = torch.ones(10, 16), torch.tensor([1, 2, 3])
LSTM = [torch.ones(24, 8), torch.ones(24, 6), torch.ones(24), torch.ones(24)]


@QUIET
@pytest.mark.parametrize("offsets", [[0, -(10**9)], [0, 3, 1], [0, 10**6], [1, 2], [0, 2**62, 4 - 2**63]])
@pytest.mark.parametrize("bits", ["byte", "4bit", ""])
def test_bags_that_torch_does_not_check_do_not_reach_it(bits: str, offsets: list[int]) -> None:
    kind = torch.quint4x2 if bits == "4bit" else torch.quint8
    table: Any = torch.quantize_per_channel(TABLE, torch.ones(10), torch.zeros(10), 0, kind) if bits else TABLE
    packed = apply("quantized::embedding_bag_prepack", [table], {}) if bits else table
    target = f"quantized::embedding_bag_{bits}" if bits else "aten::embedding_bag"
    for more in {}, {"per_sample_weights": torch.ones(2)}:
        with pytest.raises(QfmtError, match=r"offsets of bags begin with 0|2 per-sample weights do not fit 3"):
            apply(target, [packed, LIST, torch.tensor(offsets)], more)


@QUIET
@pytest.mark.parametrize("features", [0, 3, 64])
@pytest.mark.parametrize("kernels", ["fbgemm", "qnnpack"])
def test_features_that_kernels_do_not_check_do_not_reach_them(kernels: str, features: int) -> None:
    x, state = torch.ones(2, features), torch.zeros(2, 6)
    q, options = torch.quantize_per_tensor(x, 0.1, 3, torch.quint8), [True, 1, 0.0, False, False, False]
    with quantized_kernels(kernels):
        quantized = [torch.quantize_per_tensor(each, 0.1, 0, torch.qint8) for each in LSTM[:2]]
        packed, of_state = (apply("quantized::linear_prepack", [each, None], {}) for each in quantized)
        cell = apply("quantized::make_quantized_cell_params_dynamic", [packed, of_state, *LSTM[2:], True], {})
        calls: list[tuple[str, list[Any]]] = [
            ("quantized::linear", [q, packed, 0.1, 0]),
            ("quantized::linear_relu", [q, packed, 0.1, 0]),
            ("quantized::linear_dynamic", [x, packed]),
            ("quantized::quantized_lstm_cell_dynamic", [x, [state, state], packed, of_state, *LSTM[2:]]),
            ("quantized::quantized_lstm_cell_dynamic", [torch.ones(2, 8), [x, x], packed, of_state, *LSTM[2:]]),
            ("aten::quantized_lstm", [x[None], [state[None], state[None]], [cell], *options]),
        ]
        for target, args in calls:
            with pytest.raises(ValueError, match=r"features of .* do not fit each other"):
                apply(target, args, {})


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_channels_that_a_kernel_does_not_check_do_not_reach_it(at: int) -> None:
    args: list[Any] = [torch.ones(2, 8, 3, 3), *(torch.ones(8) for _ in range(4)), 0.1, 1e-5]
    apply("aten::_native_batch_norm_legit_no_training", args, {})
    args[at] = torch.ones(1)
    with pytest.raises(ValueError, match="channels of 8 and 1 do not fit each other"):
        apply("aten::_native_batch_norm_legit_no_training", args, {})
    if at < 3:
        with pytest.raises(ValueError, match="channels of 8 and 1 do not fit each other"):
            apply("aten::_native_batch_norm_legit", [*args[:3], True, *args[5:]], {})


@QUIET
@pytest.mark.parametrize("way", ["", "_transpose"])
@pytest.mark.parametrize("kernels", ["fbgemm", "qnnpack"])
def test_channels_of_convolutions(kernels: str, way: str) -> None:
    """QNNPACK checks those of the first call only."""
    with quantized_kernels(kernels):
        weight = torch.quantize_per_tensor(torch.ones(4, 2, 3, 3), 0.1, 0, torch.qint8)
        rest: list[Any] = [[1, 1], [0, 0], *([[0, 0]] if way else []), [1, 1], 2]
        packed = apply(f"quantized::conv{way}2d_prepack", [weight, None, *rest], {})
        for channels in 4, 2, 8, 4:
            q = torch.quantize_per_tensor(torch.ones(1, channels, 5, 5), 0.1, 3, torch.quint8)
            if channels == 4:
                apply(f"quantized::conv{way}2d", [q, packed, 0.1, 0], {})
                continue
            with pytest.raises(ValueError, match=f"channels of {channels} and 4 do not fit"):
                apply(f"quantized::conv{way}2d", [q, packed, 0.1, 0], {})


@pytest.mark.parametrize("numbers", [(4, 7), (7, 4)])
def test_keys_without_values_do_not_reach_a_kernel(numbers: tuple[int, int]) -> None:
    keys, values = (torch.ones(1, 2, number, 8, dtype=torch.float16) for number in numbers)
    with pytest.raises(ValueError, match="numbers of keys and values"):
        apply("aten::scaled_dot_product_attention", [keys[:, :, :1], keys, values], {})


@pytest.mark.parametrize(
    ("x", "at", "part"), [((5, 1, 10**5), 2, (24,)), ((5, 1, 8), 2, (2,)), ((5, 1, 8), 1, (24, 60))]
)
def test_an_lstm_does_not_read_beyond_its_weights(x: tuple[int, ...], at: int, part: tuple[int, ...]) -> None:
    """The kernel of oneDNN would."""
    state, weights = torch.zeros(1, 1, 6), [*LSTM]
    weights[at] = torch.ones(part)
    with pytest.raises(RuntimeError, match=r"must match|cannot be multiplied"):
        apply("aten::lstm", [torch.ones(x), [state, state], weights, True, 1, 0.0, False, False, False], {})


@given(st.integers(-(2**63), 2**63 - 1).filter(lambda code: code not in DTYPE_CODES))
def test_other_integers_are_not_element_types(code: int) -> None:
    with pytest.raises(ValueError, match="is not a ScalarType"):
        apply("aten::to", [torch.ones(1), code], {})


@pytest.mark.parametrize("args", [["text", 1], [torch.ones(2), [1, [2]]], [torch.ones(2)], []])
def test_arguments_of_other_types_are_refused(args: list[Any]) -> None:
    with pytest.raises((RuntimeError, ValueError, TypeError)):
        apply("aten::reshape", args, {})


# -- crashes and bombs -----------------------------------------------------------------------------------


def session(*calls: tuple[str, tuple[Any, ...]], constants: Any = ()) -> Session:
    """A session for these calls; the result of the last one is "y"."""
    entries = [
        Call(target, args, {}, Slot("y" if index == len(calls) - 1 else index), f"place {index}")
        for index, (target, args) in enumerate(calls)
    ]
    program = Program("", list(constants), entries, ["y"])
    return Session(
        "torch", "torch", lambda: (program,), lambda index: (calls[index][0], entries[index].place), is_computed
    )


X = {"x": Stored(np.arange(4, dtype=np.float32), "float32")}
DOUBLED = ("aten::mul", (Slot("x"), 2))

DYING = """
import os, signal, sys, types
import qfmt.frontends.torch.program
class Engine:
    version = "dying 1"
    def __init__(self, *program): pass
    def answer(self, verb, *arguments):
        yield "at", 0
        os.kill(os.getpid(), signal.SIGSEGV)
sys.modules["qfmt.frontends.torch.execution"] = module = types.ModuleType("dying")
module.Engine = Engine
main(*sys.argv[2:])
"""


@pytest.mark.skipif(os.name != "posix", reason="kills by signal")
def test_a_crash_is_an_error_and_the_next_session_works(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(parent, "_START", parent._START.replace("main(*sys.argv[2:])\n", DYING))
        patched.setattr(parent, "_WORKERS", {})
        with pytest.raises(EngineDied) as caught:
            session(DOUBLED).ask("run", X)
    assert str(caught.value) == "place 0: torch died (signal 11, SIGSEGV) while running aten::mul"
    assert session(DOUBLED).ask("run", X)["y"].array.tolist() == [0, 2, 4, 6]


@pytest.mark.skipif(os.name != "posix", reason="kills by signal")
def test_a_dead_worker_is_replaced() -> None:
    ours = session(DOUBLED)
    assert ours.open().startswith("torch ")
    parent._WORKERS["torch"].process.kill()
    parent._WORKERS["torch"].process.wait()
    assert ours.ask("run", X)["y"].array.tolist() == [0, 2, 4, 6]


def test_sessions_take_turns() -> None:
    twice, thrice = session(DOUBLED), session(("aten::mul", (Slot("x"), 3)))
    for _ in range(2):
        assert twice.ask("run", X)["y"].array.tolist() == [0, 2, 4, 6]
        assert thrice.ask("run", X)["y"].array.tolist() == [0, 3, 6, 9]


SLEEPING = DYING.replace("os.kill(os.getpid(), signal.SIGSEGV)", "import time; time.sleep(3600)")
PARENT = """
import sys
sys.path[:0] = [SOURCES]
from qfmt.frontends.isolation import parent
parent._START = parent._START.replace("main(*sys.argv[2:])\\n", CODE)
worker = parent.Worker("torch")
print(worker.process.pid, flush=True)
session = parent.Session("torch", "torch", lambda: ((),), lambda index: ("", ""), lambda value: True)
worker.open(session)
dict(worker.exchange(session, session.takes, "run"))
"""


@pytest.mark.skipif(os.name != "posix", reason="kills by signal")
def test_a_worker_ends_with_its_parent(tmp_path: Path) -> None:
    """A worker ends even while it computes, and if the parent could not stop it."""
    code = PARENT.replace("SOURCES", repr(str(ROOT))).replace("CODE", repr(SLEEPING))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        worker = int(running.stdout.readline())
        running.kill()
    if not has_ended(worker):
        os.kill(worker, signal.SIGKILL)
        pytest.fail("it goes on")


BOMBS = {
    "beyond all memory": ("aten::repeat", (Slot("x"), [1 << 20, 1 << 20])),
    "beyond 64 bits": ("aten::repeat", (Slot("x"), [1 << 40, 1 << 40])),
    "more than a run may take": ("aten::zeros", ([1 << 33], 0)),
    "a padding": ("aten::constant_pad_nd", (Slot("x"), [1 << 40, 0], 0)),
    "a negative size": ("aten::reshape", (Slot("x"), [-5])),
    "no such dimension": ("aten::select", (Slot("x"), 9, 0)),
    "an element type": ("aten::to", (Slot("x"), -1)),
}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limit is one of Linux")
@pytest.mark.parametrize("bomb", BOMBS)
def test_bombs_are_errors(bomb: str) -> None:
    with pytest.raises(RunError) as caught:
        session(DOUBLED, BOMBS[bomb]).ask("run", X)
    assert not isinstance(caught.value, EngineDied), caught.value
    assert caught.value.where == "place 1" and "\n" not in str(caught.value)
    assert session(DOUBLED).ask("run", X)["y"].array.tolist() == [0, 2, 4, 6]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limit is one of Linux")
@pytest.mark.parametrize("engine", ["onnxruntime", "reference"])
def test_onnx_bombs_are_errors(engine: str, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    nodes = "s = Constant <value = int64[2] {SIZES}> ()  y = Expand(x, s)"
    text = f'<ir_version: 8, opset_import: ["" : 17]> agraph (float[1] x) => (float[a, b] y) {{ {nodes} }}'
    for sizes, is_bomb in (("1048576, 1048576", True), ("2, 3", False)):
        proto = onnx.parser.parse_model(text.replace("SIZES", sizes))
        model = np.frombuffer(proto.SerializeToString(), np.uint8)
        asked = Session(
            "onnx", engine, lambda model=model: (model, {}, engine), lambda index: ("the model", ""), is_array
        )
        inputs = {"x": np.ones(1, np.float32)}
        if not is_bomb:
            assert asked.ask("run", inputs, ["y"], engine)["y"].tolist() == [[1, 1, 1]] * 2
            continue
        with pytest.raises(RunError) as caught:
            asked.ask("run", inputs, ["y"], engine)
        assert not isinstance(caught.value, EngineDied) and "cannot run it" in str(caught.value)


@pytest.mark.parametrize(
    "answer",
    [5, [], ["value"], ["value", 1, 2], ["value", "version", 2], ["at", "x"], ["at", 9],
     ["done", 1], ["error", "RunError", "", "", ""],
     ["error", 1, "", ""], [["done"]], {"array": ["int8", [1 << 70]]}],
    ids=str,
)  # fmt: skip
def test_invalid_answers_end_the_worker(answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    message = json.dumps(answer).encode()
    said = len(message).to_bytes(4, "little") + message
    monkeypatch.setattr(parent, "_WORKERS", {})
    monkeypatch.setattr(parent, "_START", f"import sys; sys.stdout.buffer.write({said!r})")
    with pytest.raises(EngineDied, match=r"^torch died"):
        session().open()


LYING = """
import io, os, sys
from qfmt.frontends.isolation import wire
wire.read(sys.stdin.buffer)
wire.write(sys.stdout.buffer, ["value", "version", "lying 1"])
wire.write(sys.stdout.buffer, ["done"])
wire.read(sys.stdin.buffer)
message = json.dumps(["value", "y", ANSWER]).encode()
sys.stdout.buffer.write(len(message).to_bytes(4, "little") + message + bytes(64))
"""
"""A worker that starts normally, and then sends arbitrary answers."""

_ARRAY: Any = {"array": ["int8", [1]]}
_TUPLE: Any = {"tuple": []}
LIES = {
    "text": "y",
    "a number": 5,
    "an array that means nothing": _ARRAY,
    "another record": {"record": ["Slot", "y"]},
    "a record that is not known": {"record": ["Popen", "y"]},
    "too few fields": {"record": ["Computed"]},
    "too many fields": {"record": ["Computed", *[None] * 9]},
    "text for an array": {"record": ["Computed", "y"]},
    "a list for scales": {"record": ["Computed", _ARRAY, [1.0], {"tuple": [0]}]},
    "text for a scale": {"record": ["Computed", _ARRAY, {"tuple": ["x"]}, {"tuple": [0]}]},
    "a zero point that is a truth": {"record": ["Computed", _ARRAY, {"tuple": [1.0]}, {"tuple": [True]}]},
    "no zero point": {"record": ["Computed", _ARRAY, {"tuple": [1.0]}, _TUPLE]},
    "text for an axis": {"record": ["Computed", _ARRAY, {"tuple": [1.0]}, {"tuple": [0]}, "0"]},
    "a negative axis": {"record": ["Computed", _ARRAY, {"tuple": [1.0]}, {"tuple": [0]}, -7]},
    "an axis beyond": {"record": ["Computed", _ARRAY, {"tuple": [1.0]}, {"tuple": [0]}, 1]},
    "an array that ends early": {"array": ["int8", [1 << 20]]},
    "a size that is text": {"array": ["int8", ["1"]]},
    "an element type that is not known": {"array": ["object", [1]]},
    "a key that is a list": {"dict": [[[], 1]]},
}


@pytest.mark.parametrize("lie", LIES)
def test_results_that_were_not_requested_are_an_error(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    start = parent._START.partition("from qfmt")[0] + LYING.replace("ANSWER", repr(LIES[lie]))
    monkeypatch.setattr(parent, "_WORKERS", {})
    monkeypatch.setattr(parent, "_START", start)
    with pytest.raises(EngineDied, match=r"^torch died"):
        session(DOUBLED).ask("run", X)


def test_an_engine_that_does_not_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parent, "_WORKERS", {})
    monkeypatch.setattr(parent, "_START", "raise SystemExit(3)")
    with pytest.raises(RunError, match=r"torch died \(exit status 3\) before its first call"):
        session(DOUBLED).open()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(RunError, match="a process for torch cannot be started"):
        session(DOUBLED).open()


def test_packed_parameters_have_the_values_that_were_read() -> None:
    """A linear layer computes with the integers, scale and zero point that were sent."""
    weight = Stored(np.arange(-6, 6, dtype=np.int8).reshape(3, 4), "int8", 0.5, 1)
    packed = Made("quantized::linear_prepack", (weight, Stored(np.ones(3, np.float32), "float32")))
    calls = [("aten::quantize_per_tensor", (Slot("x"), 1.0, 0, 13)), ("aten::reshape", (Slot(0), [1, 4]))]
    y = session(*calls, ("quantized::linear", (Slot(1), Constant(0), 0.5, 100)), constants=[packed])
    found = y.ask("run", X)["y"]
    expected = np.arange(4) @ ((np.arange(-6, 6).reshape(3, 4) - 1) * 0.5).T + 1
    assert ((found.array.astype(int) - 100) * 0.5).tolist() == [expected.tolist()]
    assert (found.scale, found.zero_point) == ((0.5,), (100,))


# -- the command -----------------------------------------------------------------------------------------


def command(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run `qfmt` as installed: Python does not import from the working directory."""
    script = cwd.parent / "qfmt_command.py"
    script.write_text("import sys\nfrom qfmt.cli import main\nmain(sys.argv[1:])\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, str(script), *map(str, arguments)]
    return subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=120)


def test_the_working_directory_is_not_imported_from(tmp_path: Path) -> None:
    folder = tmp_path / "stranger"
    folder.mkdir()
    for name in ("torch", "json", "numpy", "qfmt", "click", "re", "types"):
        (folder / f"{name}.py").write_text("open('PWNED', 'w')\n")
    shutil.copy(DIGITS, folder / "m.pt")
    qfmt.convert(folder / "m.pt").save(folder / "m.qfb")
    done = command("verify", "m.pt", "m.qfb", "--samples", "1", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "") and "engine     fbgemm, torch " in done.stdout
    assert not (folder / "PWNED").exists()


def test_nor_with_the_working_directory_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m` and an interactive session put the working directory first."""
    monkeypatch.chdir(tmp_path)
    before = [entry for entry in sys.path if Path(entry).is_absolute()]
    monkeypatch.setattr(sys, "path", ["", ".", str(tmp_path), *sys.path])
    assert parent.import_path() in (before, [str(ROOT), *before])
    monkeypatch.chdir(ROOT)
    assert str(ROOT) in parent.import_path()  # the location of qfmt


def test_the_process_that_verifies_does_not_import_torch(tmp_path: Path) -> None:
    qfmt.convert(DIGITS).save(tmp_path / "m.qfb")
    code = (
        "import sys, qfmt\nreport = qfmt.verify(*sys.argv[1:], samples=1)\nassert report.ok and report.version\n"
        "assert not {'torch', 'onnx', 'onnxruntime'} & {*sys.modules}"
    )
    words = [sys.executable, "-c", code, str(DIGITS), str(tmp_path / "m.qfb")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["verify-segfault", "verify-runtimeerror"])
def test_malicious_calls_are_one_line_errors(name: str, tmp_path: Path) -> None:
    runner, source, file = CliRunner(), HOSTILE / f"{name}.pt", tmp_path / "m.qfb"
    converted = runner.invoke(main, ["convert", str(source), str(file)], catch_exceptions=False)
    done = converted if converted.exit_code else runner.invoke(main, ["verify", str(source), str(file)])
    assert done.exit_code == 2
    assert done.stderr.startswith("qfmt: error: ") and done.stderr.count("\n") == 1
    assert "unexpected" not in done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_leaves_a_worker_whose_answer_a_thread_reads() -> None:
    worker = parent.Worker("torch")
    assert worker.process.stdout is not None
    reader = threading.Thread(target=worker.process.stdout.read, args=(1,))
    reader.start()
    time.sleep(0.2)  # until it waits for the answer

    def leave() -> None:
        worker.stop()
        assert worker.process.stdout is not None and worker.process.stdout.closed

    assert end_of_fork(leave) == 0
    worker.process.kill()
    reader.join()
    worker.stop()


def test_python_that_does_not_know_its_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one inside another program."""
    monkeypatch.setattr(sys, "executable", None)
    with pytest.raises(RunError, match="a process for torch cannot be started"):
        parent.Worker("torch")
