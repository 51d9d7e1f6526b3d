"""YaRN: since 0.30.0 vLLM refuses a ``max_model_len`` beyond the checkpoint's length, although the rotations reach that far.

What happens: a model card's recipe, ``rope_parameters`` with ``factor: 4.0`` and ``max_model_len: 131072``, ends with
"User-specified max_model_len (131072) is greater than the derived max_model_len (max_position_embeddings=32768…)". Before
0.30.0 vLLM multiplied the length by the factor. Now it uses ``max_position_embeddings`` as the extended length, as
transformers does (vllm-project/vllm#56446). If the user set YaRN in an override, or added it to ``config.json``,
``max_position_embeddings`` still has the trained length. The message suggests a variable that switches the check off entirely.

When it can go: never, unless vLLM derives the length from the factor again.
"""

from quirks_core import Affected, Default, Fact, Quirk, RunContext, Severity, StaticProbe, no, report, setting, unknown, yes
from quirks_plugins.kit import Lab, Outcome
from quirks_plugins.model_config.evidence import edited, sampled
from quirks_plugins.model_config.rope import OVERRIDES, num_positions, of_kind, text_only


def _extended(context: RunContext) -> dict[str, int]:
    return {"max_position_embeddings": num_positions(context)}


_QWEN3 = {"model_type": "qwen3", "rope_theta": 1e6, "max_position_embeddings": 40960}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
_TYPED = {OVERRIDES: {"rope_parameters": _YARN}, "engine.max_model_len": 131072}

QUIRK = Quirk(
    id="yarn-length",
    title="vLLM refuses a max_model_len that YaRN reaches, because config.json still has the trained length",
    match=text_only
    & of_kind("yarn")
    & setting("engine.max_model_len").above(Fact("model.config.max_position_embeddings"))
    & ~setting(f"{OVERRIDES}.max_position_embeddings").is_set(),
    affected=Affected("vllm", introduced="0.30.0"),
    adjustments=Default(OVERRIDES, _extended, reason="YaRN extends the context to this length"),
    severity=Severity.CRASH,
    crash="is greater than the derived max_model_len",
    references=[report("vllm-project/vllm/pull/56446"), report("NVIDIA-NeMo/Safe-Synthesizer/pull/623")],
    evidence=StaticProbe("vllm.config.model", r'"llama3",\s+"yarn",\s+"deepseek_yarn"'),
    examples=[
        yes(_QWEN3, _TYPED, vllm="0.32.0"),
        yes(
            {**_QWEN3, "rope_scaling": _YARN},
            {"engine.max_model_len": 131072},
            vllm="0.32.0",
            gives={OVERRIDES: {"max_position_embeddings": 131072}},
        ),
        no(_QWEN3, _TYPED, vllm="0.29.0"),
        no(_QWEN3, {"engine.max_model_len": 131072}, vllm="0.32.0"),
        no(_QWEN3, {**_TYPED, "engine.max_model_len": 32768}, vllm="0.32.0"),
        unknown(_QWEN3, _TYPED),
    ],
)


async def scenario(lab: Lab) -> Outcome:
    """An engine with YaRN takes the length that it extends to, and computes what the trainer does."""
    # The longest prompt needs more positions than the model was trained on.
    yarn = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 32}
    model = edited(lab, "qwen3", "short", {"max_position_embeddings": 32})
    trained = edited(lab, "qwen3", "short-yarn", {"max_position_embeddings": 128, "rope_parameters": yarn})
    got = await sampled(lab, model, {"max_model_len": 128, "hf_overrides": {"rope_parameters": yarn}})
    return lab.close_logprobs(got, lab.rescored(lab.trainer(trained), got))
