"""A file beside its source, or beside another file: `qfmt.verify` and `qfmt.diff`."""

from .difference import Difference, NodeDifference, TensorDifference, diff
from .report import NodeComparison, OutputComparison, Report, WeightComparison
from .verification import verify

__all__ = [
    "Difference",
    "NodeComparison",
    "NodeDifference",
    "OutputComparison",
    "Report",
    "TensorDifference",
    "WeightComparison",
    "diff",
    "verify",
]
