"""A registry that contains only what a test adds, not what is installed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from typing import Any, cast

from quirks_core.base.errors import DeclarationError, UsageError
from quirks_core.declaration.quirk import Quirk
from quirks_core.facts.context import RunContext
from quirks_core.plan.loaded import Loaded
from quirks_core.plan.records import Plan
from quirks_core.plan.switches import Switches, SwitchNames
from quirks_core.plugins.finder import PROJECT, Discovered, contained
from quirks_core.plugins.registry import Registry

_HOW = "add what the test needs: quirk_registry.add(QUIRK), or quirk_registry.load('package.module:QUIRK')"


@dataclass(frozen=True, slots=True, eq=False)
class _Given:
    """An entry point for an object that is already loaded."""

    plugin: object
    value: str
    module: str

    def load(self) -> object:
        return self.plugin


@dataclass(slots=True)
class IsolatedRegistry:
    """A registry that refuses discovery; the fixture ``quirk_registry``.

    Plugins are added as they are when they are installed: `Registry.load` loads each one, and checks duplicate ids and hooks.
    """

    _plugins: list[Discovered] = field(default_factory=list)
    _registry: Registry = field(default_factory=lambda: Registry.load([]))

    def add(self, *plugins: Quirk | object, distribution: str = "tests", version: str = "0") -> IsolatedRegistry:
        """Adds quirks, or modules and objects with hooks, as parts of a distribution.

        Raises:
            DeclarationError: One of them is broken, as it would be when it is installed.
        """
        for plugin in plugins:
            name = plugin.id if isinstance(plugin, Quirk) else str(getattr(plugin, "__name__", type(plugin).__name__))
            if any((item.distribution, item.name) == (distribution, name) for item in self._plugins):
                raise DeclarationError(f"{name!r} was added already, as a part of {distribution!r}")
            point = cast("EntryPoint", _Given(plugin, f"tests:{name}", "tests"))
            plugins_now = [*self._plugins, Discovered(name, distribution, version, point)]
            registry = Registry.load(plugins_now)
            if registry.broken:
                raise DeclarationError("; ".join(map(str, registry.broken)))
            self._plugins, self._registry = plugins_now, registry
        return self

    def load(self, value: str, *, distribution: str = "tests", version: str = "0") -> IsolatedRegistry:
        """Imports and adds ``package.module:QUIRK``, or a module with hooks, as an installed entry point would.

        Raises:
            DeclarationError: It is broken.
        """
        plugin = contained(value, EntryPoint(value, value, PROJECT).load)
        return self.add(plugin, distribution=distribution, version=version)

    @property
    def loaded(self) -> tuple[Loaded, ...]:
        """What was added, sorted by id."""
        return self._registry.loaded

    def find(self, quirk_id: str) -> Loaded:
        """Returns the quirk of that id.

        Raises:
            UsageError: It was not added.
        """
        try:
            return self._registry.find(quirk_id)
        except UsageError as error:
            raise UsageError(f"{error}; {_HOW}") from None

    def resolve(self, context: RunContext, *, disable: Sequence[str] = (), force: Sequence[str] = ()) -> Plan:
        """Makes the plan for a run; the environment's switches do not count.

        Raises:
            UsageError: Nothing was added, or a switch names nothing.
        """
        if not self._plugins:
            raise UsageError(f"this registry is empty, because it does not look at what is installed; {_HOW}")
        return self._registry.resolve(context, Switches.gather(call=SwitchNames(disable, force), environ={}))

    def observe(self, plan: Plan, receipt: Any) -> list[str]:
        """Shows plan and receipt to every observer; returns what went wrong in words."""
        return self._registry.observe(plan, receipt)
