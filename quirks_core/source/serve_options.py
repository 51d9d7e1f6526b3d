"""The options of ``vllm serve``, read from its source: nothing of vLLM is imported.

Options of the engine are added in ``EngineArgs.add_cli_args``, one call for each; those of the server are the fields of the
``FrontendArgs`` classes, and a few calls in ``make_arg_parser``. As in vLLM, an option's type decides how many words it takes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum, auto
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from quirks_core.source.engine_arguments import EngineArguments

_ENGINE = "vllm.engine.arg_utils"
#: Where the server's own options are: since vLLM 0.33, since 0.29, and before.
_SERVER = ("vllm.entrypoints.common.cli_args", "vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args")
#: What makes a flag of vLLM's parser pair ``--enable-x`` with ``--disable-x``.
_PAIRS = "vllm.utils.argparse_utils:EnableDisableAction"
_ADD, _FRONTEND = "add_argument", "FrontendArgs"
_FUNCTIONS = ("add_cli_args", "make_arg_parser")


class Shape(StrEnum):
    """How many words an option takes."""

    VALUE = auto()  #: one value; none will do for some
    VALUES = auto()  #: one or more values
    FLAG = auto()  #: none; ``--no-…`` is the contrary
    SWITCH = auto()  #: none, and there is no contrary


@dataclass(frozen=True, slots=True)
class ServeOption:
    """One option.

    Attributes:
        names: Its names as they are typed, with their dashes; since vLLM 0.33 ``--disable-x`` of ``--enable-x`` among them.
        argument: The engine argument that it sets; None for an option of the server alone.
        type: What its value is; ``Any`` if the source does not name it.
        shape: How many words it takes.
    """

    names: tuple[str, ...]
    argument: str | None
    type: Any
    shape: Shape

    @property
    def name(self) -> str:
        """Its first long name."""
        return next((name for name in self.names if name.startswith("--")), self.names[0])

    @property
    def spellings(self) -> tuple[str, ...]:
        """All names, those of the contrary included."""
        flags = (name for name in self.names if self.shape is Shape.FLAG and name.startswith("--"))
        return *self.names, *(f"--no-{name.removeprefix('--')}" for name in flags)


def read_options(arguments: EngineArguments) -> tuple[ServeOption, ...] | None:
    """Returns every option of ``vllm serve``; None if there is no vLLM."""
    if arguments.names() is None:
        return None
    found: dict[str, ServeOption] = {}
    for module in (_ENGINE, *_SERVER):
        for option in (*_added(module, arguments), *(_fields(module, arguments) if module in _SERVER else ())):
            found.setdefault(option.name, option)
    with_inverse = arguments.source.statement(_PAIRS) is not None
    return tuple(_with_inverse(option) if with_inverse else option for option in found.values())


def _with_inverse(option: ServeOption) -> ServeOption:
    pairs = (("--enable-", "--disable-"), ("--disable-", "--enable-"))
    found = [other + name.removeprefix(one) for name in option.names for one, other in pairs if name.startswith(one)]
    return replace(option, names=(*option.names, *found)) if option.shape is Shape.FLAG else option


def members(type_: Any) -> tuple[Any, ...]:
    """Returns the kinds of a union, None included; for another type, the type alone."""
    return get_args(type_) if get_origin(type_) in (Union, UnionType) else (type_,)


def _added(module: str, arguments: EngineArguments) -> Iterator[ServeOption]:
    """The options that calls of ``add_argument`` add, in the functions of a module that make parsers."""
    tree = arguments.source.parsed(module)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)] if tree else []
    for function in functions:
        for call in ast.walk(function) if function.name in _FUNCTIONS else ():
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == _ADD:
                names = tuple(word for word in map(_text, call.args) if word.startswith("-"))
                if names:
                    yield _option(names, {item.arg: item.value for item in call.keywords if item.arg}, arguments)


def _option(names: tuple[str, ...], given: Mapping[str, ast.expr], arguments: EngineArguments) -> ServeOption:
    """An option by its names and by what the call itself sets; the rest is what vLLM makes of the argument's type."""
    first = next((name for name in names if name.startswith("--")), names[0])
    destination = _text(given.get("dest")) or first.lstrip("-").replace("-", "_")
    argument = arguments.find(destination)
    type_ = argument.type if argument else Any
    action, nargs = ast.unparse(given["action"]) if "action" in given else "", given.get("nargs")
    if action.strip("'\"") in ("store_true", "store_false"):
        shape = Shape.SWITCH
    elif action.endswith("BooleanOptionalAction"):
        shape = Shape.FLAG
    elif nargs is not None:
        shape = Shape.VALUE if _text(nargs) == "?" else Shape.VALUES
    else:
        shape = Shape.VALUE if "type" in given or "choices" in given else _shape(type_)
    return ServeOption(names, destination if argument else None, type_, shape)


def _fields(module: str, arguments: EngineArguments) -> Iterator[ServeOption]:
    """The options of the server that are fields of classes."""
    tree = arguments.source.parsed(module)
    single = set(_single_words(tree)) if tree else set()
    for owner in tree.body if tree else ():
        if isinstance(owner, ast.ClassDef) and owner.name.endswith(_FRONTEND):
            for node in owner.body:
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    name, type_ = node.target.id, arguments.annotated_type(node.annotation, module)
                    shape = Shape.VALUE if name in single else _shape(type_)
                    yield ServeOption((f"--{name.replace('_', '-')}",), None, type_, shape)


def _single_words(tree: ast.Module) -> Iterator[str]:
    """The lists that are typed as one word, as JSON for example: vLLM deletes what it has made of their type."""
    for node in ast.walk(tree):
        for target in node.targets if isinstance(node, ast.Delete) else ():
            match target:
                case ast.Subscript(value=ast.Subscript(slice=ast.Constant(value=str(name))), slice=ast.Constant(value="nargs")):
                    yield name


def _shape(type_: Any) -> Shape:
    kinds = set(members(type_)) - {type(None)}
    if {bool, str} == kinds and type(None) in members(type_):
        return Shape.VALUE
    if bool in kinds:
        return Shape.FLAG
    if any(get_origin(kind) is Literal for kind in kinds):
        return Shape.VALUE
    return Shape.VALUES if any((get_origin(kind) or kind) in (list, set, tuple) for kind in kinds) else Shape.VALUE


def _text(node: ast.expr | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
