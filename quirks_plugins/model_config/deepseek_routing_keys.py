"""DeepSeek-V3 without ``scoring_func`` and ``topk_method`` in ``config.json``: vLLM routes without the bias, by softmax.

What happens: a DeepSeek-V3 model that was made with transformers, smaller or from scratch, does not load: "KeyError:
'layers.1.mlp.gate.e_score_correction_bias'". If the user adds ``topk_method`` alone, to get past the error, the engine
generates badly without a message, and its logprobs differ from the trainer's. transformers' ``DeepseekV3Config`` has neither
key: its router always computes the sigmoid and adds the bias. vLLM reads both keys
(``vllm.model_executor.models.deepseek_v2``): without ``topk_method`` its router has no bias, and without ``scoring_func`` it
computes the softmax. Released checkpoints name both keys, and transformers keeps them, so a fine-tuned one is not affected.

When it can go: when vLLM uses the defaults of transformers for DeepSeek-V3.
"""

from quirks_core import Affected, Default, Fact, Quirk, Severity, StaticProbe, model_type, no, report, unknown, yes
from quirks_plugins.kit import Lab, Outcome
from quirks_plugins.model_config.evidence import edited
from quirks_plugins.model_config.rope import OVERRIDES

_KEYS = {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}
_missing = {key: ~Fact(f"model.config.{key}").is_set() for key in _KEYS}

QUIRK = Quirk(
    id="deepseek-routing-keys",
    title="A DeepSeek-V3 config.json without scoring_func and topk_method does not load, or is routed by softmax",
    match=model_type("deepseek_v3", "deepseek_v32", "glm_moe_dsa") & (_missing["scoring_func"] | _missing["topk_method"]),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=[
        Default(OVERRIDES, {key: value}, reason="transformers' DeepSeek-V3 always routes so", when=_missing[key])
        for key, value in _KEYS.items()
    ],
    severity=Severity.CRASH,
    crash="e_score_correction_bias",
    references=report("https://github.com/vllm-project/vllm/blob/v0.32.0/vllm/model_executor/models/deepseek_v2.py#L387"),
    evidence=StaticProbe("vllm.model_executor.models.deepseek_v2", r'getattr\(config, "scoring_func", "softmax"\)'),
    examples=[
        yes("deepseek_v3", vllm="0.32.0", gives={OVERRIDES: _KEYS}),
        yes(
            {"model_type": "deepseek_v3", "scoring_func": "sigmoid"},
            vllm="0.32.0",
            gives={OVERRIDES: {"topk_method": "noaux_tc"}},
        ),
        no({"model_type": "deepseek_v3", **_KEYS}, vllm="0.32.0"),
        unknown("deepseek_v3"),
    ],
)


async def scenario(lab: Lab) -> Outcome:
    """A checkpoint without the keys generates what transformers does."""
    model = edited(lab, "deepseek_v3", "without-keys", dict.fromkeys(_KEYS))
    async with lab.worker(model, {"engine": {"load_format": "auto"}}) as worker:
        return lab.same_tokens(await lab.greedy(worker), lab.reference(model))
