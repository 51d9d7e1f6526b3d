"""Mistral's vision models are loaded in Mistral's own format, and trainers send the names of transformers.

What happens: a refit fails, or leaves the projector of images at its old values, silently. A repository such as Mistral Small's
holds the model twice: ``params.json`` with ``consolidated*.safetensors``, and ``config.json`` with files for transformers. With
``config_format`` and ``load_format`` "auto" vLLM takes the first, and builds ``PixtralForConditionalGeneration``. There the
names of a trainer's parameters (``model.language_model…``) fail. The loader takes the names that transformers saves for the
language model and the tower. It drops ``multi_modal_projector.linear_1`` and the others of the projector without a word,
because Pixtral's projector has other names (``w_in``, ``w_out``).

What this changes: in rollouts ``engine.config_format`` becomes ``hf``, and ``engine.load_format`` ``hf`` where it is ``auto``.
vLLM then builds ``Mistral3ForConditionalGeneration``, which takes the names of transformers. An explicit value stays: a trainer
that sends Mistral's own names is right with ``mistral``. Where the files for transformers have no index, vLLM reads those of
both formats and fails; start such a model with ``load_format: dummy``. NeMo RL sets ``config_format`` for the same reason.

When it can go: when the loader of Pixtral takes the names of transformers, or refuses those that it does not know.

Evidence: ``get_config``, ``DefaultModelLoader`` and ``PixtralForConditionalGeneration.load_weights`` were read in vLLM 0.26.0
and 0.33.0, where the last is the same; a static probe. The names are those of a small model, and of its saved file, with
transformers 5.19.0. No refit of such a model was run.
"""

from __future__ import annotations

from quirks_core import (
    Affected,
    Default,
    Kind,
    ModelFlag,
    Quirk,
    Severity,
    StaticProbe,
    model_type,
    no,
    purpose,
    report,
    setting,
    unknown,
    yes,
)

_CONFIG, _LOAD = "engine.config_format", "engine.load_format"
_HF = {_CONFIG: "hf"}

QUIRK = Quirk(
    id="mistral-format-refit",
    title="A vision model of Mistral is loaded in a format in which a refit leaves the projector at its old values",
    flag=ModelFlag.LOAD_FORMAT,
    kind=Kind.RULE,
    match=purpose("rollout") & model_type("mistral3"),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=[
        Default(_CONFIG, "hf", reason="a trainer sends the names of transformers"),
        Default(_LOAD, "hf", reason="the files in Mistral's format have other names", when=setting(_LOAD).one_of("auto")),
    ],
    severity=Severity.WRONG_OUTPUT,
    references=report("https://github.com/NVIDIA-NeMo/RL/pull/2875"),
    evidence=StaticProbe(
        "vllm.model_executor.models.pixtral",
        r"param = vision_lang_adapter_dict\.get\(trimmed_name\)\s+if param is not None:",
        found_means_affected=True,
    ),
    examples=[
        yes("mistral3", {_LOAD: "dummy"}, vllm="0.32.0", gives=_HF),
        yes("mistral3", vllm="0.33.0", defaults={_LOAD: "auto"}, gives={**_HF, _LOAD: "hf"}),
        yes("mistral3", {_CONFIG: "mistral", _LOAD: "mistral"}, vllm="0.26.0", gives={}),
        no("mistral", vllm="0.32.0"),
        no("mistral3", vllm="0.32.0", purpose="serve"),
        unknown("mistral3"),
    ],
)
