"""Compare a file with its source, another file, or its own test vectors: `qfmt.verify`, `qfmt.diff`, `replay`."""

from .difference import Difference, NodeDifference, TensorDifference, diff
from .random_inputs import with_random_vectors
from .replay import Replay, replay
from .report import NodeComparison, OutputComparison, Report, WeightComparison
from .verification import verify

__all__ = [
    "Difference",
    "NodeComparison",
    "NodeDifference",
    "OutputComparison",
    "Replay",
    "Report",
    "TensorDifference",
    "WeightComparison",
    "diff",
    "replay",
    "verify",
    "with_random_vectors",
]
