"""The `forward` of a pickled torch.fx GraphModule, which the file holds as Python source: read, never executed.

torch.fx prints one call a line, in the order of the graph; there is no control flow. What the source may say
is what this walker knows; all else is refused with its line.
"""

from __future__ import annotations

import ast
import inspect
import operator
from collections.abc import Callable, Mapping
from typing import Any

from ....errors import SourceError
from ...stored import StoredTensor
from ..calls import Place, Recorder, Value
from ..saved.tree import Module
from ..torchscript.code import charge_parsing, check_chains
from .arithmetic import OPERATORS, computed
from .functional import FUNCTIONS, Call, spelled
from .indexing import indexed
from .modules import CONTAINERS, INPUT_NAMES, apply, caller, method

DTYPE_CODES = {
    "uint8": 0, "int8": 1, "int16": 2, "int32": 3, "int64": 4, "float16": 5, "float32": 6, "float64": 7, "bool": 11,
    "qint8": 12, "quint8": 13, "qint32": 14, "bfloat16": 15, "half": 5, "float": 6, "double": 7, "long": 4, "int": 3,
}  # fmt: skip
"""c10::ScalarType by the names that torch has for it."""

CONSTANTS = {"math.inf": float("inf"), "math.nan": float("nan"), "inf": float("inf"), "nan": float("nan")}

LISTS = {"view", "reshape", "permute", "repeat", "expand", "tile"}
"""Methods that take a list also as so many arguments."""


class Symbol(str):
    """A dotted name of Python: "torch.ops.quantized.add"."""

    __slots__ = ()


def parameters(module: Module) -> list[str]:
    """The names of the inputs of the root of a tree."""
    if module.kind != "fx":
        return [INPUT_NAMES.get(module.kind, "input")]
    given = _function(module).args
    if given.vararg or given.kwarg or given.kwonlyargs:
        raise SourceError("takes a variable number of arguments", where=_where(module))
    required = len(given.args) - len(given.defaults)
    return [argument.arg for argument in given.args[1:required]]


def run(module: Module, recorder: Recorder, inputs: Mapping[str, Any]) -> Any:
    """The output of the root of a tree, its inputs by name."""
    if module.kind == "fx":
        return _Walker(module, recorder).run(inputs)
    return apply(module, recorder, tuple(inputs.values()), {}, Place(module.path, "", 0, ""))


def _graph_module(
    module: Module, recorder: Recorder, args: tuple[Any, ...], kwargs: Mapping[str, Any], place: Place
) -> Any:
    return run(module, recorder, dict(zip(parameters(module), args, strict=False)) | dict(kwargs))


CONTAINERS["fx"] = _graph_module


def _where(module: Module) -> str:
    return f"forward of {module.path}" if module.path else "forward"


def _parsed(module: Module, name: str) -> ast.Module:
    """The syntax tree of the module's `code` or `imports`, parsed once."""
    if name not in module.syntax:
        text, where = getattr(module, name), _where(module)
        check_chains(text.split("\n"), where)
        charge_parsing(module.budget, text)
        try:
            module.syntax[name] = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise SourceError("the code is not Python", where=where, hint="the file is damaged") from None
    return module.syntax[name]


def _function(module: Module) -> ast.FunctionDef:
    for node in _parsed(module, "code").body:
        if isinstance(node, ast.FunctionDef) and node.name == "forward" and node.args.args:
            return node
    raise SourceError("the code of the module has no `forward`", where=_where(module))


def _imports(module: Module) -> dict[str, Any]:
    """What the imports of the code name."""
    names: dict[str, Any] = {}
    for node in _parsed(module, "imports").body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.name if alias.asname else alias.name.partition(".")[0]
                names[alias.asname or name] = Symbol(name)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                names[alias.asname or alias.name] = Symbol(f"{node.module}.{alias.name}")
    return names


class _Walker:
    """One evaluation of a `forward`."""

    def __init__(self, module: Module, recorder: Recorder) -> None:
        self.module = module
        self.recorder = recorder
        self.names = _imports(module)
        self.line = 0

    def run(self, inputs: Mapping[str, Any]) -> Any:
        function = _function(self.module)
        given = function.args
        defaults = zip(reversed(given.args), reversed(given.defaults), strict=False)
        self.names.update({argument.arg: self.value(default) for argument, default in defaults})
        self.names.update(inputs)
        self.names[given.args[0].arg] = self.module
        for statement in function.body:
            self.line = statement.lineno
            try:
                if isinstance(statement, ast.Return):
                    return None if statement.value is None else self.value(statement.value)
                self._execute(statement)
            except RecursionError:
                raise self._refused(statement) from None
        raise SourceError("the code does not return anything", where=_where(self.module))

    def _execute(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Assign():
                value = self.value(statement.value)
                for target in statement.targets:
                    self._assign(target, value)
            case ast.AnnAssign(value=ast.expr() as expression):
                self._assign(statement.target, self.value(expression))
            case ast.Expr():
                self.value(statement.value)
            case ast.Pass():
                pass
            case _:
                raise self._refused(statement)

    def _assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self.names[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List) and isinstance(value, list | tuple):
            if len(target.elts) != len(value):
                raise self._refused(target)
            for each, element in zip(target.elts, value, strict=True):
                self._assign(each, element)
        else:
            raise self._refused(target)

    def value(self, node: ast.expr) -> Any:
        self.module.budget.spend()
        match node:
            case ast.Constant(value=None | bool() | int() | float() | str()):
                return node.value
            case ast.Constant(value=value) if value is Ellipsis:
                return Ellipsis
            case ast.Name():
                return self._name(node)
            case ast.Attribute():
                return self._attribute(self.value(node.value), node.attr, node)
            case ast.Call():
                return self._call(node)
            case ast.Subscript():
                return self._subscript(self.value(node.value), self.value(node.slice), node)
            case ast.Tuple():
                self.module.budget.hold(len(node.elts))
                return tuple(map(self.value, node.elts))
            case ast.List():
                self.module.budget.hold(len(node.elts))
                return list(map(self.value, node.elts))
            case ast.Dict() if all(isinstance(key, ast.Constant) for key in node.keys):
                self.module.budget.hold(4 * len(node.keys))
                return {key.value: self.value(item) for key, item in zip(node.keys, node.values, strict=True)}  # type: ignore[union-attr]
            case ast.Slice():
                bounds = (node.lower, node.upper, node.step)
                return slice(*(None if bound is None else self.value(bound) for bound in bounds))
            case ast.BinOp() if type(node.op) in OPERATORS:
                target, function = OPERATORS[type(node.op)]
                return self._computed(target, function, self.value(node.left), self.value(node.right))
            case ast.Compare(ops=[sign], comparators=[right]) if type(sign) in OPERATORS:
                return self._computed(*OPERATORS[type(sign)], self.value(node.left), self.value(right))
            case ast.UnaryOp(op=ast.USub()):
                return self._computed("aten::neg", operator.neg, self.value(node.operand))
        raise self._refused(node)

    def _name(self, node: ast.Name) -> Any:
        if node.id in self.names:
            value = self.names[node.id]
            return CONSTANTS.get(value, value) if isinstance(value, Symbol) else value
        if node.id in CONSTANTS:
            return CONSTANTS[node.id]
        if node.id == "Ellipsis":
            return Ellipsis
        if node.id in BUILTINS:
            return Symbol(f"builtins.{node.id}")
        raise self._refused(node)

    def _attribute(self, owner: Any, name: str, node: ast.AST) -> Any:
        if isinstance(owner, Symbol):
            full = Symbol(f"{owner}.{name}")
            return DTYPE_CODES[name] if owner == "torch" and name in DTYPE_CODES else CONSTANTS.get(full, full)
        if isinstance(owner, Module):
            return self._of_module(owner, name)
        if isinstance(owner, Value | StoredTensor):
            return self._recording()(f"prim::{name}", owner)
        raise self._refused(node)

    def _of_module(self, owner: Module, name: str) -> Any:
        if name in owner.children:
            return owner.children[name]
        if name not in owner.attributes:
            raise SourceError(f"the module has no `{name[:100]}`", where=self._here())
        return owner.attributes[name]

    # -- calls -----------------------------------------------------------------------------------

    def _call(self, node: ast.Call) -> Any:
        if any(keyword.arg is None for keyword in node.keywords):
            raise self._refused(node)
        args = tuple(map(self.value, node.args))
        kwargs = {str(keyword.arg): self.value(keyword.value) for keyword in node.keywords}
        if isinstance(node.func, ast.Attribute):
            owner = self.value(node.func.value)
            if isinstance(owner, Value | StoredTensor):
                return self._method(owner, node.func.attr, args, kwargs)
            if isinstance(owner, Module) and node.func.attr not in owner.children:
                return self._bound(method(owner, node.func.attr, self.recorder, self._place()), args, kwargs)
            called = self._attribute(owner, node.func.attr, node)
        else:
            called = self.value(node.func)
        if isinstance(called, Module):
            return apply(called, self.recorder, args, kwargs, self._place())
        if isinstance(called, Symbol):
            return self._function(called, args, kwargs, node)
        raise self._refused(node)

    def _method(self, owner: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name in LISTS and args and not isinstance(args[0], list | tuple):
            args = (list(args),)
        return self._operator_of_torch(name, (owner, *args), kwargs)

    def _operator_of_torch(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args = tuple(map(_listed, args))
        if name == "split" and len(args) > 1 and isinstance(args[1], list):
            name = "split_with_sizes"
        return self._recording()(f"aten::{name}", *args, **kwargs)

    def _function(self, name: Symbol, args: tuple[Any, ...], kwargs: dict[str, Any], node: ast.Call) -> Any:
        package, _, last = name.rpartition(".")
        if package == "builtins":
            return self._builtin(last, args, kwargs, node)
        if package in ("_operator", "operator"):
            return self._operator(last, args, node)
        function = (FUNCTIONS.get(last) or spelled(last)) if package == "torch.nn.functional" else None
        if function is not None:
            return self._bound(function, (self._recording(), *args), kwargs)
        if package.startswith("torch.ops."):
            return self._recording()(f"{package.removeprefix('torch.ops.').partition('.')[0]}::{last}", *args, **kwargs)
        if name == "torch._assert" and len(args) == 2:
            return self._assert(*args)
        if package in ("torch", "torch.functional", "torch.nn.functional", "torch._C._nn"):
            return self._operator_of_torch(last, args, kwargs)
        raise self._refused(node)

    def _assert(self, condition: Any, message: Any) -> None:
        """What a run would find out is left to it."""
        if isinstance(condition, bool | int) and not condition:
            raise SourceError(f"the network refuses its input: {str(message)[:300]}", where=self._here())

    def _bound(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            inspect.signature(function).bind(*args, **kwargs)
        except TypeError:
            raise SourceError("calls a function with arguments that are not supported", where=self._here()) from None
        return function(*args, **kwargs)

    def _builtin(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], node: ast.Call) -> Any:
        if name == "getattr" and len(args) == 2 and isinstance(args[1], str):
            return self._attribute(args[0], args[1], node)
        if name == "slice" and 1 <= len(args) <= 3 and not kwargs:
            return slice(*args)
        if name in ("tuple", "list") and len(args) == 1 and isinstance(args[0], list | tuple):
            self.module.budget.hold(len(args[0]))
            return (tuple if name == "tuple" else list)(args[0])
        if name in ("int", "float", "len") and len(args) == 1 and isinstance(args[0], Value | StoredTensor):
            return self._recording()({"int": "aten::Int", "float": "aten::Float", "len": "aten::len"}[name], args[0])
        if name in ("int", "float") and len(args) == 1 and isinstance(args[0], int | float):
            return (int if name == "int" else float)(args[0])
        if name == "len" and len(args) == 1 and isinstance(args[0], list | tuple):
            return len(args[0])
        raise self._refused(node)

    def _operator(self, name: str, args: tuple[Any, ...], node: ast.Call) -> Any:
        if name == "getitem" and len(args) == 2:
            return self._subscript(*args, node)
        for target, function in (*OPERATORS.values(), ("aten::neg", operator.neg)):
            if name.lstrip("i") == function.__name__ or name == function.__name__:
                return self._computed(target, function, *args)
        raise self._refused(node)

    def _computed(self, target: str, function: Callable[..., Any], *args: Any) -> Any:
        self.module.budget.spend(sum(len(arg) for arg in args if isinstance(arg, list | tuple)))
        try:
            return computed(self._recording(), target, function, *args)
        except SourceError as error:
            raise error if error.where else error.at(self._here()) from None

    def _subscript(self, container: Any, index: Any, node: ast.AST) -> Any:
        if isinstance(container, Value | StoredTensor):
            return indexed(self._recording(), container, index)
        if not isinstance(container, list | tuple | dict) or not isinstance(index, int | slice | str):
            raise self._refused(node)
        if isinstance(index, slice):
            self.module.budget.hold(len(container))
        try:
            return container[index]  # type: ignore[index]
        except (LookupError, TypeError, ValueError):
            raise SourceError("reads an element that does not exist", where=self._here()) from None

    # -- places ----------------------------------------------------------------------------------

    def _recording(self) -> Call:
        return caller(self.recorder, self._place())

    def _place(self) -> Place:
        return Place(self.module.path, "forward", self.line, "")

    def _here(self) -> str:
        return f"{_where(self.module)}:{self.line}"

    def _refused(self, node: ast.AST) -> SourceError:
        line = self.module.code.strip().split("\n")[self.line - 1 : self.line]
        shown = line[0].strip()[:200] if line else ""
        what = f"the code has a {type(node).__name__} here that is not supported: `{shown}`"
        return SourceError(what, where=self._here())


BUILTINS = ("getattr", "slice", "tuple", "list", "int", "float", "len")


def _listed(value: Any) -> Any:
    """Torch's operators take lists where Python writes tuples."""
    return list(value) if type(value) is tuple else value
