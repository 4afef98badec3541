"""Find words and phrases that the project avoids, in its texts, messages, code and comments.

    python tools/words.py

Prints each place with the word to use instead. Exit status: 0 if there is none, 1 if there is one, 2 outside a git
checkout.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

TEXTS = (".py", ".md", ".c", ".h", ".ts", ".fbs", ".toml")

INSTEAD = {
    r"integers alone": "integer-only",
    r"by blocks": "block-wise",
    r"puts? out": "outputs",
    r"refused by name": "not supported: NAME",
    r"of several\b": "of multiple",
    r"as (?:it|they) (?:is|are) stored": "stored",
    r"sums in reach": "reachable sums",
    r"when the network runs\b": "at run time",
    r"holds? other files": "contains other files",
    r"has several\b": "has multiple",
    r"in a process of its own\b": "in a separate process",
    r"in memory of (?:its|their) own": "with its own memory",
    r"a stranger\b": "an attacker, or untrusted",
    r"hostile or damaged": "malicious or damaged",
    r"takes? real numbers": "needs floats",
    r"whatever order": "any order",
    r"who checks": "what checks",
    r"arithmetic of (?:fbgemm|onnx|qnnpack)": "engine fbgemm",
}
"""Pattern → the usual word."""


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        print("needs a git checkout, which lists the files of the project", file=sys.stderr)
        return 2
    paths = [ROOT / name for name in listed.stdout.split("\0") if name.endswith(TEXTS)]
    found = 0
    for path in paths:
        if path == Path(__file__).resolve() or "released" in path.parts or not path.is_file():
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for pattern, word in INSTEAD.items():
                if hit := re.search(rf"\b{pattern}", line, re.IGNORECASE):
                    print(f"{path.relative_to(ROOT)}:{number}: {hit.group()!r}: write {word!r}")
                    found += 1
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
