"""``hf_overrides: {"rope_theta": …}`` has no effect, because vLLM reads the value in ``rope_parameters`` instead.

What happens: a run that sets ``rope_theta`` by an override, as before transformers 5, gets an engine with the checkpoint's
value. Contexts are no longer than before, and the trainer, whose ``config.json`` has the new value, computes other logprobs.
Nothing is logged. transformers 5 keeps the value inside of ``rope_parameters``, and vLLM's models read it there. vLLM sets an
override beside that mapping, on the finished configuration (``vllm.transformers_utils.config:get_config`` ends with
``config.update``).

When it can go: when vLLM applies such an override to the mapping.
"""

from typing import Any

from quirks_core import Default, Fact, Quirk, Refuse, RunContext, Severity, StaticProbe, no, report, unknown, yes
from quirks_plugins.kit import Lab, Outcome
from quirks_plugins.model_config import rope
from quirks_plugins.model_config.evidence import edited, sampled

_by_layer = (
    Fact("model.config.rope_parameters.full_attention").is_set()
    | Fact("model.config.rope_parameters.sliding_attention").is_set()
    | Fact("model.config.rope_local_base_freq").is_set()
)


def _in_the_mapping(context: RunContext) -> dict[str, Any]:
    theta = rope.overrides(context)["rope_theta"]
    if typed := rope.typed_mappings(context):
        return {name: {"rope_theta": theta} for name, mapping in typed.items() if not rope.is_by_layer(mapping)}
    return {"rope_parameters": {**rope.completed(context, rope.own(context)), "rope_theta": theta}}


_QWEN3, _THETA = {"model_type": "qwen3", "rope_theta": 1e6}, {"rope_theta": 5e6}
_BY_LAYER = {"model_type": "gemma3_text", "rope_theta": 1e6, "rope_local_base_freq": 1e4}
_OLD, _NEW = {"transformers": "4.57.1"}, {"transformers": "5.19.0"}

QUIRK = Quirk(
    id="rope-theta-override",
    title="hf_overrides.rope_theta has no effect: vLLM goes on with the checkpoint's value",
    match=rope.text_only & rope.typed_theta,
    affected=rope.TRANSFORMERS_5,
    adjustments=[
        Default(rope.OVERRIDES, _in_the_mapping, reason="vLLM reads rope_theta from rope_parameters", when=~_by_layer),
        Refuse(
            "engine.hf_overrides.rope_theta has no effect, and this model has a value for each kind of layer",
            "give engine.hf_overrides.rope_parameters a mapping for each kind of layer (full_attention, sliding_attention), "
            "each with its rope_theta and rope_type",
            when=_by_layer & ~rope.typed_parameters,
        ),
    ],
    severity=Severity.WRONG_OUTPUT,
    references=[report("deepspeedai/DeepSpeed/pull/8345"), report("NovaSky-AI/SkyRL/pull/690")],
    evidence=StaticProbe("transformers.modeling_rope_utils", r'rope_parameters\.setdefault\("rope_theta", rope_theta\)'),
    examples=[
        yes(
            _QWEN3,
            {rope.OVERRIDES: _THETA},
            packages=_NEW,
            gives={rope.OVERRIDES: {**_THETA, "rope_parameters": {"rope_type": "default", **_THETA}}},
        ),
        yes(_BY_LAYER, {rope.OVERRIDES: _THETA}, packages=_NEW, refuses="each kind of layer"),
        no(_QWEN3, packages=_NEW),
        no(_QWEN3, {rope.OVERRIDES: _THETA}, packages=_OLD),
        unknown(_QWEN3, {rope.OVERRIDES: _THETA}),
    ],
)


async def scenario(lab: Lab) -> Outcome:
    """An engine with a typed rope_theta computes what a trainer with that value in its checkpoint does."""
    trained = edited(lab, "qwen3", "theta", {"rope_parameters": None, "rope_theta": 1e6})
    got = await sampled(lab, lab.checkpoint("qwen3"), {"hf_overrides": {"rope_theta": 1e6}})
    return lab.close_logprobs(got, lab.rescored(lab.trainer(trained), got))
