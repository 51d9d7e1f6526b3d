"""The pages written from code and records: catalogue, slots, command line, evidence (committed), and a page for each quirk.

``python docs/_ext/pages.py`` writes the committed pages; ``docs/conf.py`` writes those of the quirks while the site is built.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import evidence_page

from quirks_core.base.errors import DeclarationError
from quirks_core.cli.listing import counted
from quirks_core.cli.main import make_parser
from quirks_core.cli.showing import describe
from quirks_core.configuration.slots import SLOTS, slot_named
from quirks_core.declaration import evidence
from quirks_core.declaration.examples import Example
from quirks_core.declaration.flags import BUILT_IN, Kind, ModelFlag
from quirks_core.declaration.match import Condition, Match
from quirks_core.declaration.quirk import Quirk, Reference
from quirks_core.declaration.trace import Answer
from quirks_core.facts.fact_table import FACTS, FAMILIES, FactSpec
from quirks_core.facts.unknown import UNKNOWN
from quirks_core.plan.loaded import Loaded
from quirks_core.plan.records import NoteKind
from quirks_core.plan.resolve import resolve
from quirks_core.plan.summary import Summary
from quirks_core.plugins.finder import discover
from quirks_core.plugins.lifecycle import lifecycle
from quirks_core.plugins.registry import Registry

#: The versions of vLLM that the catalogue speaks of, oldest first: some below the floor, where many rules come from, and the
#: supported ones. A fixed list, so that the pages are the same on every machine.
ENGINES = ("0.9.0", "0.11.0", "0.26.0", "0.30.0", "0.32.0", "0.33.0")

#: The documentation's folder.
FOLDER = Path(__file__).resolve().parents[1]
#: The first line of every page.
_NOTE = "<!-- Written by `make docs`; edit the declarations, not this page. -->"

_SIGNS = {Answer.YES: "●", Answer.NO: "○", Answer.UNKNOWN: "?"}
_UNEXAMINED = "·"
_LEGEND = (
    f"● it concerns some run on that version, ○ none, {_UNEXAMINED} not examined, ? it depends on another package. The newest "
    f"vLLM whose source was read is {ENGINES[-1]}."
)
_HELP_WIDTH = 100
#: What a range says of versions that were not examined; too long for a table.
_KNOWN = re.compile(r"examined from ([\d.]+) on")
_THREAD = re.compile(r"(?<![\w`/\[.-])([\w.-]+/[\w.-]+)#(\d+)")


def committed_pages() -> dict[str, str]:
    """Returns the text of the committed pages, by name."""
    loaded = _built_in()
    return {
        "catalogue.md": _catalogue(loaded),
        "cli.md": _command_line(make_parser()),
        "results/evidence.md": _page("Evidence", *evidence_page.blocks(loaded)),
        "slots.md": _slots(),
    }


def quirk_pages() -> dict[str, str]:
    """Returns the text of the quirks' pages, by name."""
    return {f"{item.quirk.id}.md": _quirk(item) for item in _built_in()}


def write(pages: Mapping[str, str], folder: Path = FOLDER) -> list[Path]:
    """Writes the pages that are missing or differ; returns their files."""
    folder.mkdir(exist_ok=True)
    stale = [name for name, text in pages.items() if not (file := folder / name).is_file() or file.read_text("utf-8") != text]
    for name in stale:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(pages[name], encoding="utf-8")
    return [folder / name for name in stale]


def _built_in() -> Sequence[Loaded]:
    registry = Registry.load([item for item in discover() if item.distribution == BUILT_IN])
    if registry.broken:
        raise DeclarationError("\n".join(map(str, registry.broken)))
    return registry.loaded


class _Engine:
    """The facts that hold for every run on one version of vLLM; all others are unknown."""

    def __init__(self, version: str) -> None:
        self.version = version

    def fact(self, name: str) -> object:
        """Returns the version of vLLM."""
        return self.version if name == "packages.vllm" else UNKNOWN


def affects(quirk: Quirk, version: str) -> Answer:
    """Returns whether a quirk can concern runs on a version of vLLM, by its declaration alone.

    Returns:
        No if no run on that version is affected; unknown if that depends on another package's version.
    """
    if quirk.match.trace(_Engine(version)).answer is Answer.NO:
        return Answer.NO
    answers = []
    for package in {affected.package for affected in quirk.affected}:
        ranges = [affected for affected in quirk.affected if affected.package == package]
        found = {affected.answer(version if package == "vllm" else None) for affected in ranges}
        answers.append(next(answer for answer in (Answer.YES, Answer.UNKNOWN, Answer.NO) if answer in found))
    return next((answer for answer in (Answer.NO, Answer.UNKNOWN) if answer in answers), Answer.YES)


def _sign(quirk: Quirk, version: str) -> str:
    return _SIGNS[affects(quirk, version)] if quirk.is_examined("vllm", version) else _UNEXAMINED


def acts_alone(item: Loaded) -> bool:
    """Returns whether a quirk does more than advise in some run that engine arguments and variables alone describe.

    The runs are those of its examples in which the user sets engine arguments and environment variables alone: another program
    starts the engine, with ``MODEL_QUIRKS=on``, and says nothing of its trainer.
    """
    concerned = (one for one in item.quirk.examples if one.answer is Answer.YES)
    of_engines = (one for one in concerned if all(slot_named(slot).is_enforced for slot in (*one.settings, *one.defaults)))
    plans = (resolve(one.context(), [item]) for one in of_engines)
    return any(plan.refusals or Summary.of(plan).in_force for plan in plans)


def models(quirk: Quirk) -> list[str]:
    """Names the models that a quirk can concern."""
    if types := quirk.match.model_types():
        return sorted(types)
    found = []
    for condition in _conditions(quirk.match):
        match condition.name:
            case "model.is_moe":
                found.append("any MoE" if condition.operator == "is_true" else "any dense")
            case "model.is_multimodal":
                found.append("any multimodal")
            case "model.name":
                found.append(f"any named {condition.operand}")
    return found or ["any"]


def _conditions(match: Match) -> Iterator[Condition]:
    if isinstance(match, Condition):
        yield match
    for part in getattr(match, "parts", (getattr(match, "part", None),)):
        if part is not None:
            yield from _conditions(part)


def _stage(item: Loaded) -> str:
    """A quirk's stage on the newest engine, by its declaration alone."""
    return lifecycle(item, {"vllm": ENGINES[-1]}).stage


def _shown_by(quirk: Quirk) -> str:
    """On which platforms a paired run has shown that a quirk is needed, or holds; else what there is."""
    shown = [item for item in evidence.proved(quirk) if item.decided]
    if runs := sorted({item.place for item in shown if item.by == "paired run"}):
        return ", ".join(f"run on {platform}" for platform in runs)
    return "source" if quirk.probes else "run to come" if quirk.paired_runs else "declaration"


def _page(title: str, *blocks: str) -> str:
    return "\n\n".join([_NOTE, f"# {title}", *filter(None, blocks)]) + "\n"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [headings, ["---"] * len(headings), *([text.replace("|", "\\|") for text in row] for row in rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _catalogue(loaded: Sequence[Loaded]) -> str:
    headings = ["quirk", "kind", "model", "flag", "severity", "affected", "status", "evidence", *ENGINES, "links"]
    rows = []
    for item in loaded:
        quirk = item.quirk
        record = describe(item)
        rows.append(
            [
                f"[{quirk.id}](../{quirk.location.file})<br>{_prose(quirk.title)}",
                record["kind"],
                ", ".join(models(quirk)),
                record["flag"],
                record["severity"],
                _KNOWN.sub(r"before \1 not examined", record["affected"]),
                _stage(item),
                _shown_by(quirk),
                *(_sign(quirk, version) for version in ENGINES),
                "<br>".join(f"[{reference.type}]({reference.url})" for reference in quirk.references),
            ]
        )
    workarounds = [item for item in loaded if item.quirk.kind is Kind.WORKAROUND]
    advising = [f"`{item.quirk.id}`" for item in workarounds if not acts_alone(item)]
    return _page(
        "Catalogue of built-in quirks",
        f"A row for every quirk: {counted(item.quirk.kind for item in loaded)}. A *workaround* cures a defect until evidence "
        "retires it, a *rule* refuses, advises or sets what a limit or definition of vLLM or a trainer asks for, and a "
        "*feature* is for speed, or is a default of our own; the [glossary](glossary.md) explains the other words.",
        f"{len(workarounds) - len(advising)} of the {len(workarounds)} workarounds act under `MODEL_QUIRKS=on` in an engine "
        "that another program starts, without help of its trainer: by a setting, a patch or a refusal. "
        f"{', '.join(advising)} only advise. `raw-weight-load` is a patch that only warns.",
        f"The columns with numbers are versions of vLLM: {_LEGEND} "
        f"*Status* is that of vLLM {ENGINES[-1]}. *Evidence* says what supports the quirk: a paired run on a "
        "platform, the source by a static probe, or the declaration alone. `quirks plan --vllm A,B` answers the same for your "
        "model and your versions.",
        f'<div id="catalogue">\n\n{_table(headings, rows)}\n\n</div>',
    )


def _slots() -> str:
    rows = []
    for slot in SLOTS.values():
        default = "left open" if slot.default is None else f"`{slot.default}`"
        rows.append([f"`{slot.name}`", slot.takes, default, _prose(slot.help)])
    return _page(
        "Slots, facts and flags",
        "A slot is what a quirk can adjust, under the name that a user types in a configuration. The fields of the "
        "configuration's sections are slots; two families are open. An unknown name is an error that says the nearest one.",
        "## Open families",
        "- `engine.<argument>`: every engine argument of the installed vLLM, with its type and default as its source gives "
        "them (`quirks show engine.block_size`). Under `--assume` of another version a name is accepted, and the plan says "
        "that nobody checked it. In a configuration such an argument is typed in the section `engine`; `engine.vllm_kwargs` is "
        "an alias for that section.\n"
        "- `env.<NAME>`: every environment variable, except those that look like secrets (`*KEY`, `*TOKEN`, `*SECRET`, "
        "`*PASSWORD`, `*CREDENTIALS`), those that choose the code that runs (`PATH`, `PYTHON*`, `LD_*`, `DYLD_*`, `BASH_ENV`, "
        "`ENV`, `VLLM_PLUGINS`) and our own `MODEL_QUIRKS_*`.",
        "## What can be asked of a slot",
        "`Default` and `Require` take one of these. Several quirks on one slot are merged by the same table; what cannot be at "
        "once is a conflict that names everybody ([merge laws](writing-a-quirk.md#merge-laws)).",
        _table(
            ("notation", "the slot's value", "several quirks", "slots"),
            (
                ("`Require(slot, value)`", "equals the value", "equal values are credited to all", "any"),
                ("`Require(slot, {…})`", "has these keys", "key by key", "mappings"),
                ("`Require(slot, at_most=n)`", "is n at most", "the smallest bound", "numbers"),
                ("`Require(slot, at_least=n)`", "is n at least", "the largest bound", "numbers"),
                ("`Require(slot, one_of=[…])`", "is one of these; the first if the slot is open", "what all allow", "any"),
                ("`Require(slot, includes=[…])`", "has these members", "all members", "lists"),
            ),
        ),
        "## Slots of the configuration",
        _table(("slot", "takes", "default", "what it sets"), rows),
        "## Facts",
        "What a match can ask for, by name; slots are facts, too (`setting(slot)`). A fact that cannot be told makes a "
        "condition unknown, and the plan says so.",
        _table(("fact", "what it says", "unknown if"), [_fact(spec) for spec in (*FACTS.values(), *FAMILIES)]),
        "## Flags",
        "A flag is the behaviour that a quirk belongs to; a user can switch off a whole flag. A third party's own flag is "
        "written `distribution:name`.",
        ", ".join(f"`{flag}`" for flag in ModelFlag) + ".",
    )


def _fact(spec: FactSpec) -> list[str]:
    return [f"`{spec.name}{'…' if spec.name.endswith('.') else ''}`", spec.help, spec.unknown]


def _command_line(parser: argparse.ArgumentParser) -> str:
    blocks = [f"```text\n{_help(parser)}\n```"]
    for name, verb in _verbs(parser):
        blocks += [f"## quirks {name}", f"```text\n{_help(verb)}\n```"]
    return _page(
        "Command line",
        "What `--help` prints. Exit codes and switches are described in [operations](operations.md).",
        *blocks,
    )


def _verbs(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def _help(parser: argparse.ArgumentParser) -> str:
    """Formats the help at a fixed width: argparse takes the terminal's."""
    parser.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=_HELP_WIDTH)
    return parser.format_help().strip()


def _quirk(item: Loaded) -> str:
    quirk, record = item.quirk, describe(item)
    fields = [
        ["kind", record["kind"]],
        ["flag", f"`{quirk.flag}`"],
        ["without it", f"`{quirk.severity}`"],
        ["models", ", ".join(models(quirk))],
        ["concerns", _prose(record["match"])],
        ["affected versions" if quirk.kind is Kind.WORKAROUND else "versions", record["affected"]],
        ["status", f"{_stage(item)} on vLLM {ENGINES[-1]}"],
        ["costs", record["cost"]],
        ["supersedes", ", ".join(f"`{name}`" for name in quirk.supersedes)],
        ["added in", record["since"]],
        ["distribution", item.distribution],
        ["declared in", f"[{quirk.location.file}](../../{quirk.location.file})"],
    ]
    return _page(
        quirk.id,
        f"**{_prose(quirk.title)}.**",
        _table(("field", "value"), [row for row in fields if row[1]]),
        _prose(record["documentation"].strip()),
        "## Versions",
        _table([f"vLLM {version}" for version in ENGINES], [[_sign(quirk, version) for version in ENGINES]]),
        _LEGEND,
        "## What this changes",
        "\n".join(f"- {_prose(text)}" for text in record["adjustments"]),
        *_evidence(quirk),
        *_examples(item),
        "## References",
        "\n".join(f"- {reference.type}: {_link(reference)}" for reference in quirk.references),
        *_asked_for(quirk),
        "## How to switch it off",
        _off(quirk),
    )


def _evidence(quirk: Quirk) -> list[str]:
    lines = [f"- paired run: `quirks prove {quirk.id}` runs `{run.scenario}`" for run in quirk.paired_runs]
    lines += [f"- static probe: `{probe}`" for probe in quirk.probes]
    found = [item for item in evidence.proved(quirk) if item.decided is not None]
    for item in found:
        version = f"vLLM {item.versions.get('vllm', '?')}"
        seen = f"on {item.place}, {version}" if item.by == "paired run" else f"in the source of {version} for {item.platform}"
        doubt = f"in doubt, {item.doubt}" if item.doubt else ""
        lines.append("; ".join(filter(None, (f"- {item.conclusion} {seen}, by {item.by}", _prose(item.seen), _prose(doubt)))))
    return ["## Evidence", "\n".join(lines), "Every quirk: [evidence](../results/evidence.md)."] if lines else []


def _examples(item: Loaded) -> list[str]:
    examples = item.quirk.examples
    if not examples:
        return []
    rows = [[str(one.answer), _facts(one), _outcome(one) or _comes_of(item, one)] for one in examples]
    return ["## Examples", _table(("concerns the run", "the run", "what comes of it"), rows)]


def _comes_of(item: Loaded, one: Example) -> str:
    """What a plan makes of an example that does not say."""
    if one.answer is not Answer.YES:
        return ""
    plan = resolve(one.context(), [item])
    done = replace(
        one,
        gives=plan.changes,
        patches=tuple(patch.target.rpartition(":")[2] for patch in plan.patches),
        refuses=tuple(refusal.reason for refusal in plan.refusals),
        advises=tuple(note.text for note in plan.warnings if note.kind is NoteKind.ADVICE),
    )
    return _outcome(done) or "what the user set stays"


def _facts(one: Example) -> str:
    """The facts of an example's run, by name."""
    facts = {**{f"model.config.{name}": value for name, value in one.config.items()}, **one.packages, **one.defaults}
    facts |= {**one.settings, **{f"env.{name}": text for name, text in one.environment.items()}, **one.extra}
    facts |= {"platform": one.platform, "cpu": one.cpu, "recipe": one.recipe, "purpose": one.purpose}
    return ", ".join(f"`{name} = {value}`" for name, value in facts.items() if value is not None) or "nothing is known"


def _outcome(one: Example) -> str:
    """The outcome that an example states."""
    done = [f"`{slot} = {value}`" for slot, value in (one.gives or {}).items()] + [
        f"`{name}` is patched" for name in one.patches
    ]
    return "; ".join([*done, *(["the run is refused"] if one.refuses else []), *(["the plan advises"] if one.advises else [])])


def _asked_for(quirk: Quirk) -> list[str]:
    """How a feature of our worker is asked for elsewhere."""
    if quirk.kind is not Kind.FEATURE or "engine.generate_from_dummy" not in quirk.match.facts():
        return []
    text = f"Our worker has it on. An engine that another program starts has it if `MODEL_QUIRKS_FORCE={quirk.id}` asks for it."
    return ["## Where it is on", text]


def _off(quirk: Quirk) -> str:
    return "\n".join(
        [
            "| where | how |",
            "|---|---|",
            f"| command line | `--disable {quirk.id}` |",
            f"| environment | `MODEL_QUIRKS_DISABLE={quirk.id}` |",
            f"| configuration | `quirks: {{disable: [{quirk.id}]}}` |",
            f'| Python | `VllmAsyncGenerationWorker(config, disable=["{quirk.id}"])` |',
            "",
            f"`{quirk.flag}` switches off every quirk of that flag. All the ways: [operations](../operations.md#switches).",
        ]
    )


def _link(reference: Reference) -> str:
    """A link that reads ``owner/repo#n`` where it is a GitHub thread."""
    thread = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+)/(?:issues|pull)/(\d+)", reference.url)
    return f"[{'#'.join(thread.groups()) if thread else reference.url}]({reference.url})"


def _prose(text: str) -> str:
    """Makes Markdown of a docstring: threads become links, and double back-quotes single ones."""
    text = text.replace("``", "`")
    return _THREAD.sub(r"[\1#\2](https://github.com/\1/issues/\2)", text)


if __name__ == "__main__":
    for written in write(committed_pages()):
        print(f"wrote {written}")
