"""TRL's ``--seed`` does not reach the engine that it colocates: two runs with other seeds have byte-identical rollouts.

What happens: error bars over seeds are too small, and a run that collapsed collapses again in the same way. TRL seeds a
colocated engine with the rank of its process by tensor-parallel size alone (``VLLMGeneration``). Nothing shows it but equal
samples in the first step of two runs.

When it can go: when TRL hands on its seed; huggingface/trl#7040, which did, was closed.

Evidence: the line in TRL 1.16.0, and the report; two runs of TRL were not compared by us.
"""

from quirks_core import Advise, Affected, Quirk, Severity, no, purpose, report, unknown, yes
from quirks_plugins.conditions import trl_in_process

_COLOCATED = {"train.framework": "trl", "engine.distributed_executor_backend": "external_launcher", "engine.seed": 0}

QUIRK = Quirk(
    id="trl-engine-seed",
    title="TRL's seed does not reach a colocated engine, and runs with other seeds have the same rollouts",
    match=purpose("rollout") & trl_in_process,
    affected=Affected("trl", introduced="1.0.0"),
    adjustments=Advise(
        "TRL seeds this engine by its rank: until weights differ, a run with another --seed gets the same samples of a prompt; "
        "leave shuffle_dataset on"
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
