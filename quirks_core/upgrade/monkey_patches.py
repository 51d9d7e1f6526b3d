"""The monkey-patches of vLLM that a file makes, read from its source: none of its code runs.

Plain forms are found: assignments, ``setattr``, ``mock.patch`` and decorators that name a target, through imports and aliases.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

_PATCHING = re.compile(r"patch|override|replace", re.IGNORECASE)
#: Conditions that a target is there, and conditions on vLLM's version.
_LOOKS = re.compile(r"hasattr\(|find_spec\(|\bis (?:not )?None")
_VERSION = re.compile(r"vllm\w*version|version\(.vllm|vllm\.__version__", re.IGNORECASE)
_LEAVES = ast.Return | ast.Raise | ast.Continue
_Def = ast.FunctionDef | ast.AsyncFunctionDef
Function = _Def | ast.Lambda


#: How a patch is made: ``Class.name = …``, also of an item; ``setattr``; ``unittest.mock.patch``; a decorator.
Way = Literal["assignment", "setattr", "mock", "decorator"]


@dataclass(frozen=True, slots=True)
class MonkeyPatch:
    """One patch.

    Attributes:
        targets: Dotted names of what is replaced; several if the code imports it from one of several modules.
        way: How it is made.
        place: File and line.
        is_guarded: The code goes on if the target is missing.
        is_conditional: It stands under a condition on vLLM's version.
        function: What takes the target's place, if that is a function of the file.
        member: The method that is replaced, if the target is a class.
    """

    targets: tuple[str, ...]
    way: Way
    place: str
    is_guarded: bool = False
    is_conditional: bool = False
    function: Function | None = None
    member: str = ""


def read_patches(text: str, name: str) -> list[MonkeyPatch]:
    """Returns the patches that a file makes.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: It is no Python that could be read.
    """
    reader = _Reader(name)
    reader.visit(ast.parse(text))
    for run in reader.later:  # grows while functions in functions are read
        run()
    return reader.found


class _Reader(ast.NodeVisitor):
    """Follows names: `scope` maps each to dotted names of vLLM (a tuple), a text, or a function of the file."""

    def __init__(self, name: str) -> None:
        self.name, self.found = name, list[MonkeyPatch]()
        self.later: list[Callable[[], None]] = []  # bodies of functions: they run when the file is read
        self.scope: dict[str, Any] = {}
        self.is_guarded = self.is_conditional = False

    def _visit_all(self, nodes: Iterable[ast.AST], *, is_guarded: bool = False, is_conditional: bool = False) -> None:
        kept = self.is_guarded, self.is_conditional
        self.is_guarded, self.is_conditional = self.is_guarded or is_guarded, self.is_conditional or is_conditional
        for node in nodes:
            self.visit(node)
        self.is_guarded, self.is_conditional = kept

    # ---- names

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            dotted = alias.name if alias.asname else alias.name.partition(".")[0]
            self._bind(alias.asname or dotted, dotted)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            self._bind(alias.asname or alias.name, "" if node.level else f"{node.module}.{alias.name}")

    def _bind(self, name: str, dotted: str) -> None:
        known = self.scope.get(name) if self.is_guarded else None  # the other branch may have another module for it
        if _is_vllm(dotted):
            self.scope[name] = (*known, dotted) if isinstance(known, tuple) else (dotted,)
        elif known is None:
            self.scope.pop(name, None)

    def _names(self, node: ast.expr) -> tuple[str, ...]:
        """The dotted names of vLLM that an expression stands for; empty if it stands for something else."""
        if isinstance(node, ast.Attribute):
            return _below(self._names(node.value), node.attr)
        found = self.scope.get(node.id) if isinstance(node, ast.Name) else None
        return found if isinstance(found, tuple) else ()

    def _dotted(self, node: ast.expr) -> tuple[str, ...]:
        """The same, also of a text: ``"vllm.module:Class.method"``."""
        text = self._text(node).replace(":", ".")
        return (text,) if _is_vllm(text) else self._names(node)

    def _text(self, node: ast.expr) -> str:
        value = self.scope.get(node.id) if isinstance(node, ast.Name) else getattr(node, "value", None)
        return value if isinstance(value, str) else ""

    def _function(self, node: ast.expr | None) -> Function | None:
        match node:
            case ast.Lambda():
                return node
            case ast.Name(id=name) if isinstance(self.scope.get(name), Function):
                return self.scope[name]  # type: ignore[no-any-return]
            case ast.Call(func=ast.Name(id="classmethod" | "staticmethod"), args=[inner]):
                return self._function(inner)
        return None

    # ---- blocks

    def visit_FunctionDef(self, node: _Def) -> None:
        self.scope[node.name] = node
        for decorator in node.decorator_list:
            self.visit(decorator)
            self._decorator(decorator, node)
        self.later.append(partial(self._body, node, self.scope, self.is_guarded, self.is_conditional))

    def _body(self, node: _Def, scope: dict[str, Any], is_guarded: bool, is_conditional: bool) -> None:
        given = {one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)}
        self.scope = {name: value for name, value in scope.items() if name not in given}
        self.is_guarded, self.is_conditional = is_guarded, is_conditional
        for statement in node.body:
            self.visit(statement)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - as ast calls it

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        test = ast.unparse(node.test)
        looks, is_conditional = bool(_LOOKS.search(test)), bool(_VERSION.search(test))
        self._visit_all((*node.body, *node.orelse), is_guarded=looks, is_conditional=is_conditional)
        if not node.orelse and isinstance(node.body[-1], _LEAVES):  # the rest stands under the contrary
            self.is_guarded, self.is_conditional = self.is_guarded or looks, self.is_conditional or is_conditional

    def visit_With(self, node: ast.With) -> None:
        self._visit_all(node.items)
        self._visit_all(node.body, is_guarded="suppress(" in ast.unparse(node.items[0]))

    def visit_Try(self, node: ast.Try) -> None:
        self._visit_all((*node.body, *node.handlers), is_guarded=bool(node.handlers))
        self._visit_all((*node.orelse, *node.finalbody))

    # ---- patches

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            match target:
                case ast.Name(id=name):
                    self.scope[name] = self._names(node.value) or self._text(node.value) or self._function(node.value)
                case ast.Attribute():
                    self._add(self._names(target), "assignment", node, node.value)
                case ast.Subscript(value=owner):
                    self._add(self._names(owner), "assignment", node)

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Name(id="setattr"), args=[owner, name, value]):
                self._add(_below(self._names(owner), self._text(name)), "setattr", node, value)
            case ast.Call(func=ast.Attribute(attr="object", value=patch), args=[owner, name, *rest]) if _last(patch) == "patch":
                self._add(_below(self._names(owner), self._text(name)), "mock", node, rest[0] if rest else None)
            case ast.Call(func=function, args=[target, *rest]) if _last(function) == "patch":
                self._add(self._dotted(target), "mock", node, rest[0] if rest else None)

    def _decorator(self, node: ast.expr, function: _Def) -> None:
        if (
            isinstance(node, ast.Call)
            and node.args
            and _last(node.func) not in ("patch", "object")
            and _PATCHING.search(_last(node.func))
        ):
            owner, *member = node.args
            if name := self._text(member[0]) if member else "":
                self._add(_below(self._dotted(owner), name), "decorator", node, function)
            else:
                self._add(self._dotted(owner), "decorator", node, function, function.name)

    def _add(
        self,
        targets: tuple[str, ...],
        way: Way,
        node: ast.stmt | ast.expr,
        value: ast.expr | Function | None = None,
        member: str = "",
    ) -> None:
        original = self._names(value) if isinstance(value, ast.expr) else ()
        if not targets or set(original) & set(targets):  # the original is put back
            return
        function = value if isinstance(value, Function) else self._function(value)
        place = f"{self.name}:{node.lineno}"
        self.found.append(MonkeyPatch(targets, way, place, self.is_guarded, self.is_conditional, function, member))


def _is_vllm(dotted: str) -> bool:
    return dotted == "vllm" or dotted.startswith("vllm.")


def _below(owners: Iterable[str], name: str) -> tuple[str, ...]:
    """The names of an attribute of each owner; none if the attribute's name is not known."""
    return tuple(f"{owner}.{name}" for owner in owners) if name else ()


def _last(node: ast.expr) -> str:
    """The last part of the name of what is called."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
