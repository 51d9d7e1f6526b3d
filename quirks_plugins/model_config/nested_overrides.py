"""``hf_overrides`` of a multimodal model's language model have no effect at the top level, silently.

What happens: an override that works for text models (``max_position_embeddings``, ``rope_parameters``, ``rope_theta``,
``sliding_window``) leaves a multimodal model as it is, also one whose ``config.json`` is flat (Qwen2-VL). A context that should
be longer is not, or the engine refuses the length without naming the cause; a trainer whose ``config.json`` has the new value
computes other logprobs. Multimodal models keep the settings of their language model in ``text_config``, Qwen's omni models in
``thinker_config.text_config``; of a flat file transformers makes such a configuration. vLLM sets an override on the outer
configuration, and reads the inner one (``ModelConfig._apply_dict_overrides``, ``hf_text_config``).

When it can go: when vLLM applies such keys to the language model, or refuses them. vllm-project/vllm#54289 documents the nested
form.
"""

import json
from typing import Any

from quirks_core import Affected, Default, Match, Quirk, Severity, StaticProbe, described, no, report, setting, unknown, yes
from quirks_core.facts.context import RunContext
from quirks_plugins.conditions import nested_language_model
from quirks_plugins.kit import Lab, Outcome

_SLOT = "engine.hf_overrides"
_KEYS = ("max_position_embeddings", "rope_parameters", "rope_scaling", "rope_theta", "sliding_window")
_QWEN2 = {"model_type": "qwen2_vl", "vision_config": {"depth": 32}, "max_position_embeddings": 32768}
_OMNI = {"model_type": "qwen3_omni_moe", "thinker_config": {"text_config": {"rope_theta": 1e6}}}
_LONGER, _THETA, _WINDOW = {"max_position_embeddings": 2048}, {"rope_theta": 5e6}, {"sliding_window": 512}
_GEMMA3 = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "max_position_embeddings": 1024}}


def _misses(key: str) -> Match:
    """The user typed this key at the top level alone."""
    inner = setting(f"{_SLOT}.text_config.{key}").is_set() | setting(f"{_SLOT}.thinker_config.text_config.{key}").is_set()
    return setting(f"{_SLOT}.{key}").is_set() & ~inner


def _nested(context: RunContext) -> dict[str, Any]:
    typed = context.value(_SLOT)
    is_omni = "thinker_config" in context.model.config
    outer = (typed.get("thinker_config") or {}) if is_omni else typed
    inner = outer.get("text_config") or {}
    found = {"text_config": {key: typed[key] for key in _KEYS if key in typed and key not in inner}}
    return {"thinker_config": found} if is_omni else found


_first, _second, _third, _fourth, _fifth = (_misses(key) for key in _KEYS)
_some_key = described(
    _first | _second | _third | _fourth | _fifth,
    f"`{_SLOT}` has one of {', '.join(f'`{key}`' for key in _KEYS)} at its top level and not in `text_config`",
    f"`{_SLOT}` has all of its settings of length, rope and window in `text_config`",
)

QUIRK = Quirk(
    id="nested-overrides",
    title="hf_overrides at the top level do not reach the language model of a multimodal model",
    match=nested_language_model & _some_key,
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Default(_SLOT, _nested, reason="vLLM reads these settings from text_config"),
    severity=Severity.WRONG_OUTPUT,
    references=report("vllm-project/vllm/pull/54289"),
    evidence=StaticProbe(
        "vllm.config.model", r"def _apply_dict_overrides\((?:(?!\n    def )[\s\S])*setattr\(config, key, value\)"
    ),
    examples=[
        yes(
            _GEMMA3,
            {_SLOT: {**_THETA, "text_config": _WINDOW}},
            vllm="0.33.0",
            gives={_SLOT: {**_THETA, "text_config": {**_WINDOW, **_THETA}}},
        ),
        yes(_QWEN2, {_SLOT: _LONGER}, vllm="0.32.0", gives={_SLOT: {**_LONGER, "text_config": _LONGER}}),
        yes(_OMNI, {_SLOT: _THETA}, vllm="0.32.0", gives={_SLOT: {**_THETA, "thinker_config": {"text_config": _THETA}}}),
        no(_GEMMA3, vllm="0.32.0"),
        no("phi4mm", {_SLOT: _WINDOW}, vllm="0.32.0"),
        unknown(_GEMMA3, {_SLOT: _LONGER}),
    ],
)


async def scenario(lab: Lab) -> Outcome:
    """VLLM's configuration of the language model has the length that the user typed."""
    from vllm.engine.arg_utils import EngineArgs

    model, wanted = lab.folder / "multimodal", 2048
    model.mkdir(exist_ok=True)
    inner = json.loads((lab.checkpoint("gemma3") / "config.json").read_text(encoding="utf-8"))
    config = {"model_type": "gemma3", "text_config": inner, "vision_config": {"model_type": "siglip_vision_model"}}
    (model / "config.json").write_text(json.dumps(config), encoding="utf-8")
    # The class of the language model alone, because the multimodal one needs packages for images.
    typed = {"max_position_embeddings": wanted, "architectures": ["Gemma3ForCausalLM"]}
    plan = lab.plan(model, {"engine": {"hf_overrides": typed}})
    arguments = EngineArgs(
        model=str(model), hf_overrides=dict(plan.value(_SLOT)), dtype="float32", skip_tokenizer_init=True, max_model_len=256
    )
    found = arguments.create_model_config().hf_text_config.max_position_embeddings
    return Outcome(found == wanted, "positions of the language model, typed at the top level", str(found), str(wanted))
