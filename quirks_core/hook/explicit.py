"""Which engine arguments the user typed: a typed value wins over a quirk's default, and a requirement refuses it.

command line   vLLM's parser calls its ``_get_values`` for every option of a command line or of ``--config``, and for no other.
               vLLM loads plugins while it builds the parser, so this recorder is always in time.
by value       everything else, and all that a trainer's own code passes: what is not the default was typed. An explicit default
               looks open, except in the ``**kwargs`` of ``LLM``; MODEL_QUIRKS_SET and `quirks_for` name what else is explicit.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import traceback
import weakref
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, NamedTuple

from quirks_core.apply.imports import wrap
from quirks_core.facts.trainers import find

_LLM = "vllm/entrypoints/llm.py"
#: A call with this many keywords forwards all fields of an ``EngineArgs``, so none counts as set by the user.
_ALL_FIELDS = 150
#: Arguments that select the model, place one node in a group of several (the nodes of one run have the same plan), or that vLLM
#: sets by itself. Nobody types them to choose a setting.
NO_SETTINGS = frozenset(
    {
        *("additional_config", "api_server_count", "headless", "hf_token", "model", "port"),
        *("logging_config", "revision", "tokenizer"),
        *("data_parallel_address", "data_parallel_rank", "data_parallel_rpc_port", "data_parallel_size_local"),
        *("data_parallel_external_lb", "data_parallel_hybrid_lb", "data_parallel_multi_port_external_lb"),
        *("data_parallel_start_rank", "master_addr", "master_port", "node_rank"),
    }
)
#: With what vLLM sets on the namespace of ``vllm serve``, and among the keywords of LLM.
_SET_BY_VLLM = NO_SETTINGS | {"disable_log_stats"}


class Typed(NamedTuple):
    """The arguments that the user typed.

    Attributes:
        names: Their names.
        exact: Nothing else was typed. Otherwise a default that was typed is missing.
        as_options: They were typed as options of a command line.
        others: What the parser put in the place of other names. Values that were typed, some of them secrets, are not kept.
    """

    names: frozenset[str]
    exact: bool = False
    as_options: bool = False
    others: Mapping[str, Any] = MappingProxyType({})


#: The names that the parser at work has seen so far; a subcommand's are its parent's, too.
_parsing: ContextVar[set[str] | None] = ContextVar("model_quirks_parsing", default=None)
#: What is known of an object that cannot be hashed, by its address. No attributes: vLLM logs those of a namespace, and passes
#: those of an ``EngineArgs`` on.
_known: dict[int, tuple[weakref.ref[Any], Typed]] = {}


def declare(subject: Any, typed: Typed) -> None:
    """Notes what the user typed of an ``EngineArgs``, or of a namespace, as long as it lives."""
    key = id(subject)
    _known[key] = (weakref.ref(subject, lambda _: _known.pop(key, None)), typed)


def typed_in(arguments: Any) -> Typed:
    """Returns what the user typed of an ``EngineArgs``; the first answer stays, as vLLM changes its arguments later on."""
    found = _declared(arguments)
    if found is None:
        found = _by_value_or_keyword(arguments)
        declare(arguments, found)
    return found


def watch() -> None:
    """Puts the recorders on, now or as soon as vLLM's modules are imported."""
    wrap("vllm.utils.argparse_utils:FlexibleArgumentParser._get_values", _recorded_values)
    wrap("vllm.utils.argparse_utils:FlexibleArgumentParser.parse_known_args", _recorded_parse)
    wrap("vllm.engine.arg_utils:EngineArgs.from_cli_args", _from_cli_args)


def _declared(subject: Any) -> Typed | None:
    found = _known.get(id(subject))
    return found[1] if found is not None and found[0]() is subject else None


def _by_value_or_keyword(arguments: Any) -> Typed:
    names = _by_value(arguments) - _SET_BY_VLLM
    for frame, _ in traceback.walk_stack(sys._getframe()):
        is_llm = frame.f_code.co_name == "__init__" and frame.f_code.co_filename.endswith(_LLM)
        if is_llm and len(passed := frame.f_locals.get("kwargs", {})) < _ALL_FIELDS and find({}, sys.modules) is None:
            fields = {field.name for field in dataclasses.fields(arguments)} - _SET_BY_VLLM
            return Typed(names | passed.keys() & fields)
    return Typed(names)


def _by_value(arguments: Any) -> frozenset[str]:
    names = set()
    for field in dataclasses.fields(arguments):
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        value = getattr(arguments, field.name, default)
        if not (_same(value, default) or (not value and not default)):
            names.add(field.name)
    return frozenset(names)


def _same(one: Any, other: Any) -> bool:
    try:
        return one is other or bool(one == other)
    except Exception:  # a value of a type with an equality of its own
        return False


def _from_cli_args(original: Callable[..., Any], cls: Any, args: Any, *more: Any, **named: Any) -> Any:
    made = original(cls, args, *more, **named)
    if (typed := _declared(args)) is not None:
        declare(made, _of_command_line(typed, args, made))
    return made


def _of_command_line(typed: Typed, parsed: Any, arguments: Any) -> Typed:
    """Frameworks set attributes after the parser; and a trainer's own code types defaults, which are not the user's choice."""
    fields = {field.name for field in dataclasses.fields(arguments)}
    names, left = typed.names & fields - NO_SETTINGS, fields - typed.names - _SET_BY_VLLM
    later = {name for name in left if not _same(getattr(parsed, name, None), typed.others.get(name))}
    if find({}, sys.modules) is not None:
        return Typed((names | later) & _by_value(arguments), as_options=True)
    return Typed(names | later, exact=not later, as_options=True)


def _recorded_values(original: Callable[..., Any], parser: Any, action: argparse.Action, strings: list[str]) -> Any:
    if (names := _parsing.get()) is not None and (action.option_strings or strings):  # an optional positional comes, too
        names.add(action.dest)
    return original(parser, action, strings)


def _recorded_parse(original: Callable[..., Any], parser: Any, args: Any = None, namespace: Any = None) -> Any:
    around = _parsing.get()
    names = set(vars(namespace)) if namespace is not None else set()  # a configuration handed over as a namespace
    token = _parsing.set(names)
    try:
        found, rest = original(parser, args, namespace)
    finally:
        _parsing.reset(token)
    if around is not None:
        around |= names
    others = {name: value for name, value in vars(found).items() if name not in names}
    declare(found, Typed(frozenset(names), others=others))
    return found, rest
