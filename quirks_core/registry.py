"""Finds quirks in two phases: metadata only (`Discovered`), then each plugin loaded on its own (`Loaded` or `Broken`)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import pluggy

from quirks_core import hookspecs
from quirks_core.context import RunContext
from quirks_core.errors import DeclarationError, UsageError, nearest
from quirks_core.hookspecs import PROJECT, hookimpl
from quirks_core.plan import Plan
from quirks_core.quirk import Quirk
from quirks_core.resolve import Loaded, resolve
from quirks_core.switches import Switches

#: The distribution whose quirks are built in.
BUILT_IN = "model-quirks"


@dataclass(frozen=True, slots=True)
class Discovered:
    """A plugin before loading: what its metadata says."""

    name: str
    distribution: str
    version: str
    entry_point: EntryPoint

    @property
    def module(self) -> str:
        """The module that loading would import."""
        return self.entry_point.module


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


@dataclass(frozen=True, slots=True, eq=False)
class _SingleQuirk:
    """Stands for an entry point that names a `Quirk`; pluggy compares plugins by equality, so it must not have one."""

    quirk: Quirk

    @hookimpl
    def quirks_declare(self) -> list[Quirk]:
        return [self.quirk]


def discover() -> list[Discovered]:
    """Finds every plugin from metadata, sorted; imports none."""
    found = [
        Discovered(
            name=point.name,
            distribution=point.dist.name if point.dist else "unknown",
            version=point.dist.version if point.dist else "0",
            entry_point=point,
        )
        for point in entry_points(group=PROJECT)
    ]
    return sorted(found, key=lambda item: (item.distribution != BUILT_IN, item.distribution, item.name))


@dataclass(frozen=True, slots=True)
class Registry:
    """The loaded quirks, and the plugins that did not load.

    Attributes:
        loaded: Every quirk with where it comes from, sorted by id.
        broken: Every plugin that did not load.
    """

    loaded: tuple[Loaded, ...]
    broken: tuple[Broken, ...] = ()
    _manager: pluggy.PluginManager = field(default_factory=lambda: _new_manager(), repr=False, compare=False)

    @classmethod
    def load(cls, found: Iterable[Discovered] | None = None) -> Registry:
        """Loads plugins one by one; a broken one becomes a `Broken` row and the others work.

        Args:
            found: What to load; everything that is installed if None.
        """
        manager = _new_manager()
        loaded: dict[str, Loaded] = {}
        broken: list[Broken] = []
        for item in discover() if found is None else found:
            try:
                loaded.update(_declared(manager, item, loaded))
            except (Exception, SystemExit) as error:  # a module may call sys.exit where it should raise
                broken.append(_broken(item, error))
        return cls(tuple(sorted(loaded.values(), key=lambda item: item.quirk.id)), tuple(broken), manager)

    def find(self, quirk_id: str) -> Loaded:
        """Returns the quirk of that id.

        Raises:
            UsageError: There is none; the message names the nearest one.
        """
        for item in self.loaded:
            if item.quirk.id == quirk_id:
                return item
        raise UsageError(f"no quirk {quirk_id!r}{nearest(quirk_id, [item.quirk.id for item in self.loaded])}")

    def resolve(self, context: RunContext, switches: Switches | None = None) -> Plan:
        """Makes the plan for a run.

        Args:
            context: The facts.
            switches: What the user switched off.

        Raises:
            UsageError: A switch names nothing.
        """
        switches = switches or Switches({})
        switches.check((item.quirk for item in self.loaded), (item.name for item in self.broken))
        context, troubles = self._with_plugin_facts(context)
        return resolve(context, self.loaded, switches, warnings=[*map(str, self.broken), *troubles])

    def observe(self, plan: Plan, receipt: object) -> list[str]:
        """Shows plan and receipt to every observer; returns what went wrong in words."""
        _, troubles = _call_each(self._manager, "quirks_observe", plan=plan, receipt=receipt)
        return troubles

    def _with_plugin_facts(self, context: RunContext) -> tuple[RunContext, list[str]]:
        answers, troubles = _call_each(self._manager, "quirks_facts", context=context)
        extra: dict[str, Any] = {}
        for plugin, facts in answers:
            try:
                # Facts are part of the plan, which is JSON; a copy, so that the plugin cannot change them afterwards.
                values = json.loads(json.dumps(dict(facts)))
            except (TypeError, ValueError) as error:
                troubles.append(f"quirks_facts of {plugin} failed: it must return JSON values by name: {error}")
            else:
                extra |= {f"{plugin.partition(':')[0]}.{key}": value for key, value in values.items()}
        return (context.model_copy(update={"extra": {**context.extra, **extra}}) if extra else context), troubles


def _new_manager() -> pluggy.PluginManager:
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    return manager


def _declared(manager: pluggy.PluginManager, item: Discovered, taken: Mapping[str, Loaded]) -> dict[str, Loaded]:
    """Imports one plugin, registers it and asks it for its quirks; a plugin with anything wrong stays unregistered."""
    new: dict[str, Loaded] = {}
    plugin = item.entry_point.load()
    name = f"{item.distribution}:{item.name}"
    manager.register(_SingleQuirk(plugin) if isinstance(plugin, Quirk) else plugin, name)
    own = [impl for impl in manager.hook.quirks_declare.get_hookimpls() if impl.plugin_name == name]
    try:
        manager.check_pending()  # a misspelt hook would never be called
        if not own:
            raise DeclarationError(f"{item.entry_point.value} is neither a Quirk nor a plugin with a quirks_declare hook")
        quirks: list[Any] = list(own[0].function())  # type: ignore[call-overload]  # pluggy types it as object
        if wrong := [quirk for quirk in quirks if not isinstance(quirk, Quirk)]:
            raise DeclarationError(f"quirks_declare returned {wrong[0]!r}, which is no Quirk")
        if isinstance(plugin, Quirk) and plugin.id != item.name:
            raise DeclarationError(f"the entry point is named {item.name!r} but the quirk's id is {plugin.id!r}")
        for quirk in quirks:
            if first := new.get(quirk.id) or taken.get(quirk.id):
                raise DeclarationError(
                    f"quirk id {quirk.id!r} is taken by {first.distribution} {first.version} ({first.quirk.location})"
                )
            new[quirk.id] = Loaded(quirk, item.distribution, item.version, item.name)
    except BaseException:
        manager.unregister(name=name)
        raise
    return new


def _broken(item: Discovered, error: BaseException) -> Broken:
    text = str(error) if isinstance(error, DeclarationError) else f"{type(error).__name__}: {error}"
    return Broken(item.name, item.distribution, item.version, item.entry_point.value, text)


def _call_each(manager: pluggy.PluginManager, hook: str, **arguments: object) -> tuple[list[tuple[str, Any]], list[str]]:
    """Calls a hook implementation by implementation: pluggy's own call would lose all results when one raises.

    Returns:
        Each answer with the name of its plugin, and what went wrong in words.
    """
    answers: list[tuple[str, Any]] = []
    troubles: list[str] = []
    for impl in getattr(manager.hook, hook).get_hookimpls():
        try:
            answers.append((impl.plugin_name, impl.function(**{name: arguments[name] for name in impl.argnames})))
        except Exception as error:
            troubles.append(f"{hook} of {impl.plugin_name} failed: {type(error).__name__}: {error}")
    return answers, troubles
