"""The tests that every quirk must pass; name the quirk in a class, and pytest runs them.

For example::

    class TestAcmeQuirk(QuirkContract):
        quirk = QUIRK
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from importlib.metadata import EntryPoint
from itertools import zip_longest
from typing import Any, ClassVar

import pytest

from quirks_core.base.errors import QuirksError
from quirks_core.declaration.adjustments import Patch
from quirks_core.declaration.quirk import Quirk
from quirks_core.facts.packages import installed_platform
from quirks_core.plan.loaded import Loaded
from quirks_core.plan.records import RefusedError, State
from quirks_core.plan.resolve import resolve
from quirks_core.plugins import validate
from quirks_core.plugins.finder import PROJECT, Discovered, discover
from quirks_core.plugins.isolated import HEAVY, Seen, look
from quirks_core.plugins.registry import Registry
from quirks_core.reporting.finding import Finding
from quirks_core.source.vllm_source import INSTALLED
from quirks_core.testing.applied import applied, entry_point_value, plugins_of

#: Two hash seeds with different orders of sets of strings.
_HASH_SEEDS = ("1", "2")


class QuirkContract:
    """The tests that every quirk must pass; subclass it and set `quirk`.

    Attributes:
        quirk: The quirk.
        distribution: The distribution of the quirk; if empty, that of its entry point.
    """

    quirk: ClassVar[Quirk]
    distribution: ClassVar[str] = ""

    @pytest.fixture(scope="class")
    @classmethod
    def seen_in_isolation(cls) -> tuple[Seen, ...]:
        """The quirk as loaded in two separate processes with different hash seeds."""
        item = cls._item()
        value = entry_point_value(item.quirk)
        point = EntryPoint(item.quirk.id if ":" in value else item.entry_point, value, PROJECT)
        # Starting a process costs more than loading plugins, so all plugins of an installed distribution share one.
        plugins = tuple(plugin for plugin in discover() if plugin.distribution == item.distribution)
        if point not in [plugin.entry_point for plugin in plugins]:
            plugins = (Discovered(point.name, item.distribution, item.version, point),)
        seen = _look_twice(plugins)[point]
        if error := next((one.error for one in seen if one.error), ""):
            pytest.fail(
                f"{item.quirk.id} cannot be loaded in a process of its own, as every engine process must: {error}",
                pytrace=False,
            )
        return seen

    @pytest.mark.parametrize("law", validate.LAWS, ids=lambda law: law.__name__)
    def test_it_keeps_the_law_of(self, law: Callable[[Loaded], Iterable[Finding]]) -> None:
        """`quirks_core.plugins.validate` describes each; ``quirks validate`` checks the same."""
        item = self._item()
        _accept(law(item))
        if law is validate.patches:
            patches = [patch for patch in item.quirk.adjustments if isinstance(patch, Patch)]
            missing = [why for patch in patches if (why := validate.unpatchable(item.quirk, patch))]
            if missing and len(missing) == len(patches):
                pytest.skip(missing[0])

    def test_what_it_supersedes_exists(self) -> None:
        """Another quirk's id."""
        if self._item().quirk.supersedes:
            known = [item.quirk.id for item in Registry.load().loaded]
            _accept(validate.supersedes(self.quirk.id, self.quirk.supersedes, known))

    def test_importing_and_judging_it_is_pure(self, seen_in_isolation: tuple[Seen, ...]) -> None:
        """No torch, vllm, ray or transformers, and no changed environment."""
        if impure := [what for seen in seen_in_isolation for what in seen.impure]:
            pytest.fail(f"loading and judging {self.quirk.id} {impure[0]}", pytrace=False)

    def test_every_process_makes_the_same_plan(self, seen_in_isolation: tuple[Seen, ...]) -> None:
        """Two processes with different hash seeds get the same declaration and the same plan for each example."""
        one, other = (next(row for row in seen.quirks if row.id == self.quirk.id) for seen in seen_in_isolation)
        for number, (here, there) in enumerate(zip_longest(one.digests, other.digests)):
            if here != there:
                what = f"plan for example {number}" if number else f"declaration of {self.quirk.id}"
                pytest.fail(
                    f"the {what} differs from process to process: sort what comes from a set, and keep times and random "
                    "numbers out of it",
                    pytrace=False,
                )

    def test_undoing_it_restores_everything(self) -> None:
        """Environment, patched attributes and the import system are as before, for every example that it is active in."""
        item, skipped, done = self._item(), "", 0
        quirk = item.quirk
        for number, example in enumerate(quirk.examples, 1):
            (verdict,) = resolve(example.context(), [item]).verdicts
            if verdict.state is not State.ACTIVE:
                continue
            if why := _not_here(quirk, example.platform):
                skipped = f"example {number}: {why}"
                continue
            before, done = _state(quirk), done + 1
            try:
                with applied(quirk, example.context()):
                    _import_targets(quirk)
            except RefusedError:
                pass  # a refused plan must change nothing; this is checked below as well
            except QuirksError as error:
                pytest.fail(f"example {number}: {quirk.id} cannot be put into force: {error}", pytrace=False)
            after = _state(quirk)
            if changed := [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]:
                pytest.fail(f"example {number}: undoing the quirk leaves {', '.join(changed)} changed", pytrace=False)
        if skipped and not done:
            pytest.skip(skipped)

    @classmethod
    def _item(cls) -> Loaded:
        quirk = getattr(cls, "quirk", None)
        if not isinstance(quirk, Quirk):
            pytest.fail(f"{cls.__name__}: set the quirk in the class: quirk = QUIRK", pytrace=False)
        found = None if cls.distribution else next(iter(plugins_of(quirk)), None)
        if found is None:
            return Loaded(quirk, cls.distribution, "0", quirk.id)
        return Loaded(quirk, found.distribution, found.version, found.name)


@lru_cache(maxsize=8)
def _look_twice(plugins: tuple[Discovered, ...]) -> Mapping[EntryPoint, tuple[Seen, ...]]:
    with ThreadPoolExecutor(len(_HASH_SEEDS)) as pool:
        runs = pool.map(lambda seed: look(plugins, hash_seed=seed), _HASH_SEEDS)
        return {plugin.entry_point: tuple(seen) for plugin, *seen in zip(plugins, *runs, strict=True)}


def _accept(problems: Iterable[Finding]) -> None:
    """Fails with all problems at once; notes pass."""
    errors = [f"{problem.subject}: {problem.message}" for problem in problems if problem.level == validate.ERROR]
    if errors:
        pytest.fail("\n".join(errors), pytrace=False)


def _not_here(quirk: Quirk, platform: str | None) -> str:
    """Returns why patches cannot be tried on this installation; empty if they can, or if there are none."""
    patches = [patch for patch in quirk.adjustments if isinstance(patch, Patch)]
    here = installed_platform()
    if patches and platform not in (None, here):
        return f"it is a run on {platform}, and this is {here}"
    return next((why for patch in patches if (why := validate.unpatchable(quirk, patch))), "")


def _import_targets(quirk: Quirk) -> None:
    """Imports the modules of pending patches, except in heavy packages: tests with an engine cover those."""
    for patch in quirk.adjustments:
        module = patch.target.partition(":")[0] if isinstance(patch, Patch) else ""
        if module and module.partition(".")[0] not in HEAVY and INSTALLED.module_source(module) is not None:
            importlib.import_module(module)


def _state(quirk: Quirk) -> dict[str, Any]:
    """Everything that a quirk may change in this process, by name."""
    _import_targets(quirk)  # so that there is a state before
    found: dict[str, Any] = {f"environment variable {name}": value for name, value in os.environ.items()}
    found["sys.meta_path"] = [one for one in sys.meta_path if type(one).__module__ != "quirks_core.apply.imports"]  # ours
    for patch in quirk.adjustments:
        if isinstance(patch, Patch):
            module, _, path = patch.target.partition(":")
            found[patch.target] = _attribute(sys.modules.get(module), path)
    return found


def _attribute(owner: Any, path: str) -> Any:
    """Looks an attribute up without calling descriptors."""
    for name in path.split("."):
        owner = getattr(owner, "__dict__", {}).get(name)
    return owner
