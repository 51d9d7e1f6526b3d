"""Trainers with transformers 5.8 or later name the weights of SigLIP and CLIP towers (Gemma 3) otherwise than vLLM does.

What happens: the first refit that has these weights fails with "There is no module or parameter named". Since transformers 5.8
``SiglipVisionModel`` and ``CLIPVisionModel`` no longer wrap another module (NVIDIA-NeMo/Megatron-Bridge#4220): a trainer's
parameter is ``model.vision_tower.encoder…``, where published checkpoints and vLLM have ``vision_tower.vision_model.encoder…``.
NeMo RL puts the missing part back by a regular expression. A trainer that freezes the tower can leave its weights out of
refits, if the engine loaded them from the checkpoint.

When it can go: when vLLM takes both names. The names are those of small models of these types with transformers 5.19.0 (Granite
4 Vision's were read in its source), and of vLLM's source; no refit was run.
"""

from quirks_core import Advise, Affected, Kind, Quirk, Severity, StaticProbe, no, report, unknown, yes
from quirks_core.declaration.match import Fact, model_type, purpose, setting

_TYPES = (
    *("cohere2_vision", "gemma3", "granite4_vision", "llava", "llava_next", "llava_next_video", "llava_onevision"),
    "paligemma",
)
_VISION = {"model_type": "gemma3", "vision_config": {"model_type": "siglip_vision_model"}}

QUIRK = Quirk(
    id="gemma3-vision-names",
    title="A refit of a SigLIP or CLIP vision tower (Gemma 3, LLaVA) fails with the names of transformers 5.8 and later",
    kind=Kind.RULE,
    match=(
        purpose("rollout")
        & model_type(*_TYPES)
        & Fact("model.is_multimodal").is_true()
        & ~Fact("model.config.vision_config.model_type").one_of("pixtral")
        & ~setting("engine.language_model_only").is_true()
    ),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Advise(
        "a trainer with transformers 5.8 or later must send vision_tower.vision_model.… where its model has vision_tower.…"
    ),
    severity=Severity.CRASH,
    crash=r"There is no module or parameter named '(model\.)?vision_tower\.(encoder|embeddings|pre_layrnorm|post_layernorm)",
    references=[report("NVIDIA-NeMo/RL/pull/2565"), report("NVIDIA-NeMo/Megatron-Bridge/pull/4220")],
    evidence=StaticProbe("vllm.model_executor.models.siglip", r"self\.vision_model = SiglipVisionTransformer\("),
    examples=[
        yes(_VISION, vllm="0.32.0", advises="vision_tower.vision_model"),
        no({"model_type": "llava", "vision_config": {"model_type": "pixtral"}}, vllm="0.32.0"),
        no(_VISION, {"engine.language_model_only": True}, vllm="0.32.0"),
        no(_VISION, vllm="0.32.0", purpose="serve"),
        unknown(_VISION),
    ],
)
