"""A page for each quirk."""

from __future__ import annotations

from dataclasses import replace

from declared import ENGINES, LEGEND, acts_alone, models, sign, stage
from page_text import link, page, plain, prose, table

from quirks_core.cli.showing import describe
from quirks_core.declaration.examples import Example
from quirks_core.declaration.flags import Kind
from quirks_core.declaration.quirk import Quirk
from quirks_core.declaration.trace import Answer
from quirks_core.plan.loaded import Loaded
from quirks_core.plan.records import NoteKind
from quirks_core.plan.resolve import resolve
from worker.lab.kit import evidence_table as evidence


def quirk_page(item: Loaded) -> str:
    """Returns the page of a quirk."""
    quirk, record = item.quirk, describe(item)
    fields = [
        ["kind", record["kind"]],
        ["flag", f"`{quirk.flag}`"],
        ["without it", f"`{quirk.severity}`"],
        ["models", ", ".join(models(quirk)) or "any"],
        ["concerns", plain(record["match"])],
        ["affected versions" if quirk.kind is Kind.WORKAROUND else "versions", record["affected"]],
        ["status", f"{stage(item)} on vLLM {ENGINES[-1]}"],
        ["put in force by", "`MODEL_QUIRKS=on`" if quirk.kind is Kind.WORKAROUND and acts_alone(item) else ""],
        ["costs", record["cost"]],
        ["supersedes", ", ".join(f"`{name}`" for name in quirk.supersedes)],
        ["added in", record["since"]],
        ["distribution", item.distribution],
        ["declared in", f"[{quirk.location.file}](../../{quirk.location.file})"],
    ]
    return page(
        quirk.id,
        f"**{prose(quirk.title)}.**",
        table(("field", "value"), [row for row in fields if row[1]]),
        prose(record["documentation"].strip()),
        "## Versions",
        table([f"vLLM {version}" for version in ENGINES], [[sign(quirk, version) for version in ENGINES]]),
        LEGEND,
        "## What this changes",
        "\n".join(f"- {prose(text)}" for text in record["adjustments"]),
        *_evidence(quirk),
        *_examples(item),
        "## References",
        "\n".join(f"- {reference.type}: {link(reference)}" for reference in quirk.references),
        *_asked_for(quirk),
        "## How to switch it off",
        _off(quirk),
    )


def _evidence(quirk: Quirk) -> list[str]:
    lines = [f"- paired run: `quirks prove {quirk.id}` runs `{run.scenario}`" for run in quirk.paired_runs]
    lines += [f"- static probe: `{probe}`" for probe in quirk.probes]
    found = [item for item in evidence.proved(quirk) if item.decided is not None]
    for item in found:
        version = f"vLLM {item.vllm or '?'}"
        seen = f"on {item.place}, {version}" if item.by == "paired run" else f"in the source of {version} for {item.platform}"
        doubt = f"in doubt, {item.doubt}" if item.doubt else ""
        lines.append("; ".join(filter(None, (f"- {item.conclusion} {seen}, by {item.by}", prose(item.seen), prose(doubt)))))
    return ["## Evidence", "\n".join(lines), "Every quirk: [evidence](../results/evidence.md)."] if lines else []


def _examples(item: Loaded) -> list[str]:
    examples = item.quirk.examples
    if not examples:
        return []
    rows = [[str(one.answer), facts_of(one), outcome(item, one)] for one in examples]
    return ["## Examples", table(("concerns the run", "the run", "what comes of it"), rows)]


def outcome(item: Loaded, one: Example) -> str:
    """The outcome that an example states; else what a plan makes of it."""
    return _outcome(one) or _comes_of(item, one)


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


def facts_of(one: Example) -> str:
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
            f"`{quirk.flag}` switches off every quirk of that flag. All the ways: [switches](../production.md#switches).",
        ]
    )
