"""The monkey-patches of vLLM that a file makes, read from its source: none of its code runs.

Plain forms are found: assignments, ``setattr`` and ``mock.patch``, through imports and aliases.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Flag, auto
from functools import partial
from typing import Any, Literal

from quirks_core.source.source_tree import parse

#: Conditions that a target is there, and conditions on vLLM's version.
_LOOKS = re.compile(r"hasattr\(|find_spec\(|\bis (?:not )?None")
_VERSION = re.compile(r"vllm\w*version|version\(.vllm|vllm\.__version__", re.IGNORECASE)
_LEAVES = ast.Return | ast.Raise | ast.Continue
_Def = ast.FunctionDef | ast.AsyncFunctionDef
Function = _Def | ast.Lambda


#: How a patch is made: ``Class.name = …``, also of an item; ``setattr``; ``unittest.mock.patch``.
Way = Literal["assignment", "setattr", "mock"]


class Condition(Flag):
    """What a patch stands under."""

    NONE = 0
    GUARD = auto()  #: the code goes on if the target is missing
    VERSION = auto()  #: vLLM's version decides


@dataclass(frozen=True, slots=True)
class MonkeyPatch:
    """One patch.

    Attributes:
        targets: Dotted names of what is replaced; several if the code imports it from one of several modules.
        way: How it is made.
        place: File and line.
        condition: What it stands under.
        function: What takes the target's place, if that is a function of the file.
    """

    targets: tuple[str, ...]
    way: Way
    place: str
    condition: Condition = Condition.NONE
    function: Function | None = None


def read_patches(text: str, name: str) -> list[MonkeyPatch]:
    """Returns the patches that a file makes.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: It is no Python that could be read.
    """
    reader = _Reader(name)
    reader.visit(parse(text))
    for run in reader.later:  # grows while functions in functions are read
        run()
    return reader.found


class _Reader(ast.NodeVisitor):
    """Follows names: `scope` maps each to dotted names of vLLM (a tuple), a text, or a function of the file."""

    def __init__(self, name: str) -> None:
        self.name, self.found = name, list[MonkeyPatch]()
        self.later: list[Callable[[], None]] = []  # bodies of functions: they run when the file is read
        self.scope: dict[str, Any] = {}
        self.condition = Condition.NONE

    def _visit_all(self, nodes: Iterable[ast.AST], condition: Condition = Condition.NONE) -> None:
        kept = self.condition
        self.condition |= condition
        for node in nodes:
            self.visit(node)
        self.condition = kept

    # ---- names

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            dotted = alias.name if alias.asname else alias.name.partition(".")[0]
            self._bind(alias.asname or dotted, dotted)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            self._bind(alias.asname or alias.name, "" if node.level else f"{node.module}.{alias.name}")

    def _bind(self, name: str, dotted: str) -> None:
        # The other branch may have another module for it.
        known = self.scope.get(name) if Condition.GUARD in self.condition else None
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
        self._visit_all(node.decorator_list)
        self.later.append(partial(self._body, node, self.scope, self.condition))

    def _body(self, node: _Def, scope: dict[str, Any], condition: Condition) -> None:
        given = {one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)}
        self.scope = {name: value for name, value in scope.items() if name not in given}
        self.condition = condition
        for statement in node.body:
            self.visit(statement)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - as ast calls it

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        test = ast.unparse(node.test)
        condition = Condition.GUARD if _LOOKS.search(test) else Condition.NONE
        condition |= Condition.VERSION if _VERSION.search(test) else Condition.NONE
        self._visit_all((*node.body, *node.orelse), condition)
        if not node.orelse and isinstance(node.body[-1], _LEAVES):  # the rest stands under the contrary
            self.condition |= condition

    def visit_With(self, node: ast.With) -> None:
        self._visit_all(node.items)
        self._visit_all(node.body, Condition.GUARD if "suppress(" in ast.unparse(node.items[0]) else Condition.NONE)

    def visit_Try(self, node: ast.Try) -> None:
        self._visit_all((*node.body, *node.handlers), Condition.GUARD if node.handlers else Condition.NONE)
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
                text = self._text(target)
                self._add((text,) if _is_vllm(text) else (), "mock", node, rest[0] if rest else None)

    def _add(self, targets: tuple[str, ...], way: Way, node: ast.stmt | ast.expr, value: ast.expr | None = None) -> None:
        original = self._names(value) if value is not None else ()
        if targets and not set(original) & set(targets):  # else the original is put back
            place = f"{self.name}:{node.lineno}"
            self.found.append(MonkeyPatch(targets, way, place, self.condition, self._function(value)))


def _is_vllm(dotted: str) -> bool:
    return dotted == "vllm" or dotted.startswith("vllm.")


def _below(owners: Iterable[str], name: str) -> tuple[str, ...]:
    """The names of an attribute of each owner; none if the attribute's name is not known."""
    return tuple(f"{owner}.{name}" for owner in owners) if name else ()


def _last(node: ast.expr) -> str:
    """The last part of the name of what is called."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
