"""Fixtures that multiple test modules need."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from qfmt.engines import FOR_RUNTIME
from support import counts, examples  # noqa: F401  (registers the profiles of Hypothesis)
from support.paths import ROOT
from support.shared import shared_folder
from support.stores import bucket, memory, s3, server, store, temporary  # noqa: F401  (fixtures)

if "PYTEST_XDIST_WORKER" in os.environ:  # one process per core: threads beyond it only wait, which takes half the time
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
os.environ.update(FOR_RUNTIME)  # tests call ONNX Runtime, which otherwise keeps a database in the home folder
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a shell starts what runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the commands that tests interrupt inherit it

LONG = (
    "archive/test_far.py", "file/test_hostile.py", "frontends/onnx/test_backend.py", "readers/test_js_reader.py",
    "test_project.py", "docs/test_site.py", "cli/test_hostile_files.py", "fuzzing/test_fuzz.py",
    "archive/test_faults.py", "compare/test_verify_integers.py", "cli/test_interruption.py",
    "backends/onnx/test_whole.py", "test_security.py", "file/test_faults.py", "ops/test_ranges.py",
    "docs/test_docs.py", "backends/onnx/test_networks.py", "test_display.py", "backends/c/test_limits.py",
    "passes/lowering/test_networks.py", "passes/lowering/test_requantizing.py", "backends/onnx/test_operators.py",
    "archive/test_reading.py", "readers/test_c_reader.py", "view/test_built_page.py",
    "compare/test_verify_overflow.py", "file/test_shards.py", "readers/test_c_reader_run.py",
    "archive/test_filling.py", "frontends/test_budget.py", "frontends/test_isolation.py", "test_urls.py",
    "test_urls_copied.py", "file/test_large.py", "readers/test_evolution.py", "backends/torch/test_engines.py",
    "backends/torch/test_exact_kernels.py", "compare/test_verify.py", "frontends/torch/test_exported_functions.py",
    "backends/torch/test_operators.py",
)  # fmt: skip
"""Files that take longest, the longest first."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Imports make many objects and no garbage, and tests little: to look for it often would take much of the time."""
    gc.disable()
    collected = yield
    gc.freeze()
    gc.set_threshold(100_000, 20)
    gc.enable()
    return collected


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first: the processes that share the files then end at about the same time."""
    places = {ROOT / "tests" / name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


def pytest_runtest_setup() -> None:
    """A test sees the same random numbers whichever tests ran before it."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


def pytest_configure() -> None:
    shared_folder()  # before workers start, which inherit it


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Published files (real networks, old formats); they are not part of the project."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("needs the real files in ../shared/data beside the repository")
    return folder


@pytest.fixture
def fbgemm() -> Iterator[None]:
    """Set torch's engine to fbgemm during a test."""
    import torch

    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = "fbgemm"
    yield
    torch.backends.quantized.engine = before


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Pass the counts of a pytest-xdist worker to the process that prints."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["counts"] = (counts.TOLD, dict(counts.OUTPUTS), counts.ENGINES)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    told, outputs, engines = getattr(node, "workeroutput", {}).get("counts", ((), {}, {}))
    counts.tell(*told)
    counts.OUTPUTS.update(outputs)
    counts.ENGINES.update(engines)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if rows := [*counts.TOLD, *counts.summary()]:
        terminalreporter.section("counted")
        terminalreporter.write_line("\n".join(rows))
