"""Partial evaluation of an archive's code: known values are computed, the rest is recorded as calls.

Methods are inlined, loops over known bounds unrolled, branches on known values taken. A branch on
a value known only at run time is a ControlFlowError, unless one side can only raise: then a valid run takes
the other side.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ....errors import ControlFlowError, SourceError
from ....progress import counted
from ...stored import StoredTensor
from ..calls import MEANINGLESS, Place, Recorder, Value, meaningless
from . import branches
from .archive import Archive
from .code import Function
from .expressions import Run, ScriptFrame, runs_in_parallel
from .objects import Restorer, ScriptObject

DEPTH_LIMIT = 60
"""The deepest nesting of calls."""

CONTINUE = object()
"""The result of a statement that does not return."""


def evaluate(
    archive: Archive, recorder: Recorder, inputs: Sequence[Any] | Mapping[str, Any], eval_mode: bool = False
) -> Any:
    """Run `forward` of an archive on symbolic inputs, and return its result.

    `inputs` are `Value`s (or known values, or None) in the order of `archive.inputs`, or by name; those
    with a default may be omitted. Every operator that cannot be finished on known values goes to the
    recorder. Evaluating again starts from the archive as stored. `eval_mode`: no module is in training.

    Raises ControlFlowError if the code branches on data, SourceError for code that PyTorch does not write; both name
    file and line.
    """
    root, constants, own = restored(archive)
    evaluator = Evaluator(archive, recorder, constants, own)
    evaluator.shared.eval_mode = eval_mode
    try:
        if isinstance(inputs, Mapping):
            return evaluator.run(archive.forward, [root], inputs, "")
        return evaluator.run(archive.forward, [root, *inputs], {}, "")
    except RecursionError:
        raise SourceError("the code is nested too deeply") from None


def restored(archive: Archive) -> tuple[ScriptObject, tuple[Any, ...], frozenset[int]]:
    """The restored module tree and constants of an archive, with all names; made once."""
    if archive.live is None:
        restoring = Evaluator(archive, _NoCalls(), (), frozenset())
        restorer = Restorer(archive.library, restoring.set_state)
        try:
            restoring.shared.constants = constants = restorer.restore(archive.constants)
            for index, constant in enumerate(constants):
                restorer.name(constant, f"CONSTANTS.c{index}")
            root = restorer.restore(archive.data)
            restorer.name(root, "")
        except MEANINGLESS as error:
            raise meaningless("an object", error).at("data.pkl") from None
        except RecursionError:
            raise SourceError("the module tree is nested too deeply", where="data.pkl") from None
        archive.live = root, constants, frozenset(restorer.containers)
    live: tuple[ScriptObject, tuple[Any, ...], frozenset[int]] = archive.live
    return live


class _NoCalls:
    """The recorder while modules are restored: there is nothing to record yet."""

    def call(self, target: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], place: Place) -> Any:
        raise SourceError(f"`__setstate__` calls {target}", hint="qfmt restores modules without computing on tensors")


class Evaluator:
    """Runs functions of an archive; one instance is one run."""

    def __init__(
        self, archive: Archive, recorder: Recorder, constants: tuple[Any, ...], own_containers: frozenset[int]
    ) -> None:
        self.shared = Run(archive, recorder, constants, own_containers, self.run)
        self._budget = archive.budget
        self._depth = 0

    def run(self, function: Function, args: Sequence[Any], kwargs: Mapping[str, Any], scope: str) -> Any:
        """The result of a function of the archive; `scope` is the module path of the caller."""
        this = args[0] if args else None
        if isinstance(this, ScriptObject) and this.path is not None:
            scope = this.path
        frame = ScriptFrame(self.shared, function, scope)
        with frame.placing():
            self._bind(function, frame, args, kwargs)
            self._depth += 1
            if self._depth > DEPTH_LIMIT:
                raise SourceError("calls are nested too deeply")
            statements = counted(function.statements(), "", function.pieces.statements, "statements")
            result = self.block(statements, frame)
        self._depth -= 1
        return None if result is CONTINUE else result

    def set_state(self, this: ScriptObject, state: Any) -> None:
        """Run the `__setstate__` of an object that is being restored."""
        self.run(this.cls.methods["__setstate__"], [this, state], {}, "")

    def _bind(self, function: Function, frame: ScriptFrame, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        declared = frame.header.args
        self._budget.spend(len(declared.args))
        names = [argument.arg for argument in declared.args]
        defaults = dict(zip(reversed(names), reversed(declared.defaults), strict=False))
        given = dict(zip(names, args, strict=False)) | dict(kwargs)
        surplus = len(args) > len(names) or not set(given) <= set(names)
        missing = [name for name in names if name not in given and name not in defaults]
        if surplus or missing:
            what = f"needs {', '.join(missing)}" if missing else "is called with arguments that it does not have"
            raise SourceError(f"`{function.name}` {what}")
        for name in names:
            frame.variables[name] = given[name] if name in given else frame.value(defaults[name])

    def block(self, statements: Iterable[ast.stmt], frame: ScriptFrame) -> Any:
        for statement in statements:
            frame.at = statement
            self._budget.spend()
            execute = STATEMENTS.get(type(statement))
            if execute is None:
                raise frame.not_followed(statement)
            result = execute(self, statement, frame)
            if result is not CONTINUE:
                return result
        return CONTINUE

    def _assign(self, node: ast.Assign | ast.AnnAssign, frame: ScriptFrame) -> Any:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if node.value is None or len(targets) != 1:
            raise frame.not_followed(node)
        names = [each.id for each in ast.walk(targets[0]) if isinstance(each, ast.Name)]
        frame.assign(targets[0], frame.value(node.value))
        frame.assigned.update(dict.fromkeys(names, frame.function.line(node)))
        return CONTINUE

    def _if(self, node: ast.If, frame: ScriptFrame) -> Any:
        decision = self._decide(node.test, frame)
        if isinstance(decision, bool):
            return self.block(node.body if decision else node.orelse, frame)
        left, outcome = branches.sides(node)
        if left is not None:
            return self.block(left, frame)
        undecided = decision if isinstance(decision, branches.Undecided) else self._undecided(node.test, frame)
        if outcome is None:
            raise undecided.error
        self._budget.spend(len(outcome))
        for name, same in outcome.items():
            frame.variables[name] = undecided if same is None else frame.value(same)
        return CONTINUE

    def _while(self, node: ast.While, frame: ScriptFrame) -> Any:
        while True:
            frame.at = node
            self._budget.spend()
            decision = self._decide(node.test, frame)
            if not isinstance(decision, bool):
                raise self._undecided(node.test, frame).error
            if not decision:
                return CONTINUE
            result = self.block(node.body, frame)
            if result is not CONTINUE:
                return result

    def _for(self, node: ast.For, frame: ScriptFrame) -> Any:
        call = node.iter
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id != "range":
            raise frame.not_followed(node)
        bounds = [frame.value(bound) for bound in call.args]
        if any(isinstance(bound, Value) for bound in bounds):
            raise self._undecided(call, frame).error
        if not 1 <= len(bounds) <= 3 or not all(isinstance(bound, int) for bound in bounds):
            raise frame.not_followed(node)
        for index in range(*bounds):
            frame.at = node
            self._budget.spend()
            frame.assign(node.target, index)
            result = self.block(node.body, frame)
            if result is not CONTINUE:
                return result
        return CONTINUE

    def _with(self, node: ast.With, frame: ScriptFrame) -> Any:
        managers = [frame.value(item.context_expr) for item in node.items]
        for item, manager in zip(node.items, managers, strict=True):
            if _chooses_types(manager):
                what = "computes with torch.autocast, which chooses element types while it runs"
                raise SourceError(what, where=frame.where, hint="script the network without it, or with enabled=False")
            entered = frame.method(manager, "__enter__", [], {})
            if item.optional_vars is not None:
                frame.assign(item.optional_vars, entered)
        result = self.block(node.body, frame)
        frame.at = node
        for manager in reversed(managers):
            frame.method(manager, "__exit__", [None, None, None], {})
        return result

    def _return(self, node: ast.Return, frame: ScriptFrame) -> Any:
        return None if node.value is None else frame.value(node.value)

    def _expression_statement(self, node: ast.Expr, frame: ScriptFrame) -> Any:
        frame.value(node.value)
        return CONTINUE

    def _pass(self, node: ast.Pass, frame: ScriptFrame) -> Any:
        return CONTINUE

    def _nested_function(self, node: ast.FunctionDef, frame: ScriptFrame) -> Any:
        raise runs_in_parallel()

    def _decide(self, test: ast.expr, frame: ScriptFrame) -> Any:
        """True, False, or the Value that a decision depends on."""
        value = frame.value(test)
        if isinstance(value, StoredTensor):
            value = value.item()
        if isinstance(value, bool | int | float | Value):
            return value if isinstance(value, Value) else bool(value)
        raise frame.not_followed(test)

    def _undecided(self, test: ast.expr, frame: ScriptFrame) -> branches.Undecided:
        self._budget.allocate(branches.UNDECIDED + len(frame.function.file))
        what = f"the code makes a decision that depends on the data: `{frame.shown(test)}`"
        hint = "trace the network with an example, or state the shape of the input, so that only one branch remains"
        return branches.Undecided(ControlFlowError(what, where=frame.where, hint=hint))


def _chooses_types(manager: object) -> bool:
    """Whether it is an autocast that is enabled for processors. Its methods in an archive do nothing: torch knows the
    class by its name (torch/csrc/jit/passes/autocast.cpp). What is enabled for "cuda" changes only tensors there."""
    if not isinstance(manager, ScriptObject) or manager.cls.name.removeprefix("__torch__.") not in AUTOCAST:
        return False
    is_elsewhere = ".cuda." in manager.cls.name or manager.attributes.get("device") == "cuda"
    return manager.attributes.get("_enabled") is not False and not is_elsewhere


AUTOCAST = {f"torch.{module}.autocast_mode.autocast" for module in ("amp", "cpu.amp", "cuda.amp")}

STATEMENTS: Mapping[type[ast.stmt], Callable[[Evaluator, Any, ScriptFrame], Any]] = {
    ast.Assign: Evaluator._assign,
    ast.AnnAssign: Evaluator._assign,
    ast.Expr: Evaluator._expression_statement,
    ast.If: Evaluator._if,
    ast.While: Evaluator._while,
    ast.For: Evaluator._for,
    ast.With: Evaluator._with,
    ast.Return: Evaluator._return,
    ast.Pass: Evaluator._pass,
    ast.FunctionDef: Evaluator._nested_function,
}
