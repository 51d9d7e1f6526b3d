"""Engines with one seed return the same samples for the same prompts, one row for each who chooses it.

What happens: a group of samples that is spread over engines holds each answer several times, so that advantages shrink and
rewards stay flat; runs that shall differ by their seed do not, so that error bars are too small. Nothing fails. Each engine
draws from ``engine.seed``, 0 if it is left open; our group adds an engine's rank unless ``parallel.distinct_seeds`` is false,
and TRL seeds a colocated engine with its rank alone (``VLLMGeneration``).

When it can go: ``one-seed`` never, being a choice; ``trl-engine-seed`` when TRL hands on its seed; huggingface/trl#7040, which
did, was closed.

Evidence: two engines with one seed are compared in the tests of the group; the line in TRL 1.16.0, and the report.
"""

from quirks_core import Advise, Affected, Kind, Quirk, Severity, no, purpose, report, setting, unknown, yes
from quirks_plugins.conditions import several_replicas
from quirks_plugins.runs import parallel

_SLOT = "parallel.distinct_seeds"
_ONE = {_SLOT: False, **parallel(dp=2)}

ONE_SEED = Quirk(
    id="one-seed",
    title="Engines that share one seed return the same samples for the same prompts",
    kind=Kind.RULE,
    match=purpose("rollout") & several_replicas & setting(_SLOT).one_of(False) & ~setting("sampling.temperature").one_of(0.0),
    adjustments=Advise(
        f"all engines have one seed and return the same samples for the same prompts: set {_SLOT}: true, unless that is wanted"
    ),
    severity=Severity.WRONG_OUTPUT,
    references=report("huggingface/trl/pull/7040"),
    examples=[
        yes("qwen3", _ONE, advises=f"{_SLOT}: true"),
        no("qwen3", parallel(dp=2)),
        no("qwen3", {_SLOT: False}),
        no("qwen3", {**_ONE, "sampling.temperature": 0.0}),
        no("qwen3", _ONE, purpose="eval"),
    ],
)

_COLOCATED = {"train.framework": "trl", "engine.distributed_executor_backend": "external_launcher", "engine.seed": 0}

TRL_ENGINE_SEED = Quirk(
    id="trl-engine-seed",
    title="TRL's seed does not reach a colocated engine, and runs with other seeds have the same rollouts",
    match=purpose("rollout")
    & setting("train.framework").one_of("trl")
    & setting("engine.distributed_executor_backend").one_of("external_launcher"),
    affected=Affected("trl", introduced="1.0.0"),
    adjustments=Advise(
        "TRL seeds this engine by its rank alone, whatever --seed says: while weights are equal, the same prompts get the same "
        "samples in runs with other seeds, so that such runs differ less than they should"
    ),
    severity=Severity.NOISE,
    references=report("huggingface/trl/pull/7040"),
    examples=[
        yes("qwen3", _COLOCATED, packages={"trl": "1.16.0"}, advises="--seed"),
        no("qwen3", {**_COLOCATED, "train.framework": "verl"}, packages={"trl": "1.16.0"}),
        no("qwen3", {"train.framework": "trl"}, packages={"trl": "1.16.0"}),
        no("qwen3", _COLOCATED, packages={"trl": "1.16.0"}, purpose="eval"),
        unknown("qwen3", _COLOCATED),
    ],
)
