"""Loads the discovered plugins, each on its own: into `Loaded` quirks, or a `Broken` row."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from types import FunctionType, ModuleType
from typing import Any

import pluggy

from quirks_core import guard, hookspecs
from quirks_core.consistency import circular_supersedes, duplicate_ids
from quirks_core.context import RunContext, is_known_fact
from quirks_core.discovery import PROJECT, Discovered, discover
from quirks_core.errors import BrokenPluginsError, DeclarationError, UsageError, nearest, shortened, shown, words
from quirks_core.loaded import Loaded
from quirks_core.match import is_plain
from quirks_core.plain import plain
from quirks_core.plan import Plan
from quirks_core.quirk import Quirk
from quirks_core.resolve import resolve
from quirks_core.switches import Switch, Switches

#: Set to 1, a broken plugin is an error.
STRICT_VARIABLE = "MODEL_QUIRKS_STRICT"
#: More quirks than anybody declares; a hook that never stops yielding must not fill the memory.
_MOST_QUIRKS = 100_000


@dataclass(frozen=True, slots=True)
class Broken:
    """A plugin that did not load, and why."""

    name: str
    distribution: str
    version: str
    entry_point: str
    error: str

    def __str__(self) -> str:
        return f"plugin {self.name!r} of {self.distribution} {self.version} ({self.entry_point}) is broken: {self.error}"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A plugin that was not loaded because its distribution is switched off."""

    plugin: Discovered
    switch: Switch

    def __str__(self) -> str:
        return f"plugin {self.plugin.name!r} of {self.plugin.distribution} {self.plugin.version} was not loaded: {self.switch}"


@dataclass(frozen=True, slots=True)
class Registry:
    """The loaded quirks, and the plugins that did not load.

    Attributes:
        loaded: Every quirk with where it comes from, sorted by id.
        broken: Every plugin that did not load.
        skipped: Every plugin that was not loaded because its distribution is switched off.
        notes: What plugins did while they were loaded and should not have, in words.
    """

    loaded: tuple[Loaded, ...]
    broken: tuple[Broken, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()
    _manager: pluggy.PluginManager = field(default_factory=lambda: _new_manager(), repr=False, compare=False)

    @classmethod
    def load(
        cls,
        found: Iterable[Discovered] | None = None,
        *,
        strict: bool | None = None,
        switches: Switches | None = None,
    ) -> Registry:
        """Loads plugins one by one; a broken one becomes a `Broken` row and the others work.

        Args:
            found: What to load; everything that is installed if None.
            strict: A broken plugin is an error; whether MODEL_QUIRKS_STRICT is 1 if None.
            switches: What the user turned off or on; a distribution that is off is not even imported.

        Raises:
            BrokenPluginsError: There are broken plugins, and `strict` holds.
        """
        manager, limit_s = _new_manager(), guard.time_limit_s()
        notes: list[str] = []
        plugins: list[tuple[Discovered, list[Quirk]]] = []
        broken: list[Broken] = []
        skipped: list[Skipped] = []
        for item in discover() if found is None else found:
            if switches and (switch := switches.turns_off(item.distribution)):
                skipped.append(Skipped(item, switch))
                continue
            try:
                with guard.surroundings(f"plugin {_plugin_name(item)}") as changes:
                    plugins.append((item, _declared(manager, item, limit_s)))
            except Exception as error:
                broken.append(_broken(item, error))
            notes += changes
        for check in (duplicate_ids, circular_supersedes):
            wrong = check(plugins)
            for item, problem in wrong:
                if manager.has_plugin(_plugin_name(item)):
                    manager.unregister(name=_plugin_name(item))
                broken.append(_broken(item, DeclarationError(problem)))
            gone = {id(item) for item, _ in wrong}
            plugins = [(item, quirks) for item, quirks in plugins if id(item) not in gone]
        if broken and (_strict_by_environment() if strict is None else strict):
            raise BrokenPluginsError([str(item) for item in broken])
        loaded = [Loaded(quirk, item.distribution, item.version, item.name) for item, quirks in plugins for quirk in quirks]
        loaded.sort(key=lambda item: item.quirk.id)
        return cls(tuple(loaded), tuple(broken), tuple(skipped), tuple(notes), manager)

    def find(self, quirk_id: str) -> Loaded:
        """Returns the quirk of that id.

        Raises:
            UsageError: There is none; the message names the nearest one.
        """
        for item in self.loaded:
            if item.quirk.id == quirk_id:
                return item
        raise UsageError(f"no quirk {quirk_id!r}{nearest(quirk_id, [item.quirk.id for item in self.loaded])}")

    @property
    def packages(self) -> frozenset[str]:
        """The packages whose versions quirks ask for."""
        return frozenset().union(*(_packages(item.quirk) for item in self.loaded))

    def check_names(self, switches: Switches) -> list[str]:
        """Makes sure that every name of the switches exists; returns warnings about those that nobody can know.

        Raises:
            UsageError: A switch names nothing.
        """
        not_loaded = [(item.name, item.distribution) for item in self.broken]
        not_loaded += [(row.plugin.name, row.plugin.distribution) for row in self.skipped]
        return switches.check(self.loaded, not_loaded)

    def resolve(self, context: RunContext, switches: Switches | None = None) -> Plan:
        """Makes the plan for a run.

        Args:
            context: The facts.
            switches: What the user turned off or on.

        Raises:
            UsageError: A switch names nothing.
        """
        switches = switches or Switches()
        doubtful = self.check_names(switches)
        context, troubles = self._with_plugin_facts(context.with_packages(self.packages))
        warnings = [*map(str, self.broken), *map(str, self.skipped), *self.notes, *doubtful, *troubles]
        return resolve(context, self.loaded, switches, warnings=warnings)

    def observe(self, plan: Plan, receipt: object) -> list[str]:
        """Shows plan and receipt to every observer; returns what went wrong in words."""
        _, troubles = _call_each(self._manager, "quirks_observe", lambda _: None, plan=plan, receipt=receipt)
        return troubles

    def _with_plugin_facts(self, context: RunContext) -> tuple[RunContext, list[str]]:
        answers, troubles = _call_each(self._manager, "quirks_facts", _facts, context=context)
        extra: dict[str, Any] = {}
        contested: set[str] = set()
        for plugin, facts in answers:
            for key, value in facts.items():
                name = f"{plugin.partition(':')[0]}.{key}"
                if is_known_fact(name):
                    troubles.append(f"quirks_facts of {plugin} failed: {name} is a fact of every run, not a plugin's to give")
                    continue
                if extra.setdefault(name, value) != value:
                    contested.add(name)
        for name in sorted(contested):
            troubles.append(f"fact {name} is unknown: two plugins of its distribution give it different values")
            del extra[name]
        return (context.model_copy(update={"extra": {**context.extra, **extra}}) if extra else context), troubles


def _strict_by_environment() -> bool:
    text = os.environ.get(STRICT_VARIABLE, "0")
    if text not in ("", "0", "1"):
        raise UsageError(f"{STRICT_VARIABLE}={text!r}: set it to 1, or to 0")
    return text == "1"


def _packages(quirk: Quirk) -> frozenset[str]:
    try:
        return quirk.packages
    except Exception:  # a third party's own kind of match may raise
        return frozenset()


def _new_manager() -> pluggy.PluginManager:
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    return manager


def _plugin_name(item: Discovered) -> str:
    return f"{item.distribution}:{item.name}"


def _declared(manager: pluggy.PluginManager, item: Discovered, limit_s: float) -> list[Quirk]:
    """Imports one plugin, registers it and asks it for its quirks; a plugin with anything wrong stays unregistered."""
    if item.problem:
        raise DeclarationError(item.problem)
    plugin = guard.call(item.entry_point.load, limit_s)
    if not isinstance(plugin, Quirk | ModuleType) and isinstance(type(plugin).__eq__, FunctionType):
        # pluggy compares plugins, so that one that equals others would keep them out.
        raise DeclarationError(f"{item.entry_point.value} is an object with an __eq__ of its own: give a Quirk or a module")
    if isinstance(plugin, Quirk):
        if type(plugin) is not Quirk:
            raise DeclarationError(f"{item.entry_point.value} is of a kind of Quirk of its own: give a Quirk")
        if plugin.id != item.name:
            raise DeclarationError(f"the entry point is named {item.name!r} but the quirk's id is {plugin.id!r}")
        _check(plugin, limit_s)
        return [plugin]  # it has no hooks, so that pluggy need not know it
    name = _plugin_name(item)
    manager.register(plugin, name)
    own = [impl for impl in manager.hook.quirks_declare.get_hookimpls() if impl.plugin_name == name]
    try:
        manager.check_pending()  # a misspelt hook would never be called
        if not own:
            raise DeclarationError(f"{item.entry_point.value} is neither a Quirk nor a plugin with a quirks_declare hook")
        quirks: list[Any] = guard.call(lambda: list(islice(own[0].function(), _MOST_QUIRKS + 1)), limit_s)  # type: ignore[call-overload]  # pluggy types it as object
        if len(quirks) > _MOST_QUIRKS:
            raise DeclarationError(f"quirks_declare returned more than {_MOST_QUIRKS} quirks")
        if wrong := [quirk for quirk in quirks if type(quirk) is not Quirk]:
            raise DeclarationError(f"quirks_declare returned {shown(wrong[0])}, which is no Quirk")
        for quirk in quirks:
            _check(quirk, limit_s)
    except BaseException:
        manager.unregister(name=name)
        raise
    return quirks


def _check(quirk: Quirk, limit_s: float) -> None:
    """Checks a declaration, and asks a match of somebody's own kind for its names now, where it may hang."""
    quirk.check()
    if not is_plain(quirk.match):
        guard.call(partial(_ask_for_names, quirk), limit_s)


def _ask_for_names(quirk: Quirk) -> None:
    with suppress(Exception):  # what raises here makes the quirk unknown in every plan, with the reason
        # Not `quirk.model_types`: a cached property that hangs would keep its lock, which is that of every quirk.
        _ = quirk.packages, quirk.match.model_types()


def _broken(item: Discovered, error: BaseException) -> Broken:
    expected = isinstance(error, DeclarationError | guard.TimeLimitError | guard.ExitError)
    text = shortened(str(error)) if expected else words(error)
    return Broken(item.name, item.distribution, item.version, item.entry_point.value, text)


def _read(function: Callable[..., Any], given: Mapping[str, Any], read: Callable[[Any], Any]) -> Any:
    return read(function(**given))


def _facts(answer: Any) -> dict[str, Any]:
    """Reads what `quirks_facts` returned: facts are part of the plan, which is JSON; a copy, so that nobody changes them."""
    try:
        facts: dict[str, Any] = plain(dict(answer))
    except (TypeError, ValueError):
        raise DeclarationError(f"it must return JSON values by name, not {shown(answer)}") from None
    return facts


def _call_each(
    manager: pluggy.PluginManager, hook: str, read: Callable[[Any], Any], **arguments: object
) -> tuple[list[tuple[str, Any]], list[str]]:
    """Calls a hook implementation by implementation: pluggy's own call would lose all results when one raises.

    Args:
        manager: Where the implementations are.
        hook: The hook's name.
        read: Makes of an answer what is wanted of it; also under the time limit, as answers can be anything.
        **arguments: The hook's arguments.

    Returns:
        Each answer with the name of its plugin, in order of the plugins' names, and what went wrong in words.
    """
    answers: list[tuple[str, Any]] = []
    troubles: list[str] = []
    for impl in sorted(getattr(manager.hook, hook).get_hookimpls(), key=lambda impl: str(impl.plugin_name)):
        # Copies: what a hook does to its arguments must not reach the plan.
        given = {name: copy.deepcopy(arguments[name]) for name in impl.argnames}
        try:
            with guard.surroundings(f"{hook} of {impl.plugin_name}") as changes:
                answers.append((impl.plugin_name, guard.call(partial(_read, impl.function, given, read), guard.time_limit_s())))
        except Exception as error:
            ours = guard.TimeLimitError | guard.ExitError | DeclarationError
            why = str(error) if isinstance(error, ours) else words(error)
            troubles.append(f"{hook} of {impl.plugin_name} failed: {why}")
        troubles += changes
    return answers, troubles
