"""TRL with PEFT and a base in bfloat16 or float16: each weight update moves the frozen base a little, and it never comes back.

What happens: the reference of the KL, the saved adapter's base and the policy drift apart over the run, and nothing fails.
Where vLLM takes no adapters, TRL merges them into its own model, sends it, and takes them out again (``merge_adapter``,
``unmerge_adapter``); in 16 bits the difference is rounded twice. In float32 it does not grow.

When it can go: when TRL restores a copy, as verl does, or sends the adapter (huggingface/trl#6007, open). Read in TRL 1.16.0.

Evidence: with PEFT 0.21.2, and an adapter of 5 % of the weights' norm that changes each time, one cycle changes 8 % of the
weights in bfloat16, and 100 cycles 61 %, by 0.6 % of their norm; in float16 by 0.07 %, in float32 by less than 0.001 %. The
report measured more. The ledger names it in an engine that gets the base again under its label (`docs/policy.md`).
"""

from quirks_core import Advise, Affected, Quirk, Severity, no, purpose, report, setting, unknown, yes

_ADAPTER = {"train.framework": "trl", "train.dtype": "bfloat16", "train.trainable_dtype": "float32"}
_TRL = {"trl": "1.16.0"}

QUIRK = Quirk(
    id="trl-merge-drift",
    title="TRL merges adapters into a 16-bit base and takes them out again, and the base drifts with each update",
    match=purpose("rollout")
    & setting("train.framework").one_of("trl")
    & setting("train.dtype").one_of("bfloat16", "float16")
    & setting("train.trainable_dtype").one_of("float32")
    & ~setting("engine.enable_lora").is_true(),
    affected=Affected("trl", introduced="1.0.0"),
    adjustments=Advise(
        "what is trained is in float32 and the rest in 16 bits, as of an adapter: TRL merges it into the base for each update "
        "and takes it out again, which rounds the base twice; leave the dtype to TRL (float32, computed in 16 bits under "
        "bf16=True or fp16=True), if the memory suffices"
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[report("huggingface/trl#6688"), report("huggingface/trl/pull/6007"), report("huggingface/peft#1388")],
    examples=[
        yes("qwen3", _ADAPTER, packages=_TRL, advises="takes it out again"),
        yes("qwen3", {**_ADAPTER, "train.dtype": "float16"}, packages=_TRL),
        no("qwen3", {**_ADAPTER, "train.dtype": "float32"}, packages=_TRL),
        no("qwen3", {**_ADAPTER, "train.trainable_dtype": "bfloat16"}, packages=_TRL),
        no("qwen3", {**_ADAPTER, "engine.enable_lora": True}, packages=_TRL),
        no("qwen3", {**_ADAPTER, "train.framework": "verl"}, packages=_TRL),
        no("qwen3", _ADAPTER, packages=_TRL, purpose="eval"),
        unknown("qwen3", _ADAPTER),
    ],
)
