"""Leave out one check of qfmt/rules at a time, and print those that no file of the conformance suite needs.

    python tools/left_out.py

A check is a condition that makes a rule report something; of conditions joined by `or`, each is one, and so is each of
those that must all hold. A file needs a check if it breaks no rule without it, or cannot be read.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]
REFUSED = ROOT / "tests" / "golden" / "1.0" / "refused"

POSITIVE = ("is_text", "is_int", "_is_integer", "_inside", "_agree", "_are_ordered", "is_float32_scale",
            "_is_attribute")  # fmt: skip
"""Functions that return whether something is right; others that return a bool choose what a rule is about."""


class Checks:
    """What the changed modules ask at each check, and which one is left out."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.fired: set[str] = set()
        self.left_out = ""

    def refuses(self, name: str, value: Any) -> Any:
        """The condition of a refusal; false where it is left out."""
        if value:
            self.fired.add(name)
        return False if self.left_out == name else value

    def accepts(self, name: str, value: Any) -> Any:
        """A condition without which there is a refusal; true where it is left out."""
        if not value:
            self.fired.add(name)
        return True if self.left_out == name else value


CHECKS = Checks()


class Marker(ast.NodeTransformer):
    """Wraps each check of a module in a call of CHECKS."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.functions: list[tuple[str, str]] = [("", "")]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.functions.append((node.name, ast.unparse(node.returns) if node.returns else ""))
        self.generic_visit(node)
        self.functions.pop()
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        name, returns = self.functions[-1]
        last = node.body[-1]
        value = last.value if isinstance(last, ast.Return) else None
        is_text = isinstance(value, (ast.JoinedStr, ast.Name)) or (isinstance(value, ast.Constant) and value.value)
        is_false = isinstance(value, ast.Constant) and value.value is False
        if (returns == "str" and is_text) or (name in POSITIVE and is_false):
            node.test = self.split(node.test, accepts=False)
        node.body = [self.visit(each) for each in node.body]
        node.orelse = [self.visit(each) for each in node.orelse]
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:
        name, returns = self.functions[-1]
        if returns == "str" and isinstance(node.value, ast.IfExp):
            self.choose(node.value)
        elif name in POSITIVE and node.value is not None:
            node.value = self.split(node.value, accepts=True)
        return node

    def choose(self, node: ast.IfExp) -> None:
        """A text, or "" if nothing is wrong."""
        if isinstance(node.orelse, ast.Call):
            return  # another function has the checks
        if isinstance(node.body, ast.Constant) and node.body.value == "":
            node.test = self.split(node.test, accepts=True)
            if isinstance(node.orelse, ast.IfExp):
                self.choose(node.orelse)
        elif isinstance(node.body, ast.JoinedStr):
            node.test = self.split(node.test, accepts=False)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> ast.AST:
        if isinstance(node.elt, ast.JoinedStr):  # a text for each element that is wrong
            for loop in node.generators:
                loop.ifs = [self.split(each, accepts=False) for each in loop.ifs]
        return node

    def split(self, node: ast.expr, *, accepts: bool) -> ast.expr:
        if not self.has_parts(node, accepts=accepts):
            return node if isinstance(node, ast.Constant) else self.marked(node, accepts=accepts)
        if isinstance(node, ast.BoolOp):
            are_checks = accepts == isinstance(node.op, ast.And)
            parts = (are_checks or self.has_parts(each, accepts=accepts) for each in node.values)
            node.values = [
                self.split(each, accepts=accepts) if part else each
                for each, part in zip(node.values, list(parts), strict=True)
            ]
        elif isinstance(node, ast.UnaryOp):
            node.operand = self.split(node.operand, accepts=not accepts)
        elif isinstance(node, ast.Compare):
            terms = [node.left, *node.comparators]
            links = [ast.Compare(terms[at], [op], [terms[at + 1]]) for at, op in enumerate(node.ops)]
            return ast.BoolOp(ast.And(), [self.marked(each, accepts=True) for each in links])
        elif isinstance(node, ast.Call) and isinstance(node.args[0], ast.GeneratorExp):
            node.args[0].elt = self.split(node.args[0].elt, accepts=accepts)
        return node

    def has_parts(self, node: ast.expr, *, accepts: bool) -> bool:
        """Whether it consists of multiple checks."""
        if isinstance(node, ast.BoolOp):
            joined = accepts == isinstance(node.op, ast.And)
            return joined or any(self.has_parts(each, accepts=accepts) for each in node.values)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return self.has_parts(node.operand, accepts=not accepts)
        if isinstance(node, ast.Compare):
            return accepts and len(node.ops) > 1
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            each = node.args[0]
            is_every = node.func.id == ("all" if accepts else "any") and isinstance(each, ast.GeneratorExp)
            return is_every and self.has_parts(each.elt, accepts=accepts)  # type: ignore[attr-defined]
        return False

    def marked(self, node: ast.expr, *, accepts: bool) -> ast.expr:
        name = f"{self.module}.{self.functions[-1][0]}: {ast.unparse(node)}"
        CHECKS.names.add(name)
        call = ast.parse(f"CHECKS.{'accepts' if accepts else 'refuses'}({name!r}, None)", mode="eval").body
        assert isinstance(call, ast.Call)
        call.args[1] = node
        return call


class Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        tree = Marker(fullname.rpartition(".")[2]).visit(ast.parse(self.get_data(path)))
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


class Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("qfmt.rules."):
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and spec.origin is not None:
            spec.loader = Loader(fullname, spec.origin)
        return spec


def needs(path: Path, known: set[str]) -> set[str]:
    """The checks that a file needs, but for those that are known to be needed."""
    CHECKS.fired.clear()
    assert is_refused(path), path
    found = set()
    for name in sorted(CHECKS.fired - known):
        CHECKS.left_out = name
        if not is_refused(path):
            found.add(name)
    CHECKS.left_out = ""
    return found


def is_refused(path: Path) -> bool:
    """Whether a file is found to break a rule; not if it is read until something else goes wrong."""
    from qfmt import check
    from qfmt.errors import FormatError

    try:
        return bool(check(path))
    except FormatError as error:
        return bool(error.rule)
    except Exception:
        return False


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    vars(builtins)["CHECKS"] = CHECKS
    sys.meta_path.insert(0, Finder())
    needed: set[str] = set()
    for path in sorted(REFUSED.glob("*.qfb")):
        needed |= needs(path, needed)
    for name in sorted(CHECKS.names - needed):
        print(name)
    print(f"{len(needed)} of {len(CHECKS.names)} checks are needed by a file", file=sys.stderr)


if __name__ == "__main__":
    main()
