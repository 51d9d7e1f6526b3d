"""A rotary mapping set in ``hf_overrides`` replaces the checkpoint's entire mapping, and its ``rope_theta`` is lost.

What happens: the model's quality falls with the distance between tokens, and its logprobs differ from the trainer's. Nothing is
logged. Recipes that extend a context by ``hf_overrides: {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, …}}``, without
a ``rope_theta``, cause it. Since transformers 5 ``rope_theta`` is a key inside the mapping. vLLM replaces the mapping as a
whole (``ModelConfig._apply_dict_overrides``), and uses a constant for a missing ``rope_theta``: 10000 for most models, 1e6 for
Qwen2 and Qwen3. The right value is 5e5 for Llama-3 and 5e6 for Qwen3-2507. The mapping's old name, ``rope_scaling``, has the
same effect. With ``type`` instead of ``rope_type``, or without ``original_max_position_embeddings``, the engine does not start
(``KeyError``).

When it can go: when vLLM merges the user's mapping into the checkpoint's, or lets transformers complete it.
"""

from typing import Any

from quirks_core import Default, Match, Quirk, RunContext, Severity, StaticProbe, no, report, setting, unknown, yes
from quirks_plugins.kit import Lab, Outcome
from quirks_plugins.model_config import rope
from quirks_plugins.model_config.evidence import edited, sampled


def _is_incomplete(name: str) -> Match:
    mapping = f"{rope.OVERRIDES}.{name}"
    is_whole = setting(f"{mapping}.rope_theta").is_set() & setting(f"{mapping}.rope_type").is_set()
    return setting(mapping).is_set() & ~is_whole


def _missing(context: RunContext) -> dict[str, Any]:
    found = {}
    for name, typed in rope.typed_mappings(context).items():
        found[name] = rope.lacking(typed, rope.own(context) if rope.is_by_layer(typed) else rope.completed(context, typed))
    return found


_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
_QWEN3 = {"model_type": "qwen3", "rope_theta": 1e6}
_SCALED = {rope.OVERRIDES: {"rope_scaling": _YARN}}
_NEW = {"transformers": "5.19.0"}

QUIRK = Quirk(
    id="rope-scaling-override-theta",
    title="A rope_scaling typed in hf_overrides drops the checkpoint's rope_theta, and vLLM takes a constant",
    match=rope.text_only & (_is_incomplete("rope_parameters") | _is_incomplete("rope_scaling")),
    affected=rope.TRANSFORMERS_5,
    adjustments=Default(rope.OVERRIDES, _missing, reason="the typed mapping replaces the checkpoint's, with its rope_theta"),
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("vllm-project/vllm/pull/20857"),
        report("vllm-project/recipes/pull/856"),
        report("vllm-project/vllm/pull/28542"),
    ],
    evidence=StaticProbe(
        "vllm.config.model", r"It's a dict-valued parameter - set it directly\s+setattr\(config, key, value\)"
    ),
    examples=[
        yes(_QWEN3, _SCALED, packages=_NEW, gives={rope.OVERRIDES: {"rope_scaling": {**_YARN, "rope_theta": 1e6}}}),
        yes(
            {"model_type": "qwen3", "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
            {rope.OVERRIDES: {"rope_parameters": {"type": "yarn", "factor": 4.0}}},
            packages=_NEW,
        ),
        no(_QWEN3, {rope.OVERRIDES: {"rope_parameters": {**_YARN, "rope_theta": 1e6}}}, packages=_NEW),
        no(_QWEN3, {rope.OVERRIDES: {"rope_theta": 5e6}}, packages=_NEW),
        no(_QWEN3, _SCALED, packages={"transformers": "4.57.1"}),
        unknown(_QWEN3, _SCALED),
    ],
)


async def scenario(lab: Lab) -> Outcome:
    """An engine with a typed YaRN mapping computes what a trainer with that mapping in its checkpoint does."""
    # vLLM's constant for Llama is 10000; that for Qwen3 is the value of most of its checkpoints.
    model = edited(lab, "llama", "theta", {"rope_parameters": None, "rope_theta": 5e5})
    trained = edited(lab, "llama", "theta-yarn", {"rope_parameters": None, "rope_theta": 5e5, "rope_scaling": _YARN})
    got = await sampled(lab, model, {"hf_overrides": {"rope_scaling": _YARN}})
    return lab.close_logprobs(got, lab.rescored(lab.trainer(trained), got))
