"""The arguments of vLLM's engine, read from its source: names, types, defaults and help, without an import.

An argument is declared in ``EngineArgs`` as ``block_size: int | None = CacheConfig.block_size``. What the names in there stand
for is looked up in the modules that they come from; what cannot be found that way is taken for ``Any``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin

from quirks_core.source.source_tree import SourceTree, parse

_MODULE = "vllm.engine.arg_utils"
_CLASSES = ("EngineArgs", "AsyncEngineArgs")
_PLAIN: Mapping[str, Any] = {kind.__name__: kind for kind in (bool, dict, float, int, list, set, str, tuple)} | {"None": None}
_GENERIC = ("dict", "list", "set", "tuple")
#: Imports that lead from one to another before a name is given up.
_DEEPEST = 8
#: The value by which vLLM chooses another one itself.
_AUTO = "auto"


@dataclass(frozen=True, slots=True)
class EngineArgument:
    """One argument of the engine.

    Attributes:
        name: Its name.
        type: What it takes, by the source; ``Any`` where it does not state it.
        default: Its default; None also where the source does not give it as a plain literal.
        help: What it sets; empty if the source does not state it.
        owner: The configuration class that keeps it in the engine (``CacheConfig``); empty if the source does not state it.
        attribute: Its name there.
        place: Module and line of its declaration, where its default is.
    """

    name: str
    type: Any
    default: Any
    help: str
    owner: str
    attribute: str
    place: str = ""


@dataclass(frozen=True)
class EngineArguments:
    """The arguments of vLLM's engine.

    Attributes:
        source: The source that they are read from.
    """

    source: SourceTree

    @lru_cache(maxsize=8)
    def names(self) -> frozenset[str] | None:
        """Returns the names of all arguments; None if there is no vLLM."""
        fields = self._fields()
        return None if fields is None else frozenset(fields)

    @lru_cache(maxsize=1024)
    def find(self, name: str) -> EngineArgument | None:
        """Reads one argument; None if vLLM does not have it, or there is none."""
        node = (self._fields() or {}).get(name)
        return None if node is None else self._read(name, node, _MODULE)

    def leaves_open(self, name: str, value: Any) -> bool:
        """Returns whether a value leaves an argument to vLLM.

        That is ``auto`` where it is the default and stands beside the values that vLLM chooses from (``dtype``), and not where
        it names a source of its own (``generation_config``).
        """
        argument = self.find(name) if value == _AUTO else None
        if argument is None or argument.default != _AUTO:
            return False
        return any(_AUTO in kind.__args__ for kind in (argument.type, *get_args(argument.type)) if get_origin(kind) is Literal)

    @lru_cache(maxsize=512)
    def nested(self, name: str) -> Mapping[str, EngineArgument]:
        """Reads the fields of the configuration that an argument holds, if it does, those of configurations in it included.

        Returns:
            The fields by their dotted names (``compilation_config.pass_config.fuse_norm_quant``).
        """
        node = (self._fields() or {}).get(name)
        return MappingProxyType({} if node is None else dict(self._nested(name, node.annotation, _MODULE)))

    def _nested(self, path: str, annotation: ast.expr, module: str) -> Iterator[tuple[str, EngineArgument]]:
        if (owner := self._configuration(annotation, module)) is not None:
            home, definition = owner
            for field, node in _fields_of(definition):
                name = f"{path}.{field}"
                yield name, self._read(name, node, home)
                yield from self._nested(name, node.annotation, home)

    def _configuration(self, annotation: ast.expr, module: str) -> tuple[str, ast.ClassDef] | None:
        """Finds the class of vLLM's configuration that an annotation names, with the module that it is in."""
        for node in ast.walk(annotation):
            texts = [node.id] if isinstance(node, ast.Name) else []
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts = re.findall(r"[A-Z]\w+", node.value)
            for text in texts:
                home, found = self._look_up(module, text) if text not in _PLAIN else (module, None)
                if isinstance(found, ast.ClassDef) and any(isinstance(one, ast.AnnAssign) for one in found.body):
                    return home, found
        return None

    def _read(self, name: str, node: ast.AnnAssign, module: str) -> EngineArgument:
        owner, attribute = _home(node.value)
        declared = self._class_field(module, owner, attribute) if owner else None
        home, field = declared or (module, node)
        return EngineArgument(
            name=name,
            type=self.annotated_type(node.annotation, module),
            default=_literal_value(field.value),
            help=self._help(module, node) or (self._help(*declared) if declared else ""),
            owner=owner,
            attribute=attribute or name,
            place=f"{home}:{field.lineno}",
        )

    @lru_cache(maxsize=8)
    def _fields(self) -> Mapping[str, ast.AnnAssign] | None:
        tree = self.source.parsed(_MODULE)
        if tree is None:
            return None
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name in _CLASSES]
        return MappingProxyType({name: node for one in classes for name, node in _fields_of(one)})

    def _class_field(self, module: str, owner: str, attribute: str) -> tuple[str, ast.AnnAssign] | None:
        """Finds a field of a class that a module defines or imports, with the module that it is in."""
        home, node = self._look_up(module, owner)
        field = self.source.statement(f"{home}:{node.name}.{attribute}") if isinstance(node, ast.ClassDef) else None
        return (home, field) if isinstance(field, ast.AnnAssign) else None

    def _look_up(self, module: str, name: str) -> tuple[str, ast.stmt | None]:
        """Finds the statement that gives a name its meaning, through imports inside of vLLM, with the module that it is in."""
        for _ in range(_DEEPEST):
            imported = self.source.imported_from(module, name)
            if imported is None or not imported[0].startswith("vllm"):
                return module, self.source.statement(f"{module}:{name}")
            # Also where the module gives the name another meaning: what vLLM imports for type checkers is a str when it runs.
            module, name = imported
        return module, None

    def _help(self, module: str, field: ast.AnnAssign) -> str:
        """The text under a field, on one line."""
        tree = self.source.parsed(module)
        for owner in tree.body if tree else ():
            if isinstance(owner, ast.ClassDef) and field in owner.body:
                match owner.body[owner.body.index(field) + 1 :]:
                    case [ast.Expr(value=ast.Constant(value=str(text))), *_]:
                        return " ".join(text.split())
        return ""

    def annotated_type(self, node: ast.expr, module: str) -> Any:
        """Returns what an annotation in a module of vLLM stands for; ``Any`` where the source does not name it."""
        match node:
            case ast.Constant(value=None):
                return None
            case ast.Constant(value=str(text)):  # a forward reference
                (expression,) = parse(text.strip()).body
                return self.annotated_type(expression.value, module) if isinstance(expression, ast.Expr) else Any
            case ast.Name(id=name) if name in _PLAIN:
                return _PLAIN[name]
            case ast.Name(id=name):
                home, alias = self._look_up(module, name)
                value = alias.value if isinstance(alias, ast.Assign | ast.AnnAssign) else None
                return self.annotated_type(value, home) if value is not None else Any
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                one, other = self.annotated_type(left, module), self.annotated_type(right, module)
                return Any if Any in (one, other) else one | other
            case ast.Subscript(value=ast.Name(id="Literal"), slice=members):
                return self._literal(members, module)
            case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[first, *_])):
                return self.annotated_type(first, module)
            case ast.Subscript(value=ast.Name(id=name)) if name in _GENERIC:
                return _PLAIN[name]  # what is in it is vLLM's to check
        return Any

    def _literal(self, members: ast.expr, module: str) -> Any:
        """The values of a ``Literal``, those of other literals in it included."""
        every = members.elts if isinstance(members, ast.Tuple) else [members]
        found = [Literal[one.value] if isinstance(one, ast.Constant) else self.annotated_type(one, module) for one in every]
        return Literal[tuple(found)] if all(get_origin(one) is Literal for one in found) else Any


def _fields_of(definition: ast.ClassDef) -> Iterator[tuple[str, ast.AnnAssign]]:
    """The fields of a class, by name; in no release does a configuration inherit some."""
    for node in definition.body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=kind) if "ClassVar" not in ast.unparse(kind):
                if not name.startswith("_"):
                    yield name, node


def _home(value: ast.expr | None) -> tuple[str, str]:
    """The class and attribute that an argument takes its default from: ``CacheConfig.x`` or ``get_field(CacheConfig, "x")``."""
    match value:
        case ast.Attribute(value=ast.Name(id=owner), attr=attribute):
            return owner, attribute
        case ast.Call(func=ast.Name(id="get_field"), args=[ast.Name(id=owner), ast.Constant(value=str(attribute))]):
            return owner, attribute
    return "", ""


def _literal_value(node: ast.expr | None) -> Any:
    try:
        return None if node is None else ast.literal_eval(node)
    except ValueError:
        return None
