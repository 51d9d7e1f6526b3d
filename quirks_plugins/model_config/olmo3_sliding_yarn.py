"""OLMo-3 with YaRN: transformers 5.0 to 5.12 scales the rope of sliding-window layers, which the model does not.

What happens: logprobs of rollout and trainer drift apart with length, also at a learning rate of 0. OLMo-3 scales its rope in
layers with full attention alone; transformers 4.57 and 5.13 do so, and those between give all layers one rope
(``Olmo3Model.rotary_emb``). vLLM's own model was right. From 0.29.0 on vLLM runs OLMo-3 on its Transformers backend
(vllm-project/vllm#53615), so that the engine is wrong as well, and the output of ``vllm serve``, too.

When it can go: when transformers 5.12 is no longer in use. The layers' rope was read in 4.57.6, 5.0.0, 5.12.1, 5.13.0 and
5.24.0, and that of all other models with sliding layers compared: OLMo-3 alone lost it.
"""

from quirks_core import Advise, Affected, Quirk, Refuse, Severity, StaticProbe, no, report, unknown, yes
from quirks_core.declaration.match import model_type, package, purpose
from quirks_plugins.model_config.rope import of_kind

_YARN = {"model_type": "olmo3", "rope_scaling": {"rope_type": "yarn", "factor": 8.0}}
_OLD = {"transformers": "5.12.1"}
_on_transformers = package("vllm", introduced="0.29.0")

QUIRK = Quirk(
    id="olmo3-sliding-yarn",
    title="transformers 5.0 to 5.12 applies YaRN to OLMo-3's sliding-window layers, and computes another model",
    match=model_type("olmo3") & of_kind("yarn") & (purpose("rollout") | _on_transformers),
    affected=Affected("transformers", introduced="5.0.0", fixed="5.13.0"),
    adjustments=[
        Refuse(
            "this transformers applies YaRN to sliding-window layers of OLMo-3, and this vLLM runs the model on transformers",
            "install transformers 5.13 or newer; engine.model_impl: vllm does not help, since vLLM has no OLMo-3 of its own",
            when=_on_transformers,
        ),
        Advise(
            "this transformers applies YaRN to sliding-window layers of OLMo-3, so that a trainer with it computes another "
            "model than vLLM: install transformers 5.13 or newer there",
            when=~_on_transformers,
        ),
    ],
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("huggingface/transformers/pull/45945"),
        report("vllm-project/vllm/pull/43419"),
        report("vllm-project/vllm/pull/53615"),
    ],
    evidence=StaticProbe("transformers.models.olmo3.modeling_olmo3", r"self\.rope_type = \{\}", found_means_affected=False),
    examples=[
        yes(_YARN, vllm="0.26.0", packages=_OLD, advises="5.13"),
        yes(_YARN, vllm="0.31.0", packages=_OLD, purpose="serve", refuses="5.13"),
        no(_YARN, vllm="0.26.0", packages=_OLD, purpose="serve"),
        no(_YARN, vllm="0.32.0", packages={"transformers": "5.13.0"}),
        no(_YARN, vllm="0.28.0", packages={"transformers": "4.57.6"}),
        no({"model_type": "olmo3"}, vllm="0.31.0", packages=_OLD),
        unknown(_YARN, vllm="0.31.0"),
    ],
)
