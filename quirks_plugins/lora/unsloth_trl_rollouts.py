"""Unsloth before 2026.8.17 with TRL 1.10 and newer: rollouts of ``fast_inference`` come from the base model alone.

What happens: losses are finite and rewards spread, but nothing is learned. One line tells: "Unsloth: Warning - regex did not
match, VLLMGeneration.generate patch may have failed". Unsloth rewrites TRL's source so that requests carry the adapter; TRL
1.10.0 no longer has the line that the rewriting looks for, and neither the adapter nor weights reach the engine.

When it can go: when these releases of Unsloth are no longer in use. Read in Unsloth 2026.8.1, 2026.8.8, 2026.8.16, 2026.8.17
and 2026.9.1, and in TRL 1.9.2 and 1.10.0.

Evidence: the pull request, which compared 19 releases of TRL; not run by us.
"""

from quirks_core import Advise, Affected, Quirk, Severity, no, purpose, report, setting, unknown, yes
from quirks_core.declaration.match import package

_LORA = {"engine.enable_lora": True}
_BOTH = {"trl": "1.10.0", "unsloth": "2026.8.8"}

QUIRK = Quirk(
    id="unsloth-trl-rollouts",
    title="Unsloth does not hand its adapter to the engine with newer TRL, and rollouts are the base model's",
    match=purpose("rollout") & setting("engine.enable_lora").is_true() & package("trl", introduced="1.10.0"),
    affected=Affected("unsloth", fixed="2026.8.17"),
    adjustments=Advise(
        "this Unsloth cannot rewrite this TRL, and rollouts are sampled without the adapter: install Unsloth 2026.8.17 or "
        "newer, or TRL 1.9"
    ),
    severity=Severity.WRONG_OUTPUT,
    references=report("unslothai/unsloth/pull/8701"),
    examples=[
        yes("qwen3", _LORA, packages=_BOTH, advises="2026.8.17"),
        yes("qwen3", {**_LORA, "train.framework": "trl"}, packages={**_BOTH, "trl": "1.16.0"}),
        no("qwen3", _LORA, packages={**_BOTH, "unsloth": "2026.8.17"}),
        no("qwen3", _LORA, packages={**_BOTH, "trl": "1.9.2"}),
        no("qwen3", packages=_BOTH),
        unknown("qwen3", _LORA, packages={"unsloth": "2026.8.8"}),
    ],
)
