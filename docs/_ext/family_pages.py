"""A page for each family of models: what applies to its runs, as the planner answers; and a table of all by version of vLLM."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from declared import ENGINES, LEGEND, affects, proven, sign
from page_text import page, prose, table
from quirk_pages import facts_of, outcome

from quirks_core.configuration.config import Purpose
from quirks_core.declaration.examples import Example
from quirks_core.declaration.flags import Kind
from quirks_core.declaration.quirk import Quirk
from quirks_core.declaration.trace import Answer
from quirks_core.facts.model import ModelFacts
from quirks_core.facts.trainers import TRAINERS
from quirks_core.plan.loaded import Loaded
from quirks_core.plan.records import Plan, State
from quirks_core.plan.resolve import resolve

_ROOT = Path(__file__).resolve().parents[2]
_NEWEST = ENGINES[-1]
#: The supported releases of `ENGINES`.
_SUPPORTED = ENGINES[2:]
#: The packages of the runs that are planned: those of the newest proofs on GPUs.
_PACKAGES = {"vllm": _NEWEST, "torch": "2.14.0", "transformers": "5.17.0"}
#: The runs: their settings, as a trainer or a user types them, and the purpose.
_TRAINED = {"refit.scope": "parameters", "refit.clear_cache": True, "sampling.temperature": 1.0}
_RUNS: Mapping[str, tuple[Mapping[str, Any], Purpose]] = {
    "rollout": (_TRAINED, "rollout"),
    "from dummy weights": ({**_TRAINED, "engine.load_format": "dummy"}, "rollout"),
    "LoRA": ({**_TRAINED, "engine.enable_lora": True}, "rollout"),
    "serving": ({}, "serve"),
}
#: The endings by which the types of one family differ.
_PART = re.compile(r"_(text|unified|mm_model|model)$")
_IN_CAPITALS = {"moe": "MoE", "vl": "VL", "oss": "OSS"}


@dataclass(frozen=True)
class Family:
    """Models that vLLM builds from one set of classes.

    Attributes:
        name: Its shortest ``model_type``.
        types: Every ``model_type``, with a configuration to plan with.
        swept: The rows of the sweep, by kind.
    """

    name: str
    types: Mapping[str, Mapping[str, Any]]
    swept: Sequence[Mapping[str, Any]]

    @property
    def title(self) -> str:
        """The name as people write it."""
        return "-".join(_IN_CAPITALS.get(part, part.capitalize()) for part in self.name.split("_"))

    @property
    def other_spellings(self) -> str:
        """How people write it too, for the search; empty if there is no number in it."""
        apart = re.sub(r"(?<=[A-Za-z]{3})(?=\d)", "-", self.title)
        return "" if apart == self.title else f" (also written {apart}, {apart.replace('-', ' ')})"

    @property
    def file(self) -> str:
        """The name of its page."""
        return f"{self.name.lower().replace('_', '-')}.md"


def families(loaded: Sequence[Loaded]) -> list[Family]:
    """Returns the families that a quirk names, or that the sweep ran."""
    sweep = json.loads((_ROOT / "docs" / "results" / "sweep.json").read_text(encoding="utf-8"))["rows"]
    kinds = {kind: _configuration(kind, values) for kind, values in _kinds()}
    configurations: dict[str, Mapping[str, Any]] = {}
    for config in (*kinds.values(), *_examples(loaded)):
        configurations.setdefault(config["model_type"], config)
    types = {name for item in loaded for name in item.quirk.match.model_types() or ()} | {
        config["model_type"] for config in kinds.values()
    }
    named: dict[str, list[str]] = {}
    for name in sorted(types):
        named.setdefault(_PART.sub("", name), []).append(name)
    return [
        Family(
            name,
            {one: configurations.get(one, {"model_type": one}) for one in found},
            [row for row in sweep if kinds[row["kind"]]["model_type"] in found],
        )
        for name, found in sorted(named.items(), key=lambda entry: entry[0].lower())
    ]


def _kinds() -> Iterator[tuple[str, Mapping[str, Any]]]:
    found = yaml.safe_load((_ROOT / "worker" / "lab" / "kit" / "kinds.yaml").read_text(encoding="utf-8"))
    yield from {**found["kinds"], **found["further"]}.items()


def _configuration(kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in values.items() if name not in ("type", "without")}
    return {"model_type": values.get("type", kind.partition(":")[0]), **given}


def _examples(loaded: Sequence[Loaded]) -> list[Mapping[str, Any]]:
    """The configurations of the quirks' examples that are not quantised, the fullest first."""
    found = [one.config for item in loaded for one in item.quirk.examples if isinstance(one.config.get("model_type"), str)]
    plain = [config for config in found if not ModelFacts(name="", path="", config=dict(config)).is_quantized]
    return sorted(plain, key=len, reverse=True)


class Planner:
    """Plans the runs of families, and knows what applies to any model."""

    def __init__(self, loaded: Sequence[Loaded]) -> None:
        self.loaded = {item.quirk.id: item for item in loaded}
        self._any = {run: self._active(run, {"model_type": "any"}) for run in _RUNS}

    def family_page(self, family: Family) -> str:
        """Returns the page of a family."""
        active = {run: set().union(*(self._active(run, config) for config in family.types.values())) for run in _RUNS}
        common = set().union(*self._any.values())
        own = sorted(set().union(*active.values()) - common)
        bound = [name for name, item in self.loaded.items() if any(_is_bound(item.quirk, facts) for facts in _facts(family))]
        further = sorted(set(bound) - set(own))
        return page(
            f"{family.title} on vLLM {_NEWEST.rpartition('.')[0]}",
            f"For checkpoints whose `config.json` says `model_type`: {', '.join(f'`{name}`' for name in family.types)}"
            f"{family.other_spellings}. What follows is the planner's answer for vLLM {_NEWEST} on CUDA. Ask it for your "
            "checkpoint, which may have more to it:",
            "```text\n"
            "MODEL_QUIRKS=on python my_trainer.py         # a rollout, in TRL, verl, NeMo RL and others\n"
            "MODEL_QUIRKS=on vllm serve MODEL             # serving\n"
            f"quirks plan --model MODEL --trainer trl --vllm {_NEWEST} --assume platform==cuda   # or -- vllm serve MODEL\n```",
            f"## What applies to {family.title}",
            self._applies(own, active) if own else "Nothing that other models do not get as well.",
            f"As for any model: {self._listed(common & set().union(*active.values()))}.",
            *(["## In further runs", self._further(family, further)] if further else []),
            "## By version",
            self._by_version(sorted({*own, *bound})) if own or bound else "No quirk names this family.",
            "## What ran",
            _swept(family),
        )

    def versions_page(self, found: Sequence[Family]) -> str:
        """Returns the table of all families."""
        groups: dict[tuple[int, ...], list[Family]] = {}
        for family in found:
            groups.setdefault(tuple(self._count(family, version) for version in _SUPPORTED), []).append(family)
        rows = [[*map(str, counts), ", ".join(map(_named, group))] for counts, group in sorted(groups.items())]
        return page(
            "Which vLLM for which model",
            f"Take {_NEWEST} on GPUs and {ENGINES[-2]} on CPUs, unless your trainer pins another one "
            f"([trainers](trainers.md#by-trainer); TRL declares {TRAINERS['trl'].window} and warns beyond): their source was "
            "read, and most proofs were made there. "
            f"Beyond {_NEWEST} nothing was read, and below 0.26 only what is listed there was run.",
            "The table counts the cures that the catalogue has for a model and not for every other one, on CUDA, in some run "
            "(a rollout, LoRA, a quantised checkpoint, …). With `MODEL_QUIRKS=on` they are in force where they apply, so a "
            "number is no reason against a version, and without it a cure may concern a run that is not yours: ask for your "
            "run, below. ✓ and ✗ are the "
            "[sweep](results/sweep.md): a tiny model of the kind was right, or not, after two weight updates on a CPU with "
            f"vLLM {ENGINES[-2]}; the others were not run as a whole.",
            table((*_SUPPORTED, "`model_type` in `config.json`"), rows),
            "For your model and your versions:",
            "<!-- MODEL is yours. -->\n```console notest\n"
            "$ quirks plan --model MODEL --trainer trl --vllm 0.26.0,0.32.0,0.33.0 --assume platform==cuda\n"
            "$ quirks upgrade --from 0.32.0 --to 0.33.0 --model MODEL    # what changes; needs the extra upgrade\n```",
            "The site has a page for each family, with what applies to a rollout, to LoRA and to serving. Whether a version "
            "computes a model as the trainer does is a measurement: [parity](parity.md), and "
            "[`quirks migrate`](parity.md#two-engines).",
        )

    def _active(self, run: str, config: Mapping[str, Any]) -> set[str]:
        settings, purpose = _RUNS[run]
        example = Example(
            answer=Answer.YES,
            config=config,
            settings=settings,
            packages=_PACKAGES,
            platform="cuda",
            purpose=purpose,
        )
        plan: Plan = resolve(example.context(), list(self.loaded.values()))
        return {verdict.id for verdict in plan.verdicts if verdict.state is State.ACTIVE}

    def _applies(self, names: Sequence[str], active: Mapping[str, set[str]]) -> str:
        rows = []
        for name in names:
            quirk = self.loaded[name].quirk
            where = ["●" if name in active[run] else "" for run in _RUNS]
            rows.append([f"[{name}](../quirks/{name}.md)<br>{prose(quirk.title)}", *where, proven(quirk)])
        return table(("quirk, and what goes wrong without it", *_RUNS, "proven on"), rows)

    def _listed(self, names: set[str]) -> str:
        return ", ".join(f"[{name}](../quirks/{name}.md)" for name in sorted(names))

    def _further(self, family: Family, names: Sequence[str]) -> str:
        """The quirks of a family that these runs do not get, each with a run that does."""
        rows = []
        for name in names:
            item = self.loaded[name]
            ones = [one for one in item.quirk.examples if one.answer is Answer.YES]
            ones.sort(key=lambda one: one.config.get("model_type") not in family.types)
            run = facts_of(_without_other_models(family, ones[0])) if ones else ""
            done = (outcome(item, ones[0]) if ones else "") or "advice"
            rows.append([f"[{name}](../quirks/{name}.md)<br>{prose(item.quirk.title)}", run, done, proven(item.quirk)])
        return table(("quirk, and what goes wrong without it", "for example in this run", "what is done", "proven on"), rows)

    def _by_version(self, names: Sequence[str]) -> str:
        quirks = [self.loaded[name].quirk for name in names]
        rows = [[f"[{one.id}](../quirks/{one.id}.md)", *(sign(one, version) for version in _SUPPORTED)] for one in quirks]
        return f"{table(('quirk', *_SUPPORTED), rows)}\n\n{LEGEND}"

    def _count(self, family: Family, version: str) -> int:
        """How many workarounds are bound to such models, and can concern them on that version on CUDA."""
        found = (item.quirk for item in self.loaded.values() if item.quirk.kind is Kind.WORKAROUND)
        examined = [quirk for quirk in found if quirk.is_examined("vllm", version)]
        return sum(any(_concerns(quirk, version, facts) for facts in _facts(family)) for quirk in examined)


def _concerns(quirk: Quirk, version: str, facts: Mapping[str, Any]) -> bool:
    return _is_bound(quirk, facts) and affects(quirk, version, facts) is Answer.YES


def _without_other_models(family: Family, one: Example) -> Example:
    """The run of an example, without the model where that is of another family."""
    return one if one.config.get("model_type") in family.types else replace(one, config={})


def _facts(family: Family) -> list[dict[str, Any]]:
    """What is known of runs of a family on CUDA, for each of its types."""
    found = []
    for name, config in family.types.items():
        model = ModelFacts(name=name, path=name, config=dict(config))
        facts = {"model.model_type": name, "model.is_moe": model.is_moe, "model.is_multimodal": model.is_multimodal}
        found.append({"platform": "cuda", **facts})
    return found


def _is_bound(quirk: Quirk, facts: Mapping[str, Any]) -> bool:
    """The quirk names a kind of models, and these are of it."""
    types = quirk.match.model_types()
    if types is not None:
        return facts["model.model_type"] in types
    asked = {name for name in ("model.is_moe", "model.is_multimodal") if name in set(quirk.match.facts()) and facts[name]}
    return bool(asked) and affects(quirk, _NEWEST, facts) is not Answer.NO


def _is_right(row: Mapping[str, Any]) -> bool:
    run = row["run"]
    tokens = [run.get("first"), run.get("second")]
    return run["stage"] == "done" and not run.get("differs") and all(one and one["equal"] == one["total"] for one in tokens)


def _named(family: Family) -> str:
    right = [_is_right(row) for row in family.swept]
    return f"`{family.name}`" + ("" if not right else " ✓" if all(right) else " ✗")


def _swept(family: Family) -> str:
    lines = []
    for row in family.swept:
        run, versions = row["run"], row["depends"]
        second = run.get("second")
        tokens = f"{second['equal']} of {second['total']} tokens after two weight updates" if second else ""
        verdict = "right" if _is_right(row) else "[not right, and why](../results/sweep.md#what-is-not-right-and-why)"
        where = f"vLLM {versions['vllm']}, transformers {versions['transformers']}, {versions['platform']}, {row['date']}"
        found = ", ".join(filter(None, (verdict, tokens)))
        lines.append(f"- `{row['kind']}` ({run.get('architecture', '')}), a tiny random model, {where}: {found}.")
    return "\n".join(lines) or "No model of this family was run as a whole; the tables say which quirks' paired runs were."
