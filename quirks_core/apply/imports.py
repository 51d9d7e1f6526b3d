"""Reaches into modules that may not be imported yet: calls a function after the import, or wraps a method."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from functools import partial, wraps
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_MARK = "_model_quirks_wrapped"

Call = Callable[[ModuleType], None]


class _Finder:
    """An import hook that finds modules as usual, and calls what waits for one right after it was executed."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Call]] = {}

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Finds a module that something waits for; None for any other."""
        if name not in self.waiting:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        spec = next((found for finder in others if (found := finder.find_spec(name, path, target)) is not None), None)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            while calls := self.waiting.get(name):  # one call can register another
                calls[0](module)
                forget(name, calls[0])

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]  # of this one loader, made for this one import
        return spec


_finder = _Finder()


def forget(name: str, call: Call) -> None:
    """Undoes a `when_imported`; without effect if the call was made."""
    if call in (calls := _finder.waiting.get(name, [])):
        calls.remove(call)
    if not calls:
        _finder.waiting.pop(name, None)
    if not _finder.waiting and _finder in sys.meta_path:
        sys.meta_path.remove(_finder)


def when_imported(name: str, call: Call) -> None:
    """Calls a function with a module once it is imported; the same function waits only once."""
    module = sys.modules.get(name)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        call(module)
        return
    waiting = _finder.waiting.setdefault(name, [])
    if call not in waiting:
        waiting.append(call)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def wrap(target: str, around: Callable[..., Any]) -> None:
    """Wraps a method, now or as soon as its module is imported; a second call changes nothing, nor does one for no method.

    Args:
        target: ``module:Class.method``.
        around: Called in its place, with the original before the arguments.
    """
    module, _, path = target.partition(":")
    when_imported(module, partial(_wrap_in, path, around))


def _wrap_in(path: str, around: Callable[..., Any], module: ModuleType) -> None:
    kind, _, name = path.partition(".")
    owner = getattr(module, kind)
    original = inspect.getattr_static(owner, name, None)

    def wrapper(function: Callable[..., Any]) -> Callable[..., Any]:
        found = wraps(function)(lambda *args, **kwargs: around(function, *args, **kwargs))
        setattr(found, _MARK, True)
        return found

    if original is not None and not hasattr(getattr(original, "__func__", original), _MARK):
        setattr(owner, name, wrapped(wrapper, original))


def wrapped(wrapper: Callable[[Any], Any], value: Any) -> Any:
    """Wraps a function; a static or class method stays one."""
    if isinstance(value, staticmethod | classmethod):
        return type(value)(wrapper(value.__func__))
    return wrapper(value)
