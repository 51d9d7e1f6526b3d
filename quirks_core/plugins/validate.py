"""The rules for every quirk, checked on its declaration; ``quirks validate`` and `QuirkContract` use this module."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import ModuleType

from packaging.utils import canonicalize_name
from packaging.version import Version

from quirks_core.base.errors import QuirksError, nearest, words
from quirks_core.configuration.slots import SLOTS, engine_doubt, engine_problem, slot_around
from quirks_core.declaration.adjustments import Patch, Refuse, Require, same
from quirks_core.declaration.encoding import encode
from quirks_core.declaration.examples import Example
from quirks_core.declaration.flags import Kind
from quirks_core.declaration.quirk import Quirk
from quirks_core.declaration.trace import Answer
from quirks_core.facts.context import Installation
from quirks_core.facts.fact_table import FACTS, is_known_fact
from quirks_core.facts.packages import installed_versions
from quirks_core.plan.drift import drift_of
from quirks_core.plan.evaluate import affected, evaluate_one, matches
from quirks_core.plan.loaded import Loaded
from quirks_core.plan.records import NoteKind
from quirks_core.plan.resolve import resolve
from quirks_core.plan.switches import Switches
from quirks_core.plugins.finder import Discovered, discover
from quirks_core.plugins.registry import Registry
from quirks_core.reporting.finding import Finding
from quirks_core.source.vllm_source import INSTALLED

#: The oldest supported versions. (The worker starts engines from 0.26 on; a trainer with its own engine can use older ones.)
#: Raising one expires the quirks for versions below it, and a test then requires their removal.
SUPPORTED_FLOOR: Mapping[str, str] = {"vllm": "0.9.0"}


#: The levels of findings on a declaration: what is worth knowing, and what has to be mended.
NOTE, ERROR = "note", "error"


def problems(item: Loaded) -> list[Finding]:
    """Checks one quirk against every rule. If the quirk's code raises during a check, that is a problem of the quirk."""
    found: list[Finding] = []
    for law in LAWS:
        try:
            found += law(item)
        except Exception as error:  # a third party's match or value may raise anything
            found.append(_error(item, f"its {law.__name__.replace('_', ' ')} cannot be checked: {words(error)}"))
    return found


def metadata(item: Loaded) -> Iterator[Finding]:
    """References, docstring and evidence exist; an id with a prefix names its distribution."""
    quirk, text = item.quirk, documentation(item.quirk)
    for reference in quirk.references:
        if not reference.url.startswith("https://"):
            yield _error(item, f"reference {reference.url!r} is no https:// address")
    if len(text.split("\n\n")) < 2:
        yield _error(
            item,
            "the docstring of its module says too little: after one line on the problem, say what happens and when it can go",
        )
    if not quirk.evidence and not quirk.paired_runs and "Evidence:" not in text:
        yield _error(
            item,
            "it has no evidence: write an 'async def scenario(lab)' beside it, give a probe, or say in the docstring, after "
            "'Evidence:', why there is none",
        )
    prefix, slash, _ = quirk.id.partition("/")
    if slash and item.distribution and canonicalize_name(prefix) != canonicalize_name(item.distribution):
        yield _error(item, f"its id begins with {prefix!r}, but it belongs to {item.distribution!r}")
    if not slash and item.distribution and not item.is_built_in:
        name = f"{canonicalize_name(item.distribution)}/{quirk.id}"
        yield _finding(NOTE, item, f"an id of a third party is safe from others as {name!r}")


def examples(item: Loaded) -> Iterator[Finding]:
    """It has an example of every answer that it can give, and each example gets its answer and its outcome."""
    quirk = item.quirk
    given = {example.answer for example in quirk.examples}
    wanted = [Answer.YES, Answer.NO, *([Answer.UNKNOWN] if quirk.can_be_unknown else [])]
    for answer in wanted:
        if answer not in given:
            yield _error(item, f"no example of a run that gets {answer}: add {answer}(…) to its examples")
    for number, example in enumerate(quirk.examples, 1):
        verdict = evaluate_one(example.context(), item, Switches()).verdict
        if verdict.verdict is not example.answer:
            yield _error(
                item,
                f"example {number} must get {example.answer} and gets {verdict.verdict}: {verdict.because}; "
                "mend the example or the match",
            )
        elif example.states_outcome:
            for wrong in _wrong_outcome(example, item):
                yield _error(item, f"example {number} {wrong}; mend the example or the adjustments")


def _wrong_outcome(example: Example, item: Loaded) -> Iterator[str]:
    """Yields in which ways the outcome of a run is not the one that its example states."""
    plan = resolve(example.context(), [item])
    if not same(plan.changes, example.gives or {}):
        yield f"must give {example.gives or 'no slot a value'} and gives {plan.changes or 'none'}"
    patched = sorted(patch.target.partition(":")[2] for patch in plan.patches)
    if patched != sorted(example.patches):
        yield f"must patch {', '.join(example.patches) or 'nothing'} and patches {', '.join(patched) or 'nothing'}"
    advice = [note.text.removeprefix(f"{item.quirk.id}: ") for note in plan.warnings if note.kind is NoteKind.ADVICE]
    refusals = ["; ".join(filter(None, (why.slot, why.reason, why.remedy))) for why in plan.refusals]
    for verb, wanted, found in (("refuse", example.refuses, refusals), ("advise", example.advises, advice)):
        text = "\n".join(found)
        missing = [part for part in wanted if part not in text]
        if missing or (found and not wanted):
            yield f"must {verb} {', '.join(map(repr, missing)) or 'nothing'} and gets {text or 'nothing'}"


def slots(item: Loaded) -> Iterator[Finding]:
    """In every example its values fit their slots and do not conflict, and the installed vLLM takes them."""
    found: dict[str, int] = {}
    unlisted: dict[str, None] = {}
    for number, example in enumerate(item.quirk.examples, 1):
        context = example.context()
        here = {"packages": context.packages | installed_versions(), "assumed": frozenset[str]()}
        for run in (context, context.model_copy(update=here)) if example.answer is Answer.YES else ():
            plan = resolve(run, [item])
            for refusal in plan.refusals:
                if refusal.kind in ("broken", "conflict"):
                    found.setdefault(refusal.reason, number)
            unlisted |= dict.fromkeys(filter(None, (engine_doubt(*change) for change in plan.changes.items())))
    for reason, number in found.items():
        yield _error(item, f"example {number}: what it asks for cannot be used: {reason}")
    for doubt in unlisted:
        yield _finding(NOTE, item, doubt)


def facts(item: Loaded) -> Iterator[Finding]:
    """Every fact that it reads is one that a run can have."""
    for name in sorted(item.quirk.fact_names):
        if is_known_fact(name):
            slot = slot_around(name)
            if slot not in SLOTS and slot not in FACTS and (why := engine_problem(slot)):
                yield _finding(NOTE, item, f"{why}; it is only found on other versions")
        elif _owner(name) is None:
            is_own = bool(item.distribution) and name.startswith(f"{item.distribution}.")
            hint = f"; {item.distribution} is not installed" if is_own else nearest(name, (*FACTS, *SLOTS))
            yield _error(item, f"no run has a fact {name!r}{hint}")


def plugin_facts(item: Loaded) -> Iterator[Finding]:
    """Its plugin's facts can be computed in each example, and every fact of a plugin that it reads is given in one."""
    read = {name: owner for name in item.quirk.fact_names if not is_known_fact(name) and (owner := _owner(name))}
    if item.is_built_in and not read:
        return
    found = discover()
    own = [one for one in found if (one.distribution, one.name) == (item.distribution, item.entry_point)]
    given, troubles = _given(item.quirk, own)
    if read.keys() - given:  # another plugin may give it; only now, because loading that one may fail
        given |= _given(item.quirk, [one for one in found if one.distribution in read.values()])[0]
    for trouble in troubles:
        yield _error(item, trouble)
    for name in sorted(read.keys() - given):
        hint = nearest(name, given) or f"; it gives {', '.join(sorted(given)) or 'none'}"
        yield _error(item, f"quirks_facts of {read[name]} gives no fact {name!r} in any example{hint}")


def _given(quirk: Quirk, plugins: Iterable[Discovered]) -> tuple[set[str], list[str]]:
    """The names of the facts that plugins give in a quirk's examples, and what goes wrong there."""
    registry = Registry.load(plugins)
    found = [registry.with_plugin_facts(one.context().model_copy(update={"extra": {}})) for one in quirk.examples]
    given = {name for context, _ in found for name in context.extra}
    return given, list(dict.fromkeys(trouble for _, troubles in found for trouble in troubles))


def reasons(item: Loaded) -> Iterator[Finding]:
    """A refusal has a reason and a remedy, and a patch a reason."""
    for adjustment in item.quirk.adjustments:
        if isinstance(adjustment, Refuse):
            for name in ("reason", "remedy"):
                if not getattr(adjustment, name).strip():
                    yield _error(item, f"a Refuse has no {name}: say {'why' if name == 'reason' else 'what to do instead'}")
        if isinstance(adjustment, Patch) and not adjustment.reason and "patch" not in documentation(item.quirk).lower():
            yield _error(
                item,
                f"the patch of {adjustment.target} does not say why: give reason=, or say in the docstring why no default, "
                "requirement or environment variable helps",
            )


def kinds(item: Loaded) -> Iterator[Finding]:
    """A rule never patches, and a feature leaves the user every value: what the user sets switches it off."""
    quirk = item.quirk
    for adjustment in quirk.adjustments:
        if quirk.kind is Kind.RULE and isinstance(adjustment, Patch):
            yield _error(item, f"a rule never patches ({adjustment.target}): what cures a defect is a workaround")
        elif quirk.kind is Kind.FEATURE and isinstance(adjustment, Require):
            yield _error(item, f"a feature never requires a value ({adjustment.slot}): take Default, over which users win")


def data(item: Loaded) -> Iterator[Finding]:
    """It is data: it can be written as JSON."""
    try:
        json.dumps(encode(item.quirk), allow_nan=False)
    except (QuirksError, RecursionError, TypeError, ValueError) as error:
        yield _error(item, f"it cannot be written as JSON: {error}; a value may be data or a function")


def expiry(item: Loaded) -> Iterator[Finding]:
    """Some supported version still needs it."""
    if why := expired(item.quirk):
        yield _error(item, f"delete me: {why}")


def expired(quirk: Quirk) -> str:
    """Returns why no supported version is affected, which depends on versions and not on dates; empty if one is."""
    for package in dict.fromkeys(ranged.package for ranged in quirk.affected):
        floor = SUPPORTED_FLOOR.get(package)
        ranges = [ranged for ranged in quirk.affected if ranged.package == package]
        ends = [ranged.bounds[1] for ranged in ranges]
        if floor is not None and all(end is not None and end <= Version(floor) for end in ends):
            last = " and ".join(str(ranged.fixed) for ranged in ranges)
            return f"{package} is fixed in {last}, and nothing below {floor} is supported: delete this quirk"
    return ""


def patches(item: Loaded) -> Iterator[Finding]:
    """The installed source of what it patches is one that the patch was written against."""
    for patch in item.quirk.adjustments:
        if not isinstance(patch, Patch):
            continue
        module = patch.source.partition(":")[0]
        if INSTALLED.fingerprint(patch.source) is None and INSTALLED.module_source(module.partition(".")[0]) is not None:
            yield _error(item, f"the patch of {patch.target} comes from {INSTALLED.missing(patch.source)}")
        if why := unpatchable(item.quirk, patch):
            yield _finding(NOTE, item, f"the patch of {patch.target} is not checked: {why}")
        elif problem := drift_of(patch, item.quirk, INSTALLED):
            yield _error(
                item,
                f"{problem}\nLook at what changed, then add what 'quirks fingerprint {patch.target}' prints to expects, or "
                "bound the quirk's versions",
            )


#: All rules that can be checked on a single declaration.
LAWS: tuple[Callable[[Loaded], Iterable[Finding]], ...] = (
    metadata,
    examples,
    facts,
    plugin_facts,
    slots,
    reasons,
    kinds,
    data,
    expiry,
    patches,
)


def supersedes(quirk_id: str, replaced: Iterable[str], known: Collection[str]) -> Iterator[Finding]:
    """Every quirk that it replaces exists."""
    for name in replaced:
        if name not in known:
            yield Finding(ERROR, quirk_id, f"it supersedes {name!r}, which does not exist{nearest(name, known)}")


def documentation(quirk: Quirk) -> str:
    """Returns the docstring of the module that declares a quirk; empty if there is none."""
    module = declaring_module(quirk)
    return (inspect.getdoc(module) or "") if module else ""


def declaring_module(quirk: Quirk) -> ModuleType | None:
    """Returns the imported module that declares a quirk."""
    return sys.modules.get(quirk.location.module)


def unpatchable(quirk: Quirk, patch: Patch) -> str:
    """Returns why no run on this installation can need a patch; empty if one can."""
    package = patch.target.partition(":")[0].partition(".")[0]
    if INSTALLED.module_source(package) is None:
        return f"{package} is not installed"
    here = Installation()
    for trace in (matches(quirk.match, here), affected(here, quirk)):
        if trace.answer is Answer.NO:
            return f"no run on this installation needs it ({trace.decisive})"
    return ""


def _owner(fact: str) -> str | None:
    """The installed distribution whose facts begin like this one; None if there is none."""
    return next((plugin.distribution for plugin in discover() if fact.startswith(f"{plugin.distribution}.")), None)


def _error(item: Loaded, message: str) -> Finding:
    return _finding(ERROR, item, message)


def _finding(level: str, item: Loaded, message: str) -> Finding:
    return Finding(level, item.quirk.id, message, section=item.distribution)
