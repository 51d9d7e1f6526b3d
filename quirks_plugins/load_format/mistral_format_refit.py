"""Mistral's vision models are loaded in Mistral's own format, and trainers send the names of transformers.

What happens: a repository such as Mistral Small's holds the model twice: ``params.json`` with ``consolidated*.safetensors``,
and ``config.json`` with files for transformers. With ``config_format`` and ``load_format`` "auto" vLLM takes the first, and
builds ``PixtralForConditionalGeneration``. Its loader fails at the names of a trainer's parameters (``model.language_model…``),
takes those that transformers saves for the language model and the tower, and drops ``multi_modal_projector.…``, because
Pixtral's projector has other names. Three formats of a start with images belong together, so such a run is only advised: with
``config_format: hf`` alone the engine fails when it profiles images. A trainer that sends Mistral's own names is right with
``mistral``.

When it can go: when the loader of Pixtral takes the names of transformers, or refuses those that it does not know.

Evidence: a tiny model in both formats, from dummy weights, was started in vLLM 0.32.0 on a CPU: as it is, for text with
``config_format: hf``, and for images with ``tokenizer_mode: hf`` as well. No refit of a trained model was run.
"""

from quirks_core import Advise, Affected, Default, Kind, Quirk, Severity, StaticProbe, no, report, unknown, yes
from quirks_core.declaration.match import model_type, purpose, setting, typed
from quirks_plugins.conditions import dummy_weights

_CONFIG, _LOAD = "engine.config_format", "engine.load_format"
_ONLY = {"engine.language_model_only": True}
_TEXT = {_LOAD: "dummy", **_ONLY}
_text_from_dummy = dummy_weights & setting("engine.language_model_only").is_true()

QUIRK = Quirk(
    id="mistral-format-refit",
    title="A vision model of Mistral is loaded in a format in which a refit leaves the projector at its old values",
    kind=Kind.RULE,
    match=purpose("rollout") & model_type("mistral3"),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=[
        Default(_CONFIG, "hf", reason="a trainer sends the names of transformers", when=_text_from_dummy),
        Advise(
            "where the model's folder has Mistral's own format as well (params.json), a trainer's names leave the projector at "
            f"its old values: set {_CONFIG}, engine.tokenizer_mode and {_LOAD} (unless it is dummy) to hf, all of them",
            when=~_text_from_dummy & ~typed(_CONFIG),
        ),
    ],
    severity=Severity.WRONG_OUTPUT,
    references=report("NVIDIA-NeMo/RL/pull/2875"),
    evidence=StaticProbe(
        "vllm.model_executor.models.pixtral", r"param = vision_lang_adapter_dict\.get\(trimmed_name\)\s+if param is not None:"
    ),
    examples=[
        yes("mistral3", _TEXT, vllm="0.32.0", gives={_CONFIG: "hf"}),
        yes("mistral3", {**_TEXT, _CONFIG: "mistral"}, vllm="0.32.0", gives={}),
        yes("mistral3", {_LOAD: "dummy"}, vllm="0.33.0", advises="all of them"),
        yes("mistral3", _ONLY, vllm="0.33.0", defaults={_LOAD: "auto"}, advises="tokenizer_mode"),
        yes("mistral3", {_CONFIG: "mistral", _LOAD: "mistral"}, vllm="0.26.0", gives={}),
        no("mistral3", vllm="0.32.0", purpose="serve"),
        unknown("mistral3"),
    ],
)
