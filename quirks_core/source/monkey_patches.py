"""The monkey-patches of vLLM that a package or a file makes, read from its source: none of its code runs.

Names are followed through imports, aliases and constants inside of one file. What is made at run time only (a name that is put
together, a patch that another package's function applies) is not seen.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum, auto
from typing import Any

from quirks_core.source.name_scopes import (
    Function,
    Where,
    after,
    below,
    branches_of,
    catches,
    dotted_names,
    function_of,
    imported,
    is_vllm,
    last,
    names_of,
    rows_of,
    text_of,
    value_of,
)  # fmt: skip
from quirks_core.source.source_tree import syntax_tree

_VLLM = "vllm"
_FILE = re.compile(r"(?:vllm/)?((?:\w+/)*\w+\.py)")
_PATCHING = re.compile(r"patch|override|replace", re.IGNORECASE)
_WRAPT = ("wrap_function_wrapper", "patch_function_wrapper", "wrap_object")
#: A text that is replaced in a file of vLLM has at least so many characters; others are paths or names.
_SHORTEST = 12


class Way(StrEnum):
    """How a patch is made."""

    ASSIGNMENT = auto()  #: ``Class.name = …``, also of an item
    SETATTR = auto()  #: ``setattr(Class, "name", …)``
    MOCK = auto()  #: ``unittest.mock.patch``, ``monkeypatch.setattr`` or ``wrapt``
    DECORATOR = auto()  #: a decorator that names the target, or ``class X(VLLMPatch[Class])``
    SUBCLASS = auto()  #: a class of its own that overrides a method
    MODULE = auto()  #: ``sys.modules["vllm.…"] = …``
    TEXT = auto()  #: a text that is replaced in a file of vLLM


@dataclass(frozen=True, slots=True)
class MonkeyPatch:
    """One patch.

    Attributes:
        targets: Dotted names of what is replaced; several if the code imports it from one of several modules. For a text, the
            file's path in vLLM.
        way: How it is made.
        place: File and line.
        where: What holds there.
        is_guarded: The code goes on if the target is missing.
        function: What takes the target's place, if that is a function that could be found.
        wraps: It calls what it replaces.
        member: The method that is replaced, if the target is a class.
        text: The text that is replaced in a file.
    """

    targets: tuple[str, ...]
    way: Way
    place: str
    where: Where
    is_guarded: bool = False
    function: Function | None = None
    wraps: bool = False
    member: str = ""
    text: str = ""


def read_patches(text: str, name: str) -> list[MonkeyPatch]:
    """Returns the patches that a file makes.

    Args:
        text: Its source.
        name: What it is called in places.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: It is no Python that could be read.
    """
    file = _File(name)
    file.walk(syntax_tree(text).body, {}, Where())
    return file.found


@dataclass
class _File:
    name: str
    found: list[MonkeyPatch] = field(default_factory=list)

    def walk(self, body: Sequence[ast.stmt], scope: dict[str, Any], where: Where) -> None:
        """Walks the statements of a module or function; functions in it come last, as they run later."""
        later: list[Callable[[], None]] = []
        self._statements(body, scope, where, later)
        for run in later:
            run()

    def _statements(
        self, body: Sequence[ast.stmt], scope: dict[str, Any], where: Where, later: list[Callable[[], None]]
    ) -> None:
        for node in body:
            self._statement(node, scope, where, later)
            where = after(node, scope, where)

    def _statement(self, node: ast.stmt, scope: dict[str, Any], where: Where, later: list[Callable[[], None]]) -> None:
        match node:
            case ast.Import() | ast.ImportFrom():
                for name, dotted in imported(node):
                    known = scope.get(name) if where.is_alternative else None
                    if dotted:
                        scope[name] = (*known, dotted) if isinstance(known, tuple) else (dotted,)
                    elif known is None:
                        scope.pop(name, None)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                scope[node.name] = node
                for decorator in node.decorator_list:
                    self._decorator(decorator, node, scope, where)
                given = {one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)}
                later.append(lambda: self.walk(node.body, _without(scope, given), replace(where, is_alternative=False)))
            case ast.ClassDef():
                scope.pop(node.name, None)
                self._class(node, scope, where)
                later.append(lambda: self.walk(node.body, dict(scope), replace(where, is_alternative=False)))
            case ast.If():
                self._calls([node.test], scope, where)
                yes, no = branches_of(node, scope, where)
                self._statements(node.body, scope, yes, later)
                self._statements(node.orelse, scope, replace(no, is_alternative=True), later)
            case ast.Try():
                guarded = replace(where, is_guarded=where.is_guarded or catches(node))
                self._statements(node.body, scope, guarded, later)
                for handler in node.handlers:
                    self._statements(handler.body, scope, replace(guarded, is_alternative=True), later)
                self._statements([*node.orelse, *node.finalbody], scope, guarded, later)
            case ast.For():
                for values in rows_of(node, scope):
                    self._statements(node.body, scope if not values else {**scope, **values}, where, later)
            case ast.With() | ast.AsyncWith():
                self._calls([item.context_expr for item in node.items], scope, where)
                suppressed = "suppress(" in ast.unparse(node.items[0])
                self._statements(node.body, scope, replace(where, is_guarded=where.is_guarded or suppressed), later)
            case ast.While():
                self._statements(node.body, scope, where, later)
            case _:
                self._calls([node], scope, where)
                self._assignments(node, scope, where)

    # ---- statements that patch

    def _assignments(self, node: ast.stmt, scope: dict[str, Any], where: Where) -> None:
        if not isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) or node.value is None:
            return
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            match target:
                case ast.Name(id=name):
                    scope[name] = value_of(node.value, scope)
                case ast.Attribute(value=owner, attr=name):
                    self._add(below(names_of(owner, scope), name), Way.ASSIGNMENT, node, scope, where, node.value)
                case ast.Subscript(value=owner, slice=key) if ast.unparse(owner) == "sys.modules":
                    module = text_of(key, scope)
                    self._add((module,) if is_vllm(module) else (), Way.MODULE, node, scope, where)
                case ast.Subscript(value=owner):
                    self._add(names_of(owner, scope), Way.ASSIGNMENT, node, scope, where)

    def _class(self, node: ast.ClassDef, scope: dict[str, Any], where: Where) -> None:
        """Overridden methods, and classes whose methods take the place of another's: ``class X(VLLMPatch[Class])``."""
        methods = [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
        for base in node.bases:
            if names := names_of(base, scope):
                self._add(names, Way.SUBCLASS, node, scope, where)
                for method in methods:
                    self._add(below(names, method.name), Way.SUBCLASS, method, scope, where, method)
            elif isinstance(base, ast.Subscript) and _PATCHING.search(ast.unparse(base.value)):
                for method in methods:
                    self._add(below(names_of(base.slice, scope), method.name), Way.DECORATOR, method, scope, where, method)

    def _decorator(self, node: ast.expr, function: Function, scope: dict[str, Any], where: Where) -> None:
        self._calls([node], scope, where, function)
        if not isinstance(node, ast.Call) or not node.args or (name := last(node.func)) in (*_WRAPT, "patch", "object"):
            return
        if _PATCHING.search(name):
            first, *rest = node.args
            member = text_of(rest[0], scope) if rest else ""
            targets = dotted_names(first, scope)
            if member:
                targets = below(targets, member)
            own = getattr(function, "name", "")
            self._add(targets, Way.DECORATOR, node, scope, where, function, member="" if member else own)

    def _calls(self, nodes: Iterable[ast.AST], scope: dict[str, Any], where: Where, function: Function | None = None) -> None:
        for call in [one for node in nodes for one in ast.walk(node) if isinstance(one, ast.Call)]:
            scope["/"] = (*scope.get("/", ()), *_files(call, scope))
            for targets, way, value in _patched(call, scope):
                self._add(targets, way, call, scope, where, value if value is not None else function)
            if last(call.func) == "replace" and len(call.args) >= 2 and len(text := text_of(call.args[0], scope)) >= _SHORTEST:
                for file in dict.fromkeys(scope["/"]):
                    self.found.append(MonkeyPatch((file,), Way.TEXT, f"{self.name}:{call.lineno}", where, text=text))

    def _add(
        self, targets: tuple[str, ...], way: Way, node: ast.stmt | ast.expr, scope: dict[str, Any], where: Where,
        value: ast.expr | Function | None = None, member: str = "",
    ) -> None:  # fmt: skip
        original = set(names_of(value, scope)) if isinstance(value, ast.expr) else set()
        if not targets or original & set(targets):  # the original is put back
            return
        function = value if isinstance(value, Function) else function_of(value, scope)
        inside = [*ast.walk(value)] if value is not None else []
        inside += [*ast.walk(function)] if function is not None else []
        named = {name for one in inside if isinstance(one, ast.Name | ast.Attribute) for name in names_of(one, scope)}
        wraps = bool(named & set(targets))
        if way is Way.SUBCLASS:
            wraps = any(isinstance(one, ast.Call) and last(one.func) == "super" for one in inside)
        guarded = where.is_guarded or any(part in where.looked_up for target in targets for part in target.split("."))
        self.found.append(MonkeyPatch(targets, way, f"{self.name}:{node.lineno}", where, guarded, function, wraps, member))


def _without(scope: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name, value in scope.items() if name not in names and name != "/"}


# ---- calls


def _patched(call: ast.Call, scope: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], Way, ast.expr | None]]:
    """What a call patches, with what takes its place."""
    name, args = last(call.func), call.args
    owner = last(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    given = next((item.value for item in call.keywords if item.arg in ("new", "wrapper")), None)
    if name == "setattr" and len(args) >= 3:
        yield below(names_of(args[0], scope), text_of(args[1], scope)), Way.MOCK if owner else Way.SETATTR, args[2]
    elif name in ("setattr", "patch") and args and is_vllm(text_of(args[0], scope)):
        yield dotted_names(args[0], scope), Way.MOCK, args[1] if len(args) > 1 else given
    elif name == "object" and owner == "patch" and len(args) >= 2:
        yield below(names_of(args[0], scope), text_of(args[1], scope)), Way.MOCK, args[2] if len(args) > 2 else given
    elif name == "dict" and owner == "patch" and args and ast.unparse(args[0]) == "sys.modules":
        keys = args[1].keys if len(args) > 1 and isinstance(args[1], ast.Dict) else []
        yield from (((text,), Way.MODULE, None) for key in keys if key and is_vllm(text := text_of(key, scope)))
    elif name in _WRAPT and len(args) >= 2:
        yield below(dotted_names(args[0], scope), text_of(args[1], scope)), Way.MOCK, args[2] if len(args) > 2 else given


def _files(call: ast.Call, scope: dict[str, Any]) -> Iterator[str]:
    """The Python files that a call names by a path inside of vLLM."""
    for argument in call.args:
        if (match := _FILE.fullmatch(text_of(argument, scope))) and "/" in match[0]:
            yield f"{_VLLM}/{match[1]}"
