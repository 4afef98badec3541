"""The onnx package's own test suite, with qfmt as the backend: ONNX → `.qfb` → run, and back to ONNX.

Every case is converted. Cases of operators that qfmt has a reference for must pass, or be listed here with the
reason. The number of passing cases is printed and must not decrease: a change that makes more of them pass raises
the floor.
"""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import qfmt
from qfmt.frontends.onnx import quantized, standard  # noqa: F401  (they register what they import)
from qfmt.frontends.onnx.importer import imports
from qfmt.ops import OPERATORS
from support import onnx_backend
from support.counts import tell
from support.onnx_backend import Case

EXPANDED = pytest.param("expanded", marks=pytest.mark.slow)
KINDS = ("node", EXPANDED, "simple", "pytorch-converted", "pytorch-operator")
"""`light` and `real` are published networks whose weights are not in the package; they would be downloaded."""

PASSED = {"node": 1085, "expanded": 414, "simple": 7, "pytorch-converted": 82, "pytorch-operator": 35}
"""How many cases pass, of the onnx that the `test` extra pins."""

QUANTIZATION = re.compile(
    r"(quantizelinear|dequantizelinear|qlinearconv|qlinearmatmul|convinteger|matmulinteger|dynamicquantizelinear)"
)

REFUSED = {
    r"_string": "strings cannot be stored",
    r"^batchnorm.*training|^training_dropout|^dropout.*mask": "training; and the mask of a Dropout",
    r"^layer_normalization": "mean and deviation as further outputs",
    r"^cast_e8m0": "rounding up",
    r"^split_(variable|equal|1d|2d|zero)": "sizes that are computed",
    r"^lppool|^maxpool_with_argmax|^spacetodepth": "not a form that qfmt has",
}
"""Cases of known operators that are refused, and why."""

WRONG = {
    r"^resize_downsample_scales_(linear|cubic)_align_corners": "divides by a size before it is rounded",
    r"^causal_conv.*fp16": "float16 is rounded after every product there",
    r"^attention_.*bf16": "bfloat16 is rounded after every step there",
}
"""Cases with another result, and the reason."""


class Outcome(NamedTuple):
    """`status`: passed, wrong, unknown (an operator without a reference), refused (with an error of qfmt's)."""

    case: Case
    status: str
    why: str = ""
    model: qfmt.Model | None = None


@pytest.fixture(autouse=True, scope="module")
def without_waiting_for_the_disk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


def outcome(case: Case) -> Outcome:
    try:
        prepared = onnx_backend.QfmtBackend.prepare(case.model)
        for inputs, outputs in case.data_sets():
            if trouble := case.disagreement(prepared.run(inputs), outputs):
                return Outcome(case, "wrong", trouble)
    except qfmt.QfmtError as error:
        unknown = not case.operators <= OPERATORS.keys() | imports.keys()
        return Outcome(case, "unknown" if unknown else "refused", str(error))
    return Outcome(case, "passed", model=prepared.model)


@cache
def outcomes(kind: str) -> list[Outcome]:
    return [outcome(case) for case in onnx_backend.cases(kind) if not _is_no_array(case)]


def _is_no_array(case: Case) -> bool:
    """Whether an input is a sequence, not an array; other tests check that these are refused."""
    return any(isinstance(each, list) or each is None for inputs, _ in case.data_sets() for each in inputs)


def _listed(found: Outcome, patterns: Iterable[str]) -> bool:
    return any(re.search(pattern, found.case.name) for pattern in patterns)


@pytest.mark.parametrize("kind", KINDS)
def test_cases_of_known_operators_pass(kind: str) -> None:
    found = outcomes(kind)
    counts = Counter(each.status for each in found)
    tell(
        f"onnx's {kind} cases: {counts['passed']} of {len(found)} pass; {counts['unknown']} have an operator without a "
        f"reference, {counts['refused']} are refused, {counts['wrong']} differ"
    )
    for status, listed in (("wrong", WRONG), ("refused", REFUSED)):
        unlisted = [each for each in found if each.status == status and not _listed(each, listed)]
        assert [(each.case.name, each.why) for each in unlisted] == []
    assert counts["passed"] == PASSED[kind]


def test_every_case_of_quantization_passes() -> None:
    found = [each for each in outcomes("node") if QUANTIZATION.match(each.case.name)]
    tell(f"onnx's cases of quantization: {sum(each.status == 'passed' for each in found)} of {len(found)} pass")
    assert len(found) == 42
    assert [(each.case.name, each.why) for each in found if each.status != "passed"] == []


# -- the other direction -------------------------------------------------------------------------------

PASSED_BACK = {"node": 1051, "expanded": 414, "pytorch-converted": 82, "pytorch-operator": 35}
"""How many of these have the same results in onnx's reference as `to_onnx` writes them. 30 nodes have types that their
operators got after opset 26; 2 crop an axis that keeps its size, which ONNX Runtime ignores."""

NOT_WRITTEN = ("does not have in that opset", "crops an axis that keeps its size")


def written(case: Case, model: qfmt.Model | None) -> Outcome:
    assert model is not None
    try:
        back = model.to_onnx(opset=26)
    except qfmt.QfmtError as error:
        return Outcome(case, "refused", str(error))
    try:
        evaluator = ReferenceEvaluator(back)
        for inputs, outputs in case.data_sets():
            given = dict(zip(evaluator.input_names, map(onnx_backend.array, inputs), strict=True))
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")  # warnings of the evaluator
                got = [np.asarray(each) for each in evaluator.run(None, given)]
            if trouble := case.disagreement(got, outputs):
                return Outcome(case, "wrong", trouble)
    except Exception as error:  # any error of the evaluator
        return Outcome(case, "failed", f"{type(error).__name__} {str(error)[:300]}")
    return Outcome(case, "passed")


@pytest.mark.parametrize("kind", ["node", EXPANDED, "pytorch-converted", "pytorch-operator"])
def test_written_to_onnx_again_the_reference_computes_the_same(kind: str) -> None:
    found = [written(each.case, each.model) for each in outcomes(kind) if each.status == "passed"]
    counts = Counter(each.status for each in found)
    tell(
        f"onnx's {kind} cases, back to ONNX: {counts['passed']} of {len(found)} come out the same, {counts['refused']} "
        f"cannot be written, {counts['wrong']} differ, {counts['failed']} the reference cannot run"
    )
    refused = [
        each.why for each in found if each.status == "refused" and not any(why in each.why for why in NOT_WRITTEN)
    ]
    assert (counts["passed"], refused) == (PASSED_BACK[kind], [])
