"""Multimodal models with ``skip_tokenizer_init``: the engine does not start.

What happens: trainers that send token ids set ``skip_tokenizer_init``. vLLM then gives the processor of a multimodal model no
tokenizer, and the processor needs one, also for prompts without images. Up to vLLM 0.29 the start ends deep in transformers;
since 0.30 vLLM reports the cause. An engine of the language model alone (``language_model_only``, or a limit of 0 for each
modality that the model takes) has no processor and starts. A modality that ``limit_mm_per_prompt`` does not name has a limit of
999. Which modalities a model takes is read in ``config.json``; of a model whose file does not tell of its videos (MiniCPM-V,
InternVL) a limit for images counts as the language model alone.

When it can go: when vLLM loads a tokenizer for the processor by itself (vllm-project/vllm#54904, not merged).
"""

from functools import reduce
from operator import or_

from quirks_core import Affected, Kind, Quirk, Require, Severity, StaticProbe, described, no, report, unknown, yes
from quirks_core.declaration.match import Fact, Match, setting

_SKIP, _LIMIT = "engine.skip_tokenizer_init", "engine.limit_mm_per_prompt"
_VISION = {"model_type": "qwen3_vl", "vision_config": {"depth": 2}, "image_token_id": 1, "video_token_id": 2}
_AUDIO = {"model_type": "ultravox", "architectures": ["UltravoxModel"], "audio_config": {}}
_OMNI = {"model_type": "qwen3_omni_moe", "thinker_config": {"model_type": "qwen3_omni_moe_thinker"}}


def _has(*keys: str) -> Match:
    """A part of ``config.json`` tells of a modality."""
    return reduce(or_, (Fact(f"model.config.{key}").is_set() for key in (*keys, "thinker_config")))


def _left(modality: str) -> Match:
    """Prompts may hold some: a number, or a mapping with ``count``, is no 0."""
    return ~(setting(f"{_LIMIT}.{modality}").one_of(0) | setting(f"{_LIMIT}.{modality}.count").one_of(0))


_audio = _has("audio_config", "audio_token_id", "audio_token_index")
_images = _has("vision_config", "image_token_id", "image_token_index") | ~_audio
_videos = _has("video_token_id", "video_token_index")
_takes_media = described(
    (_left("image") & _images)
    | (_left("video") & _videos)
    | (_left("audio") & _audio)
    | setting("engine.enable_mm_embeds").is_true(),
    f"`{_LIMIT}` leaves images, videos or audio that the model takes",
    f"`{_LIMIT}` leaves no images, videos and audio that the model takes",
)

QUIRK = Quirk(
    id="multimodal-needs-tokenizer",
    title="An engine of a multimodal model does not start with skip_tokenizer_init",
    kind=Kind.RULE,
    match=(
        setting(_SKIP).is_true()
        & Fact("model.is_multimodal").is_true()
        & ~setting("engine.language_model_only").is_true()
        & _takes_media
    ),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Require(
        _SKIP,
        False,
        reason="the processor of images and audio needs the tokenizer, also for prompts of token ids",
        remedy=f"set {_SKIP}: false, or engine.language_model_only: true",
    ),
    severity=Severity.CRASH,
    crash=r"requires a tokenizer and cannot be initialized|You cannot pass text prompts when `skip_tokenizer_init=True`",
    references=[report("NVIDIA-NeMo/RL#1681"), report("vllm-project/vllm/pull/54904"), report("vllm-project/vllm#54670")],
    evidence=StaticProbe("vllm.tokenizers.registry", r"if model_config\.skip_tokenizer_init:\s+return None"),
    examples=[
        yes(_VISION, {_SKIP: True}, vllm="0.32.0", refuses=[_SKIP, "engine.language_model_only"]),
        yes(_VISION, vllm="0.32.0", defaults={_SKIP: True}, gives={_SKIP: False}),
        yes(_VISION, {_SKIP: True, _LIMIT: {"image": 2}}, vllm="0.26.0", purpose="serve"),
        yes(_VISION, {_SKIP: True, _LIMIT: {"image": 0}}, vllm="0.32.0"),
        yes(_VISION, {_SKIP: True, _LIMIT: {"image": {"count": 1}, "video": 0}}, vllm="0.32.0"),
        yes(_OMNI, {_SKIP: True, _LIMIT: {"image": 0, "video": 0}}, vllm="0.32.0"),
        no(_VISION, {_SKIP: True, _LIMIT: {"image": 0, "video": {"count": 0}}}, vllm="0.32.0"),
        no(_AUDIO, {_SKIP: True, _LIMIT: {"audio": 0}}, vllm="0.32.0"),
        no(_VISION, {_SKIP: True, "engine.language_model_only": True}, vllm="0.32.0"),
        no(_VISION, {_SKIP: False}, vllm="0.32.0"),
        no("qwen3", {_SKIP: True}, vllm="0.32.0"),
        unknown(_VISION, {_SKIP: True}),
    ],
)
