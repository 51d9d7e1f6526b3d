"""What a name stands for at a place in another program's source, as far as vLLM is concerned, and what holds there.

A scope maps a name to dotted names of vLLM (a tuple: it may be imported from one of several modules), a text, a function, or
the node of a table.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from packaging.version import InvalidVersion, Version

_VLLM = "vllm"
_MISSING = {"ImportError", "ModuleNotFoundError", "AttributeError", "Exception", "BaseException"}
_LOOKUPS = {"hasattr", "getattr", "find_spec"}
_CONTRARY = {">=": "<", "<": ">=", ">": "<=", "<=": ">", "==": "!=", "!=": "=="}
_OPERATORS: dict[type[ast.cmpop], str] = {
    ast.GtE: ">=", ast.Lt: "<", ast.Gt: ">", ast.LtE: "<=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


# ---- names and values


def imported(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    """The names that an import binds, each with its dotted name in vLLM; empty for what comes from elsewhere."""
    if isinstance(node, ast.ImportFrom):
        if node.level == 0 and is_vllm(node.module or ""):
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)
        else:
            yield from ((alias.asname or alias.name, "") for alias in node.names)
        return
    for alias in node.names:
        name = alias.asname or alias.name.partition(".")[0]
        yield name, (alias.name if alias.asname else _VLLM) if is_vllm(alias.name) else ""


def is_vllm(dotted: str) -> bool:
    """Returns whether a dotted name is vLLM's."""
    return dotted == _VLLM or dotted.startswith(f"{_VLLM}.")


def below(owners: Iterable[str], name: str) -> tuple[str, ...]:
    """Returns the names of an attribute of each owner; none if the attribute's name is not known."""
    return tuple(f"{owner}.{name}" for owner in owners) if name else ()


def last(node: ast.expr) -> str:
    """The last part of the name of what is called."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def names_of(node: ast.expr, scope: dict[str, Any]) -> tuple[str, ...]:
    """The dotted names of vLLM that an expression stands for; empty if it stands for something else."""
    match node:
        case ast.Name(id=name):
            found = scope.get(name)
            return found if isinstance(found, tuple) else ()
        case ast.Attribute(value=owner, attr=name):
            return below(names_of(owner, scope), name)
        case ast.Call(func=function, args=[first, second, *_]) if last(function) == "getattr":
            return below(names_of(first, scope), text_of(second, scope))
        case ast.Call(func=function, args=[first, *_]) if last(function) == "import_module":
            return (text,) if is_vllm(text := text_of(first, scope)) else ()
        case ast.Subscript(value=owner, slice=key) if ast.unparse(owner) == "sys.modules":
            return (text,) if is_vllm(text := text_of(key, scope)) else ()
    return ()


def dotted_names(node: ast.expr, scope: dict[str, Any]) -> tuple[str, ...]:
    """The same, also of a text: ``"vllm.module:Class.method"``."""
    text = text_of(node, scope).replace(":", ".")
    return (text,) if is_vllm(text) else names_of(node, scope)


def text_of(node: ast.expr, scope: dict[str, Any]) -> str:
    """Returns the text that an expression stands for; empty if that is not known."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name):
            found = scope.get(name)
            return found if isinstance(found, str) else ""
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            one, other = text_of(left, scope), text_of(right, scope)
            return one + other if one and other else ""
        case ast.JoinedStr(values=parts):
            texts = [text_of(part.value if isinstance(part, ast.FormattedValue) else part, scope) for part in parts]
            return "".join(texts) if all(texts) else ""
    return ""


def value_of(node: ast.expr, scope: dict[str, Any]) -> Any:
    """What a scope keeps of a value."""
    if isinstance(node, ast.List | ast.Tuple | ast.Lambda):
        return node
    return names_of(node, scope) or text_of(node, scope) or function_of(node, scope)


def function_of(node: ast.expr | None, scope: dict[str, Any]) -> Function | None:
    """The function that an expression stands for: one of the file, or what one of the file returns."""
    match node:
        case ast.Lambda():
            return node
        case ast.Name(id=name):
            found = scope.get(name)
            return found if isinstance(found, Function) else None
        case ast.Call(func=ast.Name(id="classmethod" | "staticmethod"), args=[inner]):
            return function_of(inner, scope)
        case ast.Call(func=ast.Call(func=wraps), args=[inner]) if last(wraps) == "wraps":
            return function_of(inner, scope)
        case ast.Call(func=ast.Name(id=name)) if isinstance(maker := scope.get(name), ast.FunctionDef):
            made = {one.name: one for one in maker.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
            returned = [one.value for one in maker.body if isinstance(one, ast.Return)]
            return next((made[one.id] for one in returned if isinstance(one, ast.Name) and one.id in made), None)
    return None


def rows_of(node: ast.For, scope: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What the names of a loop stand for, each time, if it goes through a table that the file has; once nothing, if not."""
    table = scope.get(node.iter.id) if isinstance(node.iter, ast.Name) else node.iter
    names = node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]
    rows = table.elts if isinstance(table, ast.List | ast.Tuple) else []
    if not rows:
        yield {}
    for row in rows:
        values = row.elts if isinstance(row, ast.Tuple | ast.List) and len(names) > 1 else [row]
        yield {
            name.id: value_of(value, scope) for name, value in zip(names, values, strict=False) if isinstance(name, ast.Name)
        }


# ---- conditions


@dataclass(frozen=True, slots=True)
class Where:
    """What holds where a statement stands.

    Attributes:
        is_guarded: Something there knows what to do if the target is missing.
        looked_up: Names that the code looks for before it gets there.
        is_alternative: Names that it binds are alternatives to those that were bound before.
        branches: The branches of ``if`` that it is in, by line.
        versions: What has to hold for vLLM's version, as far as the source compares it.
    """

    is_guarded: bool = False
    looked_up: frozenset[str] = frozenset()
    is_alternative: bool = False
    branches: frozenset[tuple[int, bool]] = frozenset()
    versions: tuple[tuple[str, Version], ...] = ()

    def excludes(self, other: Where) -> bool:
        """Returns whether at most one of the two places is reached."""
        return any((line, not taken) in other.branches for line, taken in self.branches)

    def holds_for(self, version: Version | None) -> bool:
        """Returns whether the place is reached with a version of vLLM; true where that is not known."""
        return version is None or all(_compares(version, operator, bound) for operator, bound in self.versions)


def _compares(one: Version, operator: str, other: Version) -> bool:
    return {
        ">=": one >= other, "<": one < other, ">": one > other, "<=": one <= other, "==": one == other, "!=": one != other,
    }[operator]  # fmt: skip


def branches_of(node: ast.If, scope: dict[str, Any], where: Where) -> tuple[Where, Where]:
    """What holds in the two branches of an ``if``."""
    looked_up = where.looked_up | set(_looked_up(node.test, scope))
    bound = _version(node.test)
    versions = [where.versions, where.versions]
    if bound is not None:
        versions = [(*where.versions, bound), (*where.versions, (_CONTRARY[bound[0]], bound[1]))]
    yes, no = (
        replace(where, looked_up=looked_up, branches=where.branches | {(node.lineno, taken)}, versions=known)
        for taken, known in zip((True, False), versions, strict=True)
    )
    return yes, no


def _looked_up(test: ast.expr, scope: dict[str, Any]) -> Iterator[str]:
    """The names of vLLM whose presence a condition looks for."""
    for node in ast.walk(test):
        match node:
            case ast.Call(func=function, args=[*_, tail]) if last(function) in _LOOKUPS and len(node.args) < 3:
                yield text_of(tail, scope).rpartition(".")[2]
            case ast.Call(func=function, args=[_, second, _]) if last(function) in _LOOKUPS:
                yield text_of(second, scope)
            case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot()]):
                yield from (name.rpartition(".")[2] for name in names_of(left, scope))


def _version(test: ast.expr) -> tuple[str, Version] | None:
    """How a condition compares vLLM's version; None if it does something else."""
    match test:
        case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in _OPERATORS:
            text = right.args[0] if isinstance(right, ast.Call) and right.args else right
            if _VLLM in ast.unparse(left).lower() and isinstance(text, ast.Constant) and isinstance(text.value, str):
                try:
                    return _OPERATORS[type(operator)], Version(text.value)
                except InvalidVersion:
                    return None
    return None


def after(node: ast.stmt, scope: dict[str, Any], where: Where) -> Where:
    """What holds behind a statement: behind ``if …: return``, the contrary of its condition."""
    if isinstance(node, ast.If) and not node.orelse and _leaves(node.body):
        return branches_of(node, scope, where)[1]
    if isinstance(node, ast.Try) and catches(node) and any(_leaves(one.body, quietly=True) for one in node.handlers):
        return replace(where, is_guarded=True)
    return where


def _leaves(body: Sequence[ast.stmt], *, quietly: bool = False) -> bool:
    return isinstance(body[-1], ast.Return | ast.Continue if quietly else ast.Return | ast.Raise | ast.Continue)


def catches(node: ast.Try) -> bool:
    """Whether a ``try`` catches that something is missing."""
    kinds = [kind for one in node.handlers for kind in (ast.walk(one.type) if one.type else [ast.Name("Exception")])]
    return any(isinstance(kind, ast.Name) and kind.id in _MISSING for kind in kinds)
