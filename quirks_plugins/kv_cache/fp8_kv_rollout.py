"""A rollout with an FP8 KV cache: its logprobs are those of rounded keys and values, and a trainer's are not.

What happens: every importance ratio carries the rounding of keys and values to eight bits, also where the policy has not
changed. The scales of a cache are those of the checkpoint, or 1, and stay so while the policy moves: no weight update brings
others, unless the trainer calculates and sends them. NeMo RL calibrates scales after each refit (NVIDIA-NeMo/RL#1212), and
prime-rl replays the rounding in the trainer (PrimeIntellect-ai/prime-rl#3555, open).

What this changes: nothing; the plan advises. Without a correction in the trainer, leave ``engine.kv_cache_dtype`` open. An FP8
KV cache holds twice as many tokens, so it is a choice, and no mistake.

When it can go: never; two programs that round differently differ.

Evidence: none of ours; advice changes nothing, so that no paired run can show it. The references compare training curves.
"""

from __future__ import annotations

from quirks_core import Advise, Kind, ModelFlag, Quirk, Severity, no, purpose, report, setting, yes

_SLOT = "engine.kv_cache_dtype"

QUIRK = Quirk(
    id="fp8-kv-rollout",
    title="Keys and values of a rollout are rounded to FP8, and the trainer's are not",
    flag=ModelFlag.KV_CACHE,
    kind=Kind.RULE,
    match=purpose("rollout") & setting(_SLOT).matches("^fp8"),
    adjustments=Advise(
        f"{_SLOT} is FP8: logprobs differ from a trainer's, which does not round keys and values; leave it open, or correct "
        "for it in the trainer"
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("https://github.com/NVIDIA-NeMo/RL/pull/1212"),
        report("https://github.com/PrimeIntellect-ai/prime-rl/pull/3555"),
        report("https://github.com/verl-project/verl/pull/4435"),
    ],
    examples=[
        yes(settings={_SLOT: "fp8"}, advises="does not round keys and values"),
        yes(settings={_SLOT: "fp8_e4m3"}, vllm="0.32.0"),
        no(settings={_SLOT: "auto"}),
        no(),
        no(settings={_SLOT: "fp8"}, purpose="serve"),
    ],
)
