"""Attack qfmt with mutated files.

    python tools/fuzz.py                                   # 1000 mutants of each target
    python tools/fuzz.py onnx saved --mutants 100000       # many, of two targets
    python tools/fuzz.py onnx --first 4711 --mutants 1     # mutant 4711 again
    python tools/fuzz.py onnx --file build/fuzz/onnx/X.onnx --mutants 20   # this file, as it is
    python tools/fuzz.py --list

A finding is an exception that is not a QfmtError, a crash, more memory than 10 times the file plus 64 MB, more than
two seconds of processor time (4 are measured), a file or a process that reading must not create, or a file that is
valid for one part of qfmt and not for another. One mutant of each distinct finding (what, and the innermost line of
qfmt) is kept in build/fuzz. Mutants are the same for the same `--seed` and the same seeds. The action on a mutant
depends on its number, so a finding may need multiple tries with `--file`. Linux only.
Exit status: 0 if nothing is found, 1 if something is.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # children are forked: there must be no threads
ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from fuzzing import targets  # noqa: E402
from fuzzing.batches import Finding, Result, Target, batches, run_batch  # noqa: E402

MUTANTS = 1000
FINDINGS = ROOT / "build" / "fuzz"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="what to attack  [default: everything]")
    parser.add_argument("--list", action="store_true", help="list the targets")
    parser.add_argument("--mutants", type=int, default=MUTANTS, metavar="N", help="of each target  [default: 1000]")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the number of the first mutant")
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers  [default: 0]")
    parser.add_argument("--jobs", type=int, default=1, help="processes  [default: 1]")
    parser.add_argument("--corpus", type=Path, action="append", default=[], metavar="FOLDER", help="more seeds")
    parser.add_argument("--file", type=Path, help="attack with this file, and mutate nothing")
    parser.add_argument("--findings", type=Path, default=FINDINGS, metavar="FOLDER", help="where findings are kept")
    options = parser.parse_args()
    if unknown := set(options.targets) - set(targets.NAMES):
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(targets.NAMES)}")
    if options.list:
        print("\n".join(targets.NAMES))
        return 0
    found = 0
    for name in options.targets or targets.NAMES:
        result = Result()
        target = targets.target(name, tuple(options.corpus), options.file)
        target.warm()
        for part in results(target, options.seed, options.first, options.mutants, options.jobs):
            for finding in result.join(part):
                keep(target, options.seed, finding, options.findings)
        print(f"{name}: {summary(result)}", flush=True)
        found += len(result.findings)
    return 1 if found else 0


def results(target: Target, seed: int, first: int, count: int, jobs: int) -> Iterator[Result]:
    """The results of all batches, in their order."""
    parts = batches(first, count, jobs)
    if jobs == 1:
        yield from map(partial(run_batch, target, seed), parts)
        return
    with get_context("fork").Pool(jobs, _attack.update, [{"target": target, "seed": seed}]) as pool:
        yield from pool.imap(_batch, parts)


_attack: dict[str, Any] = {}
"""The target of the pool's processes, which inherit it: it cannot be sent to them."""


def _batch(indices: range) -> Result:
    return run_batch(_attack["target"], _attack["seed"], indices)


def keep(target: Target, seed: int, finding: Finding, folder: Path) -> None:
    """Print a finding and write the mutant."""
    _, data, _ = target.mutant(seed, finding.index)
    slug = finding.key.replace("/", "-").replace(":", "-").replace(" ", "-")
    path = folder / target.name / f"{slug}-{seed}-{finding.index}{target.suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    print(f"{target.name} {finding.index} ({finding.seed_name}): {finding.what} [{finding.frame}] {path}", flush=True)


def summary(result: Result) -> str:
    """`300 mutants: 120 valid, 180 refused: FormatError; 0 findings`"""
    words = ", ".join(f"{count:,} {word}" for word, count in result.counts.most_common())
    return f"{result.counts.total():,} mutants: {words}; {len(result.findings)} distinct findings"


if __name__ == "__main__":
    sys.exit(main())
