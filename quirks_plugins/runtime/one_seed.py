"""Several independent engines with one seed return the same samples for the same prompts.

What happens: a group of samples that is spread over engines holds each answer several times, so that advantages shrink and
rewards stay flat. Nothing fails. Each engine draws from ``engine.seed``, which is 0 if it is left open; our group adds an
engine's rank to it unless ``parallel.distinct_seeds`` is false. Trainers that start engines by themselves have the same choice
(in huggingface/trl#7040 two runs with other seeds had the same rollouts).

When it can go: never, being a choice; samples that shall be alike, as in a test, need it.

Evidence: two engines with one seed are compared in the tests of the group.
"""

from quirks_core import Advise, Kind, Quirk, Severity, no, purpose, report, setting, yes
from quirks_plugins import conditions as run
from quirks_plugins.runs import parallel

_SLOT = "parallel.distinct_seeds"
_ONE = {_SLOT: False, **parallel(dp=2)}

QUIRK = Quirk(
    id="one-seed",
    title="Engines that share one seed return the same samples for the same prompts",
    kind=Kind.RULE,
    match=purpose("rollout")
    & run.several_replicas
    & setting(_SLOT).one_of(False)
    & ~setting("sampling.temperature").one_of(0.0),
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
