"""An Eagle3 draft with a vocabulary of its own gets the target's head, whose rows mean other tokens.

What happens: vLLM shares the target's ``lm_head`` with a draft that declares none of its own. Llama's Eagle3 draft declares
nothing, also where its ``draft_vocab_size`` differs from the target's vocabulary.

What this changes: the draft declares its own head in that case.

When it can go: when ``llama_eagle3.py`` of vLLM sets ``has_own_lm_head``.
"""

from quirks_core import Affected, ModelFlag, Patch, Quirk, Severity, StaticProbe, no, report, setting, unknown, yes

QUIRK = Quirk(
    id="rl-patches/eagle3-own-head",
    title="An Eagle3 draft with a vocabulary of its own is given the target's head",
    flag=ModelFlag.SPECULATIVE,
    match=setting("engine.speculative_config.method").one_of("eagle3"),
    affected=Affected("vllm", introduced="0.25.0"),
    adjustments=Patch(
        "vllm.model_executor.models.llama_eagle3:Eagle3LlamaForCausalLM.__init__",
        wrapper="rl_patches.wrappers:declares_its_head",
        expects=("ad5cfcf25e8d", "1130ef853e02"),  # vLLM 0.25.1 to 0.29.0, 0.32.0 to 0.33.0
        reason="the draft's class has no setting for it",
    ),
    severity=Severity.CRASH,
    references=[report("https://github.com/NVIDIA-NeMo/RL/issues/4155")],
    evidence=StaticProbe("vllm.model_executor.models.llama_eagle3", r"has_own_lm_head", found_means_affected=False),
    examples=[
        yes("llama", {"engine.speculative_config": {"method": "eagle3", "model": "draft"}}, vllm="0.32.0"),
        no("llama", {"engine.speculative_config": {"method": "ngram"}}, vllm="0.32.0"),
        unknown("llama", {"engine.speculative_config": {"method": "eagle3", "model": "draft"}}),
    ],
)
