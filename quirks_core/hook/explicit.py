"""Records which engine arguments the user typed: a typed value wins over a quirk's default, and a requirement refuses it.

command line   vLLM's parser calls its ``_get_values`` for every option of a command line or of ``--config``, and for no other.
               vLLM loads plugins while it builds the parser, so this recorder is always in time.
keywords       a wrapper of ``__init__`` of ``EngineArgs`` and ``LLM`` sees what was passed. vLLM loads plugins inside of the
               first ``EngineArgs`` of a process, and for that one the wrapper comes too late, unless ``quirks run`` put it on
               before vLLM was imported. The frame of ``LLM.__init__`` still holds what came through its ``**kwargs``.
by value       everything else, and all that a trainer's own code passes: what is not the default was typed. An explicit
               default looks open.
"""

from __future__ import annotations

import argparse
import copyreg
import dataclasses
import functools
import sys
import weakref
from contextvars import ContextVar
from types import FrameType, ModuleType
from typing import Any, Generic, NamedTuple, TypeVar

from quirks_core.apply.imports import when_imported
from quirks_core.facts.trainers import find

_MARK = "_model_quirks_recorder"
_ARGUMENTS = "vllm/engine/arg_utils.py"
_LLM = "vllm/entrypoints/llm.py"
#: A call with this many keywords forwards all fields of an ``EngineArgs``, so none counts as set by the user.
_ALL_FIELDS = 150
#: What ``vllm serve`` sets on its namespace by itself.
_SET_BY_VLLM = frozenset({"api_server_count", "logging_config", "model"})
#: Packages whose frames lie between the making of an ``EngineArgs`` and the program that wants it.
_BETWEEN = ("quirks_core", "quirks_plugins", "vllm")
#: What LLM adds to its keywords by itself.
_BY_LLM = "disable_log_stats"


class Typed(NamedTuple):
    """The arguments that the user typed.

    Attributes:
        names: Their names.
        source: How it is known.
        exact: Nothing else was typed. Otherwise a default that was typed is missing.
        as_options: They were typed as options of a command line.
    """

    names: frozenset[str]
    source: str = ""
    exact: bool = False
    as_options: bool = False

    def __str__(self) -> str:
        """Names which of the two it is."""
        how = "known exactly" if self.exact else "by value"
        return f"{how} ({self.source})" if self.source else how


class Parsed(NamedTuple):
    """What is known of a namespace that vLLM's parser made.

    Attributes:
        names: The names that were typed. Their values, of which some are secrets, are not kept.
        others: What the parser put in the place of all other names.
    """

    names: frozenset[str]
    others: dict[str, Any]


_Note = TypeVar("_Note")


class _Notes(Generic[_Note]):
    """Notes on objects that cannot be hashed, kept while the objects live.

    They are no attributes: vLLM logs those of a namespace, and passes those of an ``EngineArgs`` on.
    """

    def __init__(self) -> None:
        self._notes: dict[int, tuple[weakref.ref[Any], _Note]] = {}

    def of(self, subject: Any) -> _Note | None:
        """Returns the note on an object; None if there is none."""
        found = self._notes.get(id(subject))
        return found[1] if found is not None and found[0]() is subject else None

    def put(self, subject: Any, note: _Note) -> None:
        """Replaces the note on an object."""
        key = id(subject)
        self._notes[key] = (weakref.ref(subject, lambda _: self._notes.pop(key, None)), note)


_given_by_caller: ContextVar[Typed | None] = ContextVar("model_quirks_typed", default=None)
#: The names that the parser at work has seen so far; a subcommand's are its parent's, too.
_parsing: ContextVar[set[str] | None] = ContextVar("model_quirks_parsing", default=None)
_known: _Notes[Typed] = _Notes()
_parsed: _Notes[Parsed] = _Notes()


def typed_in(arguments: Any) -> Typed:
    """Returns what the user typed of an ``EngineArgs``; the first answer stays, as vLLM changes its arguments later on."""
    found = _known.of(arguments)
    return found if found is not None else _remember(arguments, Typed(_by_value(arguments)))


def declare(arguments: Any, typed: Typed) -> None:
    """Notes what the user typed of an ``EngineArgs``, for a program that knows."""
    _remember(arguments, typed)


def watch() -> None:
    """Puts the recorders on, now or as soon as vLLM's modules are imported."""
    when_imported("vllm.utils.argparse_utils", _watch_parser)
    when_imported("vllm.engine.arg_utils", _watch_engine_args)
    when_imported("vllm.entrypoints.llm", _watch_llm)


def look_at_first_call() -> None:
    """Records the first ``EngineArgs`` of this process, if its making is what loads the plugins, and with them us."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and not _is(frame, "__post_init__", _ARGUMENTS):
        frame = frame.f_back
    if frame is None:
        return
    arguments = frame.f_locals["self"]
    made_by = frame.f_back.f_back if frame.f_back is not None else None  # between them is the ``__init__`` of the dataclass
    given = _given_by_caller.get() or (_given_by_frame(made_by, arguments) if made_by is not None else None)
    if given is None and made_by is not None and _is(made_by, "__init__", _LLM):
        kwargs = made_by.f_locals.get("kwargs", {})
        if len(kwargs) < _ALL_FIELDS:
            given = Typed(frozenset(kwargs), "what LLM got as **kwargs exactly")
    if given is None or not given.exact:
        given = given or Typed(frozenset())
        given = given._replace(names=(given.names | _by_value(arguments)) - {_BY_LLM})
    _record(arguments, given)


def _given_by_frame(frame: FrameType, arguments: Any) -> Typed | None:
    """Returns what was typed if the arguments are made from a namespace by vLLM's ``from_cli_args``."""
    return _in_namespace(frame.f_locals.get("args"), arguments) if _is(frame, "from_cli_args", _ARGUMENTS) else None


def _is(frame: FrameType, function: str, file: str) -> bool:
    return frame.f_code.co_name == function and frame.f_code.co_filename.replace("\\", "/").endswith(file)


def _record(arguments: Any, typed: Typed) -> None:
    """Notes what a call passed. A trainer's code passes many arguments at their defaults: those are not the user's choice."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _package(frame) in _BETWEEN:
        frame = frame.f_back
    if frame is not None and (trainer := find({}, {_package(frame)})) is not None:
        how = f"passed by {trainer.name}"
        typed = typed._replace(names=typed.names & _by_value(arguments), source=how, exact=False)
    _remember(arguments, typed)


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]


def _remember(arguments: Any, typed: Typed) -> Typed:
    typed = typed._replace(names=typed.names & {field.name for field in dataclasses.fields(arguments)})
    _known.put(arguments, typed)
    return typed


def _in_namespace(parsed: Any, arguments: Any) -> Typed | None:
    """Returns what was typed of a namespace that vLLM's parser made; None of any other.

    Frameworks set attributes afterwards. Those that differ from what the parser left there were chosen, too.
    """
    found = _parsed.of(parsed)
    if found is None:
        return None
    open_before = {field.name for field in dataclasses.fields(arguments)} - _SET_BY_VLLM - found.names
    later = {name for name in open_before if not _same(getattr(parsed, name, None), found.others.get(name))}
    if later:
        how = "a command line exactly, what was set after it was parsed by value"
        return Typed(found.names | later, how, as_options=True)
    return Typed(found.names, "command line", exact=True, as_options=True)


def _same(one: Any, other: Any) -> bool:
    try:
        return one is other or bool(one == other)
    except Exception:  # a value of a type with an equality of its own
        return False


def _by_value(arguments: Any) -> frozenset[str]:
    names = set()
    for field in dataclasses.fields(arguments):
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        value = getattr(arguments, field.name, default)
        if not (_same(value, default) or (not value and not default)):
            names.add(field.name)
    return frozenset(names)


def _watch_parser(module: ModuleType) -> None:
    parser = module.FlexibleArgumentParser
    if hasattr(parser, _MARK):
        return
    setattr(parser, _MARK, True)
    copyreg.pickle(argparse.Namespace, _reduced)
    get_values, parse_known_args = parser._get_values, parser.parse_known_args

    def recorded_values(self: Any, action: argparse.Action, strings: list[str]) -> Any:
        if (names := _parsing.get()) is not None and (action.option_strings or strings):  # an optional positional comes, too
            names.add(action.dest)
        return get_values(self, action, strings)

    @functools.wraps(parse_known_args)
    def recorded_parse(self: Any, args: Any = None, namespace: Any = None) -> Any:
        around = _parsing.get()
        names = set(vars(namespace)) if namespace is not None else set()  # a configuration handed over as a namespace
        token = _parsing.set(names)
        try:
            found, rest = parse_known_args(self, args, namespace)
        finally:
            _parsing.reset(token)
        if around is not None:
            around |= names
        others = {name: value for name, value in vars(found).items() if name not in names}
        _parsed.put(found, Parsed(frozenset(names), others))
        return found, rest

    parser._get_values, parser.parse_known_args = recorded_values, recorded_parse


def _reduced(namespace: argparse.Namespace) -> Any:
    """Copies and pickles a namespace with its note: vLLM sends such copies to its API servers."""
    note = _parsed.of(namespace)
    if note is None:
        return object.__reduce_ex__(namespace, 2)
    return _made_again, (vars(namespace), note)


def _made_again(values: dict[str, Any], note: Parsed) -> argparse.Namespace:
    namespace = argparse.Namespace()
    vars(namespace).update(values)
    _parsed.put(namespace, note)
    return namespace


def _watch_engine_args(module: ModuleType) -> None:
    for kind in (module.EngineArgs, module.AsyncEngineArgs):
        if not hasattr(kind.__init__, _MARK):
            _watch_init(kind)


def _watch_init(kind: Any) -> None:
    original = kind.__init__

    @functools.wraps(original)
    def recorded(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        given = _given_by_caller.get() or _given_by_frame(sys._getframe(1), self)
        if given is not None:
            _record(self, given)
        elif not args and len(kwargs) < _ALL_FIELDS:
            _record(self, Typed(frozenset(kwargs), "keywords", exact=True))

    setattr(recorded, _MARK, True)
    kind.__init__ = recorded


def _watch_llm(module: ModuleType) -> None:
    kind = module.LLM
    if hasattr(kind, _MARK):
        return
    setattr(kind, _MARK, True)
    init = kind.__init__

    @functools.wraps(init)
    def recorded(self: Any, *args: Any, **kwargs: Any) -> None:
        given = _given_by_caller.get()
        if given is None and len(kwargs) < _ALL_FIELDS:
            given = Typed(frozenset({"model", *kwargs}), "keywords of LLM", exact=True)
        token = _given_by_caller.set(given)
        try:
            init(self, *args, **kwargs)
        finally:
            _given_by_caller.reset(token)

    kind.__init__ = recorded
    if not hasattr(kind, "from_engine_args"):  # before vLLM 0.19
        return
    from_engine_args = kind.from_engine_args.__func__

    @functools.wraps(from_engine_args)
    def of_engine_args(cls: Any, engine_args: Any, *more: Any, **named: Any) -> Any:
        token = _given_by_caller.set(typed_in(engine_args))
        try:
            return from_engine_args(cls, engine_args, *more, **named)
        finally:
            _given_by_caller.reset(token)

    kind.from_engine_args = classmethod(of_engine_args)
