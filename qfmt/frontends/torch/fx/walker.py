"""The `forward` of a pickled torch.fx GraphModule, which the file holds as Python source: read, never executed.

torch.fx prints one call per line, in the order of the graph; there is no control flow. Anything that this walker
does not know is an error with its line.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ....budget import reading
from ....errors import SourceError, damaged
from ....progress import counted
from ...stored import StoredTensor
from ..calls import PYTHON, Place, Recorder, RejectedInputError, Value
from ..lifts import parameter_names
from ..saved.tree import Module
from ..torchscript.code import charge_parsing, check_chains, check_printed, syntax_tree
from ..torchscript.frames import STEP, Frame, Symbol
from ..torchscript.operators import Operators
from ..values import PLAIN_CODES, QUANTIZED_CODES, TensorValue
from .functional import FUNCTIONS, Call
from .modules import CONTAINERS, INPUT_NAMES, apply, method

DTYPE_CODES = PLAIN_CODES | QUANTIZED_CODES | {"half": 5, "float": 6, "double": 7, "long": 4, "int": 3}
"""c10::ScalarType by torch's names."""

CONSTANTS = {
    "math.inf": float("inf"), "math.nan": float("nan"), "inf": float("inf"), "nan": float("nan"), "Ellipsis": Ellipsis,
}  # fmt: skip

SIGNS: dict[type[ast.AST], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv", ast.FloorDiv: "floordiv", ast.Mod: "mod",
    ast.Pow: "pow", ast.MatMult: "matmul", ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt",
    ast.GtE: "ge", ast.BitAnd: "and_", ast.BitOr: "or_", ast.BitXor: "xor", ast.Invert: "invert",
}  # fmt: skip
"""Operators by their Python names."""

LAYOUTS = {
    f"torch.{name}" for name in ("strided", "contiguous_format", "preserve_format", "channels_last", "channels_last_3d")
}  # fmt: skip
"""Names of memory layouts, which do not change values."""

CASTS = {"char": "int8", "byte": "uint8", "short": "int16"} | {
    name: name for name in ("bool", "int", "long", "half", "bfloat16", "float", "double")
}
"""Methods that are called like an element type, and cast to it → its name."""

LISTS = {"einsum", "expand", "flip", "new_ones", "new_zeros", "permute", "repeat", "reshape", "tile", "view"}
"""Operators that accept a list as separate arguments after the first one, too."""

OTHER_NAMES = {
    "axis": "dim", "axis0": "dim0", "axis1": "dim1", "input": "self", "keepdims": "keepdim",
}  # fmt: skip
"""NumPy's names of arguments, which torch accepts, and that of torch's functions → torch's in schemas."""

FILLED = {"ones", "zeros"}
"""Operators that accept a list as separate arguments."""

TRANSPOSED = {"T": "aten::numpy_T", "mT": "aten::mT"}
"""Attributes of a tensor that are operators."""

SELECTED = ("values", "indices")
"""The names of the results of max, min and topk along a dimension."""

DIMENSIONS = {"flip", "roll", "std", "std_mean", "var", "var_mean"}
"""Operators that accept an integer for a list of one, and other arguments in its place: std(1) is not std(True)."""


def parameters(module: Module) -> list[str]:
    """The names of the inputs of the root of a tree."""
    if module.kind != "fx":
        return [INPUT_NAMES.get(module.kind, "input")]
    given = _source(module).function.args
    required = len(given.args) - len(given.defaults)
    return [argument.arg for argument in given.args[1:required]]


def run(module: Module, recorder: Recorder, inputs: Mapping[str, Any]) -> Any:
    """The output of the root of a tree, its inputs by name."""
    args, kwargs = ((), inputs) if module.kind == "fx" else (tuple(inputs.values()), {})
    return apply(module, recorder, args, kwargs, Place(module.path))


def _graph_module(
    module: Module, recorder: Recorder, args: tuple[Any, ...], kwargs: Mapping[str, Any], place: Place
) -> Any:
    names = [argument.arg for argument in _source(module).function.args.args[1:]]
    module.budget.spend(len(names))
    if module.attributes.get("_tracer_extras"):  # with which torch traces the code again
        raise SourceError("has constants in place of arguments, which are not in its code", where=_where(module))
    if len(args) > len(names) or not kwargs.keys() <= set(names):
        raise SourceError("is called with arguments that it does not have", where=_where(module))
    return _Walker(module, recorder).run(dict(zip(names, args, strict=False)) | dict(kwargs))


CONTAINERS["fx"] = _graph_module


def _where(module: Module) -> str:
    return f"forward of {module.path}" if module.path else "forward"


class Source(NamedTuple):
    """The `forward` of a module, and the names that its code imports."""

    function: ast.FunctionDef
    names: Mapping[str, Any]


def _source(module: Module) -> Source:
    """The code of a module, parsed once: others may call it often."""
    if module.source is None:
        module.source = Source(_function(module), _imports(module))
    source: Source = module.source
    return source


def _parsed(module: Module, text: str) -> ast.Module:
    """The syntax tree of the module's code or imports."""
    where = _where(module)
    check_printed(text, where)
    check_chains(text, where)
    module.budget.allocate(charge_parsing(module.budget, text))
    try:
        return syntax_tree(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise damaged("the code is not Python", where=where) from None


def _function(module: Module) -> ast.FunctionDef:
    """The only definition in the code; `wrap` lists functions for tracing."""
    match [node for node in _parsed(module, module.code).body if not _is_wrap(node)]:
        case [ast.FunctionDef(name="forward", args=ast.arguments(args=[_, *_]) as given, decorator_list=[]) as node]:
            if given.vararg or given.kwarg or given.kwonlyargs or given.posonlyargs:
                raise SourceError("has a variable number of arguments", where=_where(module))
            return node
    raise SourceError("the code of the module is not only a `forward`", where=_where(module))


def _is_wrap(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "wrap"


def _imports(module: Module) -> dict[str, Any]:
    """The names that the code imports."""
    names: dict[str, Any] = {}
    for node in _parsed(module, module.imports).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            owner = len(getattr(node, "module", None) or "")
            module.budget.hold(len(node.names))
            module.budget.allocate(sum(owner + len(alias.name) for alias in node.names))
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.name if alias.asname else alias.name.partition(".")[0]
                names[alias.asname or name] = Symbol(name)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                names[alias.asname or alias.name] = Symbol(f"{node.module}.{alias.name}")
        elif ast.unparse(node) != "NoneType = type(None)":
            raise SourceError("imports names by other code than `import`", where=_where(module))
    return names


class ElementType(int):
    """The code of an element type: not a size, although both are integers."""

    __slots__ = ()


class _Forward(NamedTuple):
    """The code of a module, in the form that `Frame` needs."""

    module: Module
    file: str

    def line(self, node: ast.AST) -> int:
        return int(getattr(node, "lineno", 1))

    def text(self, node: ast.AST) -> str:
        """The line of a node, for messages."""
        line = self.module.code.strip().split("\n")[self.line(node) - 1 : self.line(node)]
        return line[0].strip()[:200] if line else ""


class _Walker(Frame):
    """One evaluation of a `forward`."""

    def __init__(self, module: Module, recorder: Recorder) -> None:
        operators = Operators(recorder, frozenset(), module.budget)
        super().__init__(_Forward(module, _where(module)), module.path, operators, ast.Pass(lineno=1))
        self.module, self.recorder = module, recorder
        self.source = _source(module)
        self.budget.spend(len(self.source.names))
        self.variables = dict(self.source.names)

    def run(self, inputs: Mapping[str, Any]) -> Any:
        with self.placing():
            function = self.source.function
            given = function.args
            defaults = zip(reversed(given.args), reversed(given.defaults), strict=False)
            self.variables.update({argument.arg: self.value(default) for argument, default in defaults})
            self.variables.update(inputs)
            self.variables[given.args[0].arg] = self.module
            for statement in counted(function.body, "", len(function.body), "statements"):
                self.at = statement
                try:
                    if isinstance(statement, ast.Return):
                        return None if statement.value is None else self.value(statement.value)
                    self._execute(statement)
                except RecursionError:
                    raise self.not_followed(statement) from None
        raise SourceError("the code does not return anything", where=_where(self.module))

    def _execute(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Assign():
                value = self.value(statement.value)
                for target in statement.targets:
                    self.assign(target, value)
            case ast.AnnAssign(value=ast.expr() as expression):
                self.assign(statement.target, self.value(expression))
            case ast.Expr():
                self.value(statement.value)
            case _ if not isinstance(statement, ast.Pass):
                raise self.not_followed(statement)

    def value(self, node: ast.expr) -> Any:
        """TorchScript's expressions, and slices, and Python's operators."""
        self.budget.spend(STEP)
        match node:
            case ast.Slice():
                bounds = (node.lower, node.upper, node.step)
                return slice(*(None if bound is None else self.value(bound) for bound in bounds))
            case ast.BinOp() if type(node.op) in SIGNS:
                return self._applied(SIGNS[type(node.op)], self.value(node.left), self.value(node.right))
            case ast.UnaryOp() if type(node.op) in SIGNS:
                return self._applied(SIGNS[type(node.op)], self.value(node.operand))
            case ast.Compare(ops=[sign], comparators=[right]) if type(sign) in SIGNS:
                return self._applied(SIGNS[type(sign)], self.value(node.left), self.value(right))
        return super().value(node)

    def name(self, node: ast.Name) -> Any:
        if node.id in self.variables:
            value = self.variables[node.id]
            return CONSTANTS.get(value, value) if isinstance(value, Symbol) else value
        if node.id in CONSTANTS:
            return CONSTANTS[node.id]
        if node.id in BUILTINS:
            return Symbol(f"builtins.{node.id}")
        raise self.not_followed(node)

    def attribute(self, owner: Any, name: str, node: ast.AST) -> Any:
        if isinstance(owner, Symbol):
            full = self.longer(owner, name)
            known = owner == "torch" and name in DTYPE_CODES
            return ElementType(DTYPE_CODES[name]) if known else CONSTANTS.get(full, full)
        if isinstance(owner, Module):
            held = owner.children if name in owner.children else owner.attributes
            if name not in held:
                raise SourceError(f"the module has no `{name[:100]}`")
            return held[name]
        if isinstance(owner, Value | StoredTensor):
            return self._recorded(TRANSPOSED.get(name, f"prim::{name}"), owner)
        if isinstance(owner, list | tuple) and len(owner) == len(SELECTED) and name in SELECTED:
            return owner[SELECTED.index(name)]
        raise self.not_followed(node)

    # -- calls -----------------------------------------------------------------------------------

    def call(self, node: ast.Call) -> Any:
        """The function is evaluated before its arguments, as in Python: both may change a tensor."""
        owner = self.value(node.func.value) if isinstance(node.func, ast.Attribute) else None
        called = None if isinstance(node.func, ast.Attribute) else self.value(node.func)
        listed, kwargs = self.arguments(node)
        args = tuple(listed)
        if isinstance(node.func, ast.Attribute):
            name = self.spelled(node.func)
            if isinstance(owner, Value | StoredTensor):
                return self._method(owner, name, args, kwargs)
            if isinstance(owner, Module) and name not in owner.children:
                return self._bound(method(owner, name, self.recorder, self.place), args, kwargs)
            called = self.attribute(owner, name, node)
        if isinstance(called, Module):
            return apply(called, self.recorder, args, kwargs, self.place)
        if isinstance(called, Symbol):
            return self._function(called, args, kwargs, node)
        raise self.not_followed(node)

    def _method(self, owner: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name == "where" and args:  # the only method whose tensor is not the first argument of the function
            return self._operator_of_torch(name, (args[0], owner, *args[1:]), kwargs)
        if name in CASTS and not args and not kwargs:
            name, args = "to", (DTYPE_CODES[CASTS[name]],)
        return self._operator_of_torch(name, (owner, *args), kwargs)

    def _operator_of_torch(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for value in (*args, *kwargs.values()):
            if isinstance(value, Symbol) and not _is_layout(value):
                raise SourceError(f"aten::{name[:100]} is called with {value[:100]}, which is not supported")
        args = tuple(value for value in args if not _is_layout(value))
        kwargs = {key: value for key, value in kwargs.items() if not _is_layout(value)}
        known = parameter_names(f"aten::{name}")
        kwargs = {key if key in known else OTHER_NAMES.get(key, key): value for key, value in kwargs.items()}
        if not known:  # of comparisons
            args += tuple(kwargs.pop(key) for key in ("self", "other") if key in kwargs)
        if name == "norm":
            return FUNCTIONS[name](self._recorded, name, args, kwargs)
        if name in FILLED and args and not isinstance(args[0], list | tuple):
            args = (args,)
        if name in LISTS and len(args) > 1 and not isinstance(args[1], list | tuple | ElementType):
            args = args[0], args[1:]
        if name in DIMENSIONS:
            args = tuple((each,) if type(each) is int else each for each in args)
            kwargs |= {key: [each] for key, each in kwargs.items() if type(each) is int and key != "correction"}
        args = tuple(map(_listed, args))
        if name == "split" and len(args) > 1 and isinstance(args[1], list):
            name = "split_with_sizes"
        return self.record(f"aten::{name}", args, kwargs)

    def _function(self, name: Symbol, args: tuple[Any, ...], kwargs: dict[str, Any], node: ast.Call) -> Any:
        package, _, last = name.rpartition(".")
        if package == "builtins":
            return self._builtin(last, args, kwargs, node)
        if package in ("_operator", "operator"):
            if last == "getitem" and len(args) == 2:
                return self._indexed(*args, node)
            known = last if last in PYTHON else last.removeprefix("i")
            if known not in PYTHON or kwargs:
                raise self.not_followed(node)
            return self._applied(known, *args)  # `iadd`, too: torch traces the code again, and its proxies have no `+=`
        if package == "torch.nn.functional" and last in FUNCTIONS:
            return FUNCTIONS[last](self._recorded, last, args, kwargs)
        if package.startswith("torch.ops."):  # an overload follows, or does not: the arguments tell
            namespace, operator, *_ = name.removeprefix("torch.ops.").split(".")
            return self.record(f"{namespace}::{operator}", args, kwargs)
        if name == "torch._assert" and len(args) == 2:
            return self._assert(*args)
        if name == "torch.fx._symbolic_trace._assert_is_none" and len(args) == 2:
            return self._assert(args[0] is None, args[1])
        if package in ("torch", "torch.functional", "torch.nn.functional", "torch._C._nn", "torch._C._linalg"):
            return self._operator_of_torch(last, args, kwargs)
        raise self.not_followed(node)

    def _assert(self, condition: Any, message: Any) -> None:
        """A check that depends on run-time values is skipped."""
        if isinstance(condition, bool | int) and not condition:
            raise RejectedInputError(message)

    def _bound(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            inspect.signature(function).bind(*args, **kwargs)
        except TypeError:
            raise SourceError("calls a function with arguments that are not supported") from None
        return function(*args, **kwargs)

    def _builtin(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], node: ast.Call) -> Any:
        match name, args:
            case "getattr", (owner, str() as attribute):
                self.budget.spend(reading(attribute))
                return self.attribute(owner, attribute, node)
            case "slice", (_,) | (_, _) | (_, _, _) if not kwargs:
                return slice(*args)
            case "tuple" | "list", (list() | tuple() as items,):
                self.budget.hold(len(items))
                return (tuple if name == "tuple" else list)(items)
            case "int" | "float", (Value() | StoredTensor() | int() | float(),):
                return self.apply(f"aten::{name.title()}", list(args))
            case "abs", (Value() | StoredTensor(),):
                return self._applied(name, *args)
            case "len", (Value() | StoredTensor() | list() | tuple(),):
                return self.apply("aten::len", list(args))
        raise self.not_followed(node)

    def _applied(self, name: str, *args: Any) -> Any:
        """The result of one of Python's operators. Only in Python the power of integers is an integer."""
        whole = name == "pow" and all(isinstance(arg, int) for arg in args)
        return self.apply("aten::pow.int_to_int" if whole else PYTHON[name], list(map(_listed, args)))

    def _recorded(self, target: str, *args: Any, **kwargs: Any) -> Any:
        return self.record(target, args, kwargs)

    def subscript(self, container: Any, node: ast.Subscript) -> Any:
        return self._indexed(container, self.value(node.slice), node)

    def _indexed(self, container: Any, index: Any, node: ast.AST) -> Any:
        if isinstance(container, Value | StoredTensor):
            self.budget.spend(len(index) if isinstance(index, tuple) else 1)
            return indexed(self._recorded, container, index)
        if not isinstance(container, list | tuple | dict) or not isinstance(index, int | slice | str):
            raise self.not_followed(node)
        if isinstance(index, slice):
            step = 1 if index.step is None else index.step
            return self.apply("aten::slice", [container, index.start, index.stop, step])
        return self.apply("aten::__getitem__", [container, index])


BUILTINS = ("getattr", "slice", "tuple", "list", "int", "float", "len", "abs")


def _is_layout(value: Any) -> bool:
    return isinstance(value, Symbol) and value in LAYOUTS


def _listed(value: Any) -> Any:
    """Torch's operators expect lists where Python writes tuples."""
    return list(value) if type(value) is tuple else value


def indexed(call: Call, x: Any, index: Any) -> Any:
    """A tensor indexed by integers or tensors, slices, None and an ellipsis."""
    items = list(index) if isinstance(index, tuple) else [index]
    if sum(item is Ellipsis for item in items) > 1:
        raise SourceError("indexes with two ellipses")
    if Ellipsis in [item for item in items if item is Ellipsis]:
        at = next(place for place, item in enumerate(items) if item is Ellipsis)
        used = sum(item is not None and item is not Ellipsis for item in items)
        dimensions = call("aten::dim", x)
        if not isinstance(dimensions, int):
            return dimensions  # of an operator that is not supported, which is reported
        items[at : at + 1] = [slice(None)] * (dimensions - used)
    axis, tensors, given = 0, dict[int, Any](), x
    for item in items:
        if item is None:
            x = call("aten::unsqueeze", x, axis)
            axis += 1
        elif isinstance(item, slice):
            if (item.start, item.stop, item.step) != (None, None, None):
                step = 1 if item.step is None else item.step
                x = call("aten::slice", x, axis, item.start, item.stop, step)
            axis += 1
        elif _is_tensor(item):
            tensors[axis] = item
            axis += 1
        elif isinstance(item, int | Value) and not isinstance(item, bool) and not any(map(_is_tensor, items)):
            x = call("aten::select", x, axis, item)
        else:
            raise SourceError("indexes in a way that is not supported")
    if tensors:
        return call("aten::index", x, [tensors.get(at) for at in range(max(tensors) + 1)])
    return call("aten::alias", x) if x is given else x


def _is_tensor(value: Any) -> bool:
    return isinstance(value, TensorValue | StoredTensor)
