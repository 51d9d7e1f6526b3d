"""The arguments of the installed vLLM, read from its source: names, types, defaults and help, without an import.

An argument is declared in ``EngineArgs`` as ``block_size: int | None = CacheConfig.block_size``. What the names in there stand
for is looked up in the modules that they come from; what cannot be told that way is taken for ``Any``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin

from quirks_core.source import sources

_MODULE = "vllm.engine.arg_utils"
_CLASSES = ("EngineArgs", "AsyncEngineArgs")
_PLAIN: Mapping[str, Any] = {kind.__name__: kind for kind in (bool, dict, float, int, list, set, str, tuple)} | {"None": None}
_GENERIC = ("dict", "list", "set", "tuple")
#: Names that lead from one to another before one is given up: aliases of aliases.
_DEEPEST = 8
#: The value by which vLLM chooses another one itself.
_AUTO = "auto"


class Unread:
    """The type of `UNREAD`."""

    def __repr__(self) -> str:
        return "unread"


#: A default that the source does not give as a literal.
UNREAD = Unread()


@dataclass(frozen=True, slots=True)
class EngineArgument:
    """One argument of the installed vLLM.

    Attributes:
        name: Its name.
        type: What it takes, as far as the source tells; ``Any`` otherwise.
        annotation: The same as it is written there.
        default: Its default, or `UNREAD`.
        help: What it sets; empty if the source does not say.
        owner: The configuration class that keeps it in the engine (``CacheConfig``); empty if the source does not say.
        attribute: Its name there.
        default_text: Its default as the source has it; empty if it has none.
        place: Module and line of its declaration, where its default is.
    """

    name: str
    type: Any
    annotation: str
    default: Any
    help: str
    owner: str
    attribute: str
    default_text: str = ""
    place: str = ""


@sources.kept_by_tree(8)
def argument_names() -> frozenset[str] | None:
    """Returns the names of all arguments; None if vLLM is not installed."""
    fields = _fields()
    return None if fields is None else frozenset(fields)


@sources.kept_by_tree(1024)
def find_argument(name: str) -> EngineArgument | None:
    """Reads one argument; None if the installed vLLM does not have it, or none is installed."""
    node = (_fields() or {}).get(name)
    return None if node is None else _read(name, node, _MODULE)


def leaves_open(name: str, value: Any) -> bool:
    """Tells whether a value leaves an argument to the installed vLLM.

    That is ``auto`` where it is the default and stands beside the values that vLLM chooses from (``dtype``), and not where it
    names a source of its own (``generation_config``).
    """
    argument = find_argument(name) if value == _AUTO else None
    if argument is None or argument.default != _AUTO:
        return False
    return any(_AUTO in kind.__args__ for kind in (argument.type, *get_args(argument.type)) if get_origin(kind) is Literal)


@sources.kept_by_tree(512)
def nested_fields(name: str) -> Mapping[str, EngineArgument]:
    """Reads the fields of the configuration that an argument holds, those of configurations in it included.

    Args:
        name: The argument.

    Returns:
        The fields by their dotted names (``compilation_config.pass_config.fuse_norm_quant``); empty for an argument that holds
        none.
    """
    node = (_fields() or {}).get(name)
    return MappingProxyType({} if node is None else dict(_nested(name, node.annotation, _MODULE, frozenset())))


def _nested(
    path: str, annotation: ast.expr, module: str, inside: frozenset[tuple[str, str]]
) -> Iterator[tuple[str, EngineArgument]]:
    owner = _configuration(annotation, module)
    if owner is None or (owner[0], owner[1].name) in inside:
        return
    home, definition = owner
    for place, node in _own_fields(home, definition).values():
        name = f"{path}.{ast.unparse(node.target)}"
        yield name, _read(name, node, place)
        yield from _nested(name, node.annotation, place, inside | {(home, definition.name)})


def _configuration(annotation: ast.expr, module: str) -> tuple[str, ast.ClassDef] | None:
    """Finds the class of vLLM's configuration that an annotation names, with the module that it is in."""
    for node in ast.walk(annotation):
        texts = [node.id] if isinstance(node, ast.Name) else []
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts = re.findall(r"[A-Z]\w+", node.value)
        for text in texts:
            home, found = _look_up(module, text) if text not in _PLAIN else (module, None)
            if isinstance(found, ast.ClassDef) and any(isinstance(one, ast.AnnAssign) for one in found.body):
                return home, found
    return None


def _own_fields(module: str, definition: ast.ClassDef, depth: int = 0) -> dict[str, tuple[str, ast.AnnAssign]]:
    """The fields of a class and of its bases in vLLM, each with the module that it is in."""
    found: dict[str, tuple[str, ast.AnnAssign]] = {}
    for base in definition.bases if depth < _DEEPEST else ():
        home, parent = _look_up(module, base.id) if isinstance(base, ast.Name) else (module, None)
        if isinstance(parent, ast.ClassDef):
            found |= _own_fields(home, parent, depth + 1)
    for node in definition.body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name)) if name[0] != "_" and "ClassVar" not in ast.unparse(node.annotation):
                found[name] = module, node
    return found


def _read(name: str, node: ast.AnnAssign, module: str) -> EngineArgument:
    """Reads one field of a class in a module."""
    owner, attribute = _home(node.value)
    declared = _class_field(module, owner, attribute) if owner else None
    home, field = declared or (module, node)
    return EngineArgument(
        name=name,
        type=_type(node.annotation, module),
        annotation=ast.unparse(node.annotation),
        default=_default(field.value, home),
        help=_help(module, node) or (_help(*declared) if declared else ""),
        owner=owner,
        attribute=attribute or name,
        default_text=_default_text(field.value, home),
        place=f"{home}:{field.lineno}",
    )


def _default_text(value: ast.expr | None, module: str) -> str:
    """A default as the source has it, without the limits beside it; of a constant of vLLM's, its value."""
    for _ in range(_DEEPEST):
        match value:
            case ast.Call(func=ast.Name(id="Field" | "field"), args=[first, *_]):
                value = first
            case ast.Call(func=ast.Name(id="Field" | "field"), keywords=keywords):
                given = {item.arg: item.value for item in keywords}
                if "default" not in given:
                    factory = ast.unparse(given["default_factory"]) if "default_factory" in given else ""
                    return {"dict": "{}", "list": "[]"}.get(factory, f"{factory}()" if factory else "")
                value = given["default"]
            case ast.Name(id=name):
                home, found = _look_up(module, name)
                if not isinstance(found, ast.Assign | ast.AnnAssign) or found.value is None:
                    break
                module, value = home, found.value
            case _:
                break
    return "" if value is None else ast.unparse(value)


def annotated_type(annotation: ast.expr, module: str) -> Any:
    """Returns what an annotation in a module of vLLM stands for; ``Any`` where the source does not tell."""
    return _type(annotation, module)


@sources.kept_by_tree(8)
def _fields() -> Mapping[str, ast.AnnAssign] | None:
    tree = sources.parsed(_MODULE)
    if tree is None:
        return None
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name in _CLASSES]
    found = [node for one in classes for node in one.body if isinstance(node, ast.AnnAssign)]
    named = {node.target.id: node for node in found if isinstance(node.target, ast.Name)}
    return MappingProxyType({name: node for name, node in named.items() if not name.startswith("_")})


def _home(value: ast.expr | None) -> tuple[str, str]:
    """The class and attribute that an argument takes its default from: ``CacheConfig.x`` or ``get_field(CacheConfig, "x")``."""
    match value:
        case ast.Attribute(value=ast.Name(id=owner), attr=attribute):
            return owner, attribute
        case ast.Call(func=ast.Name(id="get_field"), args=[ast.Name(id=owner), ast.Constant(value=str(attribute))]):
            return owner, attribute
    return "", ""


def _class_field(module: str, owner: str, attribute: str) -> tuple[str, ast.AnnAssign] | None:
    """Finds a field of a class that a module defines or imports, with the module that it is in."""
    home, node = _look_up(module, owner)
    for statement in node.body if isinstance(node, ast.ClassDef) else ():
        if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == attribute:
            return home, statement
    return None


def _look_up(module: str, name: str) -> tuple[str, ast.stmt | None]:
    """Finds the statement that gives a name its meaning, through imports inside of vLLM, with the module that it is in."""
    for _ in range(_DEEPEST):
        imported = sources.imported_from(module, name)
        if imported is None or not imported[0].startswith("vllm"):
            return module, sources.statement(f"{module}:{name}")
        # Also where the module gives the name another meaning: what vLLM imports for type checkers is a mere str when it runs.
        module, name = imported
    return module, None


def _help(module: str, field: ast.AnnAssign) -> str:
    """The text under a field, on one line."""
    tree = sources.parsed(module)
    for owner in tree.body if tree else ():
        if isinstance(owner, ast.ClassDef) and field in owner.body:
            following = owner.body[owner.body.index(field) + 1 : owner.body.index(field) + 2]
            for node in following:
                if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                    return " ".join(node.value.value.split())
    return ""


def _default(value: ast.expr | None, module: str) -> Any:
    match value:
        case ast.Call(func=ast.Name(id="Field" | "field"), args=[first, *_]):
            return _default(first, module)
        case ast.Call(func=ast.Name(id="Field" | "field"), keywords=keywords):
            given = {item.arg: item.value for item in keywords}
            if "default" in given:
                return _default(given["default"], module)
            factory = given.get("default_factory")
            made = _PLAIN.get(factory.id) if isinstance(factory, ast.Name) else None
            return made() if callable(made) else UNREAD
    try:
        return ast.literal_eval(value) if value is not None else UNREAD
    except ValueError:
        return UNREAD


def _type(node: ast.expr, module: str, depth: int = 0) -> Any:
    """What an annotation stands for; ``Any`` where that cannot be told."""
    if depth > _DEEPEST:
        return Any
    match node:
        case ast.Constant(value=None):
            return None
        case ast.Constant(value=str(text)):  # a forward reference
            return _type(ast.parse(text, mode="eval").body, module, depth + 1)
        case ast.Name(id=name) if name in _PLAIN:
            return _PLAIN[name]
        case ast.Name(id=name):
            home, alias = _look_up(module, name)
            value = alias.value if isinstance(alias, ast.Assign | ast.AnnAssign) else None
            return _type(value, home, depth + 1) if value is not None else Any
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _union(_type(left, module, depth + 1), _type(right, module, depth + 1))
        case ast.Subscript(value=ast.Name(id="Literal"), slice=members):
            return _literal(members, module, depth)
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[first, *_])):
            return _type(first, module, depth + 1)
        case ast.Subscript(value=ast.Name(id="Optional"), slice=member):
            return _union(_type(member, module, depth + 1), None)
        case ast.Subscript(value=ast.Name(id="Union"), slice=ast.Tuple(elts=members)):
            return _union(*(_type(member, module, depth + 1) for member in members))
        case ast.Subscript(value=ast.Name(id=name)) if name in _GENERIC:
            return _PLAIN[name]  # what is in it is vLLM's to check
    return Any


def _union(*kinds: Any) -> Any:
    return Any if Any in kinds else reduce(or_, (type(None) if kind is None else kind for kind in kinds))


def _literal(members: ast.expr, module: str, depth: int) -> Any:
    """The values of a ``Literal``, those of other literals in it included."""
    values: list[Any] = []
    for member in members.elts if isinstance(members, ast.Tuple) else [members]:
        if isinstance(member, ast.Constant):
            values.append(member.value)
            continue
        other = _type(member, module, depth + 1)
        if getattr(other, "__origin__", None) is not Literal:
            return Any
        values += other.__args__
    return Literal[tuple(values)]
