"""TRL 0.26 to 1.9 with ``vllm_enable_sleep_mode``: every rollout comes from the checkpoint that training started from.

What happens: rewards stay flat, ``sampling/sampling_logp_difference`` grows with every step, and nothing fails. TRL puts its
weights into the colocated engine, and then ``generate`` calls vLLM's ``reload_weights``, which reads the checkpoint from disk
again. From 1.10.0 on TRL sends its weights after a sleep and no longer reloads. TRL 0.25 did not reload, and 0.24 slept at
level 1.

When it can go: when TRL 1.9 is no longer in use. Read in 0.24.0, 0.25.0, 0.26.0, 0.27.0, 1.0.0, 1.9.0, 1.9.2 and 1.10.0
(``grpo_trainer``, later ``VLLMGeneration``). The run is not refused, because Unsloth replaces that call.

Evidence: none of ours; the report compares 1.9.0 with sleep mode, without it, and with the fix.
"""

from quirks_core import Advise, Affected, Quirk, Severity, no, purpose, report, setting, unknown, yes
from quirks_plugins.conditions import trl_in_process

_COLOCATED = {
    "train.framework": "trl",
    "engine.distributed_executor_backend": "external_launcher",
    "engine.enable_sleep_mode": True,
}

QUIRK = Quirk(
    id="trl-sleep-weights",
    title="TRL reads the first checkpoint again before each rollout of an engine that has slept",
    match=purpose("rollout") & trl_in_process & setting("engine.enable_sleep_mode").is_true(),
    affected=Affected("trl", introduced="0.26.0", fixed="1.10.0"),
    adjustments=Advise(
        "after each sleep this TRL loads the checkpoint from disk over the weights that it has sent, so that all rollouts are "
        "the first policy's: install TRL 1.10 or newer, or set vllm_enable_sleep_mode=False in the trainer's configuration"
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[report("huggingface/trl#5312"), report("huggingface/trl/pull/5313")],
    examples=[
        yes("qwen3", _COLOCATED, packages={"trl": "1.9.2"}, advises="TRL 1.10"),
        no("qwen3", _COLOCATED, packages={"trl": "1.10.0"}),
        no("qwen3", _COLOCATED, packages={"trl": "0.25.0"}),
        no("qwen3", {**_COLOCATED, "engine.enable_sleep_mode": False}, packages={"trl": "1.9.2"}),
        no("qwen3", {**_COLOCATED, "train.framework": "verl"}, packages={"trl": "1.9.2"}),
        unknown("qwen3", _COLOCATED),
    ],
)
