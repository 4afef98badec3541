"""Errors travel between processes: pools pickle them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest

import qfmt
from qfmt import errors
from qfmt.errors import QfmtError, Violation
from support.archives import FINDINGS
from support.paths import DIGITS

MADE: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "ValidityError": (([Violation("V1", "tensor 'x'", "is odd")],), {"where": "m.qfb", "in_file": True}),
    "UnsupportedOperatorsError": (({"aten::odd": ["conv", "fc"]},), {"where": "m.pt", "hint": "see"}),
    "InexpressibleNodesError": (({"has no form": ["a", "b"]},), {"format": "ONNX", "hint": "see"}),
    "NoIntegerFormError": (({"reads reals": ["a"]},), {"hint": "see"}),
    "FormatError": (("is damaged",), {"where": "m.qfb", "hint": "fetch it", "rule": "F3"}),
}
"""Arguments of classes that have others than QfmtError."""


def _kinds(kind: type[QfmtError] = QfmtError) -> list[type[QfmtError]]:
    return [kind, *(each for sub in kind.__subclasses__() if sub.__module__ == errors.__name__ for each in _kinds(sub))]


@pytest.mark.parametrize("kind", _kinds(), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("passed", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy, copy.deepcopy])
def test_an_error_is_the_same_elsewhere(kind: type[QfmtError], passed: Callable[[QfmtError], QfmtError]) -> None:
    args, options = MADE.get(kind.__name__, (("went wrong",), {"where": "m.pt: fc", "hint": "do this"}))
    error = kind(*args, **options)
    other = passed(error.at("outer"))
    assert type(other) is kind and str(other) == str(error) and other.args == error.args
    assert {key: str(value) for key, value in vars(other).items() if key != "violations"} == {
        key: str(value) for key, value in vars(error).items() if key != "violations"
    }


def test_a_report_is_the_same_elsewhere() -> None:
    report = qfmt.convert(DIGITS).to_torch("native").report()
    for other in (pickle.loads(pickle.dumps(report)), copy.deepcopy(report)):
        assert (other, str(other), other.engine, other.notes) == (report, str(report), report.engine, report.notes)


def test_a_pool_survives_what_cannot_be_converted() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool, pytest.raises(QfmtError):
        pool.submit(qfmt.convert, FINDINGS).result(timeout=60)
