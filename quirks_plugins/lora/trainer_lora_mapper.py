"""Adapters that a trainer hands over in memory: from vLLM 0.25 on its own loader mixes up q, k and v, and the first one fails.

What happens: the first update of an adapter ends with "IndexError: tuple index out of range" in ``set_lora``. verl, ms-swift
and Unsloth replace vLLM's loading of adapters by a copy of it. From 0.25.0 on the model's ``hf_to_vllm_mapper`` also gives q,
k and v (gate and up) one name, and vLLM takes that out before it maps an adapter's names (``get_unstacked_mapper``); these
copies do not. 0.29.0 renamed the method to ``get_rename_mapper``, and copies that know the older name alone fail again, verl's
with an ``AttributeError``.

When it can go: when these releases of the trainers are no longer in use. Read in vLLM 0.24.0, 0.25.1, 0.28.0, 0.29.0 and
0.33.0; verl 0.7.1 to 0.9.1 (the newest), ms-swift 4.5.2, 4.5.3 and 4.6.0. Unsloth Zoo has the first fix from 2026.7.6 on, the
second one from 2026.9.4 on; it is not matched, because a plan cannot tell whether TRL runs under Unsloth.

Evidence: the reports and these sources; not run by us.
"""

from quirks_core import Advise, Affected, Quirk, Severity, no, package, purpose, report, setting, unknown, yes
from quirks_plugins.runs import LORA

_VERL, _SWIFT = {**LORA, "train.framework": "verl"}, {**LORA, "train.framework": "ms-swift"}
_framework = setting("train.framework")
_renamed = package("vllm", introduced="0.29.0")
_verl = _framework.one_of("verl") & (package("verl", fixed="0.9.1") | (package("verl", introduced="0.9.1") & _renamed))
_swift = _framework.one_of("ms-swift") & (package("ms-swift", fixed="4.5.3") | (package("ms-swift", fixed="4.6.0") & _renamed))

QUIRK = Quirk(
    id="trainer-lora-mapper",
    title="Adapters that verl or ms-swift hand over in memory do not load into newer vLLM",
    match=purpose("rollout") & setting("engine.enable_lora").is_true() & (_verl | _swift),
    affected=Affected("vllm", introduced="0.25.0"),
    adjustments=Advise(
        "this trainer's loader of adapters does not know this vLLM's names of fused layers, and the first adapter fails: "
        "install ms-swift 4.6, take vLLM 0.24 (with verl 0.9.1: 0.28), or let verl merge adapters "
        "(actor_rollout_ref.model.lora.merge)"
    ),
    severity=Severity.CRASH,
    crash="tuple index out of range|has no attribute 'get_unstacked_mapper'",
    references=[
        report("modelscope/ms-swift/pull/9946"),
        report("unslothai/unsloth#7283"),
        report("unslothai/unsloth-zoo/pull/919"),
        report("unslothai/unsloth-zoo/pull/1197"),
    ],
    examples=[
        yes("qwen3", _SWIFT, vllm="0.26.0", packages={"ms-swift": "4.5.2"}, advises="ms-swift 4.6"),
        yes("qwen3", _SWIFT, vllm="0.29.0", packages={"ms-swift": "4.5.3"}),
        yes("qwen3", _VERL, vllm="0.25.1", packages={"verl": "0.9.0"}),
        yes("qwen3", _VERL, vllm="0.29.0", packages={"verl": "0.9.1"}),
        no("qwen3", _SWIFT, vllm="0.33.0", packages={"ms-swift": "4.6.0"}),
        no("qwen3", _VERL, vllm="0.28.0", packages={"verl": "0.9.1"}),
        no("qwen3", _VERL, vllm="0.24.0", packages={"verl": "0.9.0"}),
        no("qwen3", {"train.framework": "verl"}, vllm="0.25.1", packages={"verl": "0.9.0"}),
        unknown("qwen3", _VERL, vllm="0.25.1"),
    ],
)
