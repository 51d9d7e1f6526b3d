"""What is installed, loaded: quirks, plugins that are broken, and what was not loaded because it is switched off."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pluggy
from packaging.utils import canonicalize_name

from quirks_core.base import json_values
from quirks_core.base.errors import BrokenPluginsError, DeclarationError, UsageError, nearest, shown
from quirks_core.base.text import listed
from quirks_core.configuration.slots import engine_doubt
from quirks_core.declaration.flags import Kind
from quirks_core.declaration.trace import Answer
from quirks_core.facts.context import RunContext
from quirks_core.facts.fact_table import is_known_fact
from quirks_core.plan.loaded import Loaded
from quirks_core.plan.records import Note, NoteKind, Plan, State, Switch, Verdict
from quirks_core.plan.resolve import resolve
from quirks_core.plan.switches import Switches
from quirks_core.plugins import hookspecs
from quirks_core.plugins.finder import PROJECT, Broken, Discovered, Skipped, about, contained, discover, load


@dataclass(frozen=True, slots=True)
class Registry:
    """The loaded quirks, and the plugins that did not load.

    Attributes:
        loaded: Every quirk with where it comes from, sorted by id.
        broken: Every plugin that did not load.
        skipped: Every plugin that was not loaded because its distribution, or the quirk in its file, is switched off.
        strict: What goes wrong in a plugin is an error.
    """

    loaded: tuple[Loaded, ...]
    broken: tuple[Broken, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    strict: bool = False
    _manager: pluggy.PluginManager = field(default_factory=lambda: _new_manager(), repr=False, compare=False)

    @classmethod
    def load(
        cls, found: Iterable[Discovered] | None = None, *, strict: bool = False, switches: Switches | None = None
    ) -> Registry:
        """Loads plugins one by one; a broken one becomes a `Broken` row and the others work.

        Args:
            found: What to load; everything that is installed if None.
            strict: A broken plugin is an error.
            switches: What the user turned off or on; a distribution, or a file's quirk, that is off is not even imported.

        Raises:
            BrokenPluginsError: There are broken plugins, and `strict` holds.
        """
        manager = _new_manager()
        plugins, broken, skipped = load(manager, discover() if found is None else found, switches)
        if broken and strict:
            raise BrokenPluginsError(list(map(str, broken)))
        loaded = [Loaded(one, item.distribution, item.version, item.name) for item, quirks in plugins for one in quirks]
        return cls(tuple(sorted(loaded, key=lambda item: item.quirk.id)), tuple(broken), tuple(skipped), strict, manager)

    def find(self, quirk_id: str) -> Loaded:
        """Returns the quirk of that id.

        Raises:
            DeclarationError: Its plugin is broken; the message says why.
            UsageError: There is none, and the message names the nearest one; or it is switched off.
        """
        for item in self.loaded:
            if item.quirk.id == quirk_id:
                return item
        for broken in self.broken:
            # A plugin that declares several quirks has none of their ids, but they start with its distribution's name.
            owner = canonicalize_name(broken.plugin.distribution)
            if broken.plugin.name == quirk_id or canonicalize_name(quirk_id.partition("/")[0]) == owner:
                raise DeclarationError(f"quirk {quirk_id!r} is not loaded, its {broken}")
        if row := next((row for row in self.skipped if row.plugin.name == quirk_id), None):
            raise UsageError(str(row))
        raise UsageError(f"no quirk {quirk_id!r}{nearest(quirk_id, [item.quirk.id for item in self.loaded])}")

    @property
    def fact_names(self) -> frozenset[str]:
        """The names of the facts that quirks read."""
        return frozenset().union(*(item.quirk.fact_names for item in self.loaded))

    def check_names(self, switches: Switches) -> list[str]:
        """Makes sure that every name of the switches exists; returns warnings about those that cannot be checked.

        Raises:
            UsageError: A switch names nothing.
        """
        not_loaded = [row.plugin for row in self.broken] + [row.plugin for row in self.skipped]
        return switches.check(self.loaded, [(plugin.name, plugin.distribution) for plugin in not_loaded])

    def resolve(self, context: RunContext, switches: Switches | None = None) -> Plan:
        """Makes the plan for a run.

        Raises:
            UsageError: A switch names nothing.
            BrokenPluginsError: Facts of a plugin cannot be used, and `strict` holds.
        """
        switches = switches or Switches()
        notes = [Note(kind=NoteKind.PLUGIN, text=text) for text in (*map(str, self.broken), *_left_out(self.skipped))]
        notes += [Note(kind=NoteKind.SWITCH, text=text) for text in self.check_names(switches)]
        context, troubles = self.with_plugin_facts(context)
        if troubles and self.strict:
            raise BrokenPluginsError(troubles)
        notes += [Note(kind=NoteKind.HOOK, text=text) for text in troubles]
        plan = resolve(context, self.loaded, switches, warnings=[*notes, *_unchecked(context)])
        off = [_switched_off(row) for row in self.skipped if row.is_alone]
        if not off:
            return plan
        return plan.model_copy(update={"verdicts": tuple(sorted((*plan.verdicts, *off), key=lambda verdict: verdict.id))})

    def observe(self, plan: Plan, receipt: object) -> list[str]:
        """Shows plan and receipt to every observer; returns what went wrong in words."""
        _, troubles = self._call_each("quirks_observe", lambda _: None, plan=plan, receipt=receipt)
        return troubles

    def with_plugin_facts(self, context: RunContext) -> tuple[RunContext, list[str]]:
        """Adds the facts of plugins; returns also what went wrong in words."""
        answers, troubles = self._call_each("quirks_facts", _facts, context=context)
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

    def _call_each(self, hook: str, read: Callable[[Any], Any], **arguments: object) -> tuple[list[tuple[str, Any]], list[str]]:
        """Calls a hook implementation by implementation: pluggy's own call would lose all results when one raises.

        Returns:
            Each answer with the name of its plugin, in order of the plugins' names, and what went wrong in words.
        """
        answers: list[tuple[str, Any]] = []
        troubles: list[str] = []
        for impl in sorted(getattr(self._manager.hook, hook).get_hookimpls(), key=lambda impl: str(impl.plugin_name)):
            given = {name: arguments[name] for name in impl.argnames}
            try:
                module = impl.function.__module__
                answer = contained(module, lambda impl=impl, given=given: read(impl.function(**given)))  # type: ignore[misc]
                answers.append((impl.plugin_name, answer))
            except DeclarationError as error:
                troubles.append(f"{hook} of {impl.plugin_name} failed: {error}")
        return answers, troubles


def _left_out(skipped: Iterable[Skipped]) -> Iterator[str]:
    """Yields a sentence for each switch that keeps plugins from being loaded."""
    by_switch: dict[Switch, list[Skipped]] = {}
    for row in skipped:
        if not row.is_alone:  # the quirk has a verdict
            by_switch.setdefault(row.switch, []).append(row)
    for switch, rows in by_switch.items():
        names = listed((row.plugin.name for row in rows), most=3)
        yield str(rows[0]) if len(rows) == 1 else f"{len(rows)} plugins ({names}) were not loaded: {switch}"


def _switched_off(row: Skipped) -> Verdict:
    """The verdict on a quirk that is switched off by its name, from what its source states; its match is not evaluated."""
    item, stated = row.plugin, about(row.plugin)
    return Verdict(
        id=item.name,
        title=stated.title or "",
        flag=stated.flag or "",
        kind=Kind(stated.kind or Kind.WORKAROUND),
        distribution=item.distribution,
        version=item.version,
        verdict=Answer.UNKNOWN,
        state=State.DISABLED,
        because=str(row.switch),
        switch=row.switch,
        trace=(),
    )


def _unchecked(context: RunContext) -> Iterator[Note]:
    """Yields the engine arguments of the user that the installed vLLM cannot confirm."""
    for name in context.unchecked:
        text = f"{name} is not checked: the source of that vLLM is not installed"
        yield Note(kind=NoteKind.UNCHECKED, about=(name,), text=text)
    for name in sorted(context.typed) if context.source_known("vllm") else ():
        if why := engine_doubt(name, context.value(name), context.source):
            yield Note(kind=NoteKind.UNLISTED, about=(name,), text=why)


def _new_manager() -> pluggy.PluginManager:
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    return manager


def _facts(answer: Any) -> Mapping[str, Any]:
    """Reads what `quirks_facts` returned: facts are part of the plan, which is JSON."""
    try:
        facts: dict[str, Any] = json_values.plain(dict(answer))
    except (TypeError, ValueError):
        raise DeclarationError(f"it must return JSON values by name, not {shown(answer)}") from None
    return facts
