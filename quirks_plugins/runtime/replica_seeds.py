"""Replicas with the same seed return the same samples for the same prompts.

What happens: if the same prompts reach two engines of a group in the same order, the engines return the same samples, and a
group of samples for one prompt contains duplicates. An engine's random numbers start from ``seed``, which is 0 in every engine
unless it is set, and all engines of a group have the same weights. vllm-project/vllm#11953 saw one output from eight engines
at temperature 0.8; verl-project/verl#5179 and NVIDIA-NeMo/RL#171 gave each replica a seed of its own. Users rarely notice it
while requests reach the replicas in random order.

What this changes: ``parallel.distinct_seeds`` becomes true unless the user set it, and every engine of a group starts from
``engine.seed`` plus its rank. An engine that owns its data-parallel ranks keeps one seed, because vLLM handles the seeds of
the ranks.

When it can go: when engines draw their seeds at random by default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quirks_core import Default, Kind, ModelFlag, Quirk, Severity, fix, no, report, yes
from quirks_plugins.conditions import one_engine, several_replicas
from quirks_plugins.runs import parallel

if TYPE_CHECKING:
    from worker.lab.kit.lab import Lab, Outcome

QUIRK = Quirk(
    id="replica-seeds",
    title="Engines that share a seed return the same samples for the same prompts",
    flag=ModelFlag.RUNTIME,
    kind=Kind.FEATURE,
    match=several_replicas & ~one_engine,
    adjustments=Default("parallel.distinct_seeds", True),
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("https://github.com/vllm-project/vllm/issues/11953"),
        report("https://github.com/NVIDIA-NeMo/RL/issues/53"),
        fix("https://github.com/NVIDIA-NeMo/RL/pull/171"),
        fix("https://github.com/verl-project/verl/pull/5179"),
    ],
    examples=[
        yes(settings=parallel(dp=2), gives={"parallel.distinct_seeds": True}),
        yes(settings={**parallel(dp=2), "parallel.distinct_seeds": False}, gives={}),
        yes(settings=parallel(dp=2, strategy="independent")),
        yes(settings=parallel(dp=2, strategy="actors")),
        yes(settings=parallel(dp=2), purpose="eval"),
        yes(settings=parallel(dp=2), purpose="serve"),
        no(settings=parallel(dp=2, strategy="engine")),
        no(settings=parallel(dp=1)),
    ],
)


async def scenario(lab: Lab) -> Outcome:
    """Two engines of a group make different samples of the same prompts."""
    from worker.engine.engine_rank import EngineRank
    from worker.lab.kit.lab import Outcome

    model = lab.checkpoint("qwen3")
    # One request at a time, so that chance has no part in which random numbers a request gets.
    values = {
        "engine": {"load_format": "auto", "data_parallel_size": 2, "max_num_seqs": 1},
        "parallel": {"dp_strategy": "independent"},
    }
    samples = []
    for rank in range(2):
        async with lab.worker(model, values, engine_rank=EngineRank("independent", rank, engines=2)) as worker:
            samples.append(await lab.sample(worker))
    same = sum(first.tokens == second.tokens for first, second in zip(*samples, strict=True))
    return Outcome(same == 0, "samples of two replicas", f"{same} of {len(samples[0])} the same", "none the same")
