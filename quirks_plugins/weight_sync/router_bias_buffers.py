"""MoE routers that choose experts by a bias: transformers keeps it in a buffer, which many refits do not send.

What happens: tokens go to other experts than in the trainer. Routers like DeepSeek-V3's add a bias, one number per expert
(``e_score_correction_bias``), to the scores by which they choose experts. It is balanced rather than trained by gradients, so
in transformers it is a persistent buffer, and a refit that walks ``named_parameters()`` never sends it. In vLLM it is a
parameter that keeps its value until it is sent (vllm-project/vllm#38746): noise after a dummy start, else the checkpoint's,
which is right unless the trainer balances it.

When it can go: when vLLM's weight transfer refuses to finish without such buffers. For each model type listed, transformers
5.19.0 was checked for the buffer and for its name in a checkpoint, and the source of vLLM 0.32.0 for the parameter of that
name, or for the Transformers backend (dots1, solar_open).
"""

import shutil

from quirks_core import Advise, Quirk, Severity, model_type, no, purpose, report, unknown, yes
from quirks_plugins import conditions as run
from quirks_plugins.kit import Lab, Outcome
from quirks_plugins.weight_sync.gemma4_layer_scalar import constants_from_checkpoint, state_dict_or_checkpoint

_TYPES = (
    *("axk1", "axk2", "deepseek_v3", "deepseek_v32", "deepseek_v4", "dots1", "exaone_moe", "glm4_moe"),
    *("glm4_moe_lite", "glm4v_moe", "glm5_next", "glm_moe_dsa", "hy_v3", "hy_v4", "inkling_mm_model"),
    *("inkling_model", "inkling_text", "kimi_k25", "kimi_linear", "lfm2_moe", "longcat_flash", "mimo_v2_flash"),
    *("minimax_m2", "minimax_m3_vl", "nemotron_h", "solar_open", "step3p7"),
)
_from_checkpoint = run.insists_on_parameters & ~run.insists_on_dummy_weights
_OURS, _OPEN = {"engine.generate_from_dummy": False}, {"engine.load_format": "dummy", "refit.scope": "parameters"}
_PATCHED = "DummyModelLoader.load_weights"
_DUMMY, _PARAMETERS = {"engine.load_format": "dummy"}, {"refit.scope": "parameters"}

QUIRK = Quirk(
    id="router-bias-buffers",
    title="A refit of parameters leaves out the bias that MoE routers in the manner of DeepSeek-V3 choose experts by",
    match=model_type(*_TYPES)
    & (~model_type("nemotron_h") | run.nemotron_h_experts)
    & purpose("rollout")
    & (run.dummy_weights | run.only_parameters),
    adjustments=[
        constants_from_checkpoint(when=run.dummy_weights),
        *state_dict_or_checkpoint("the router's bias", _from_checkpoint),
        Advise(
            "refits send parameters only, so the router's bias stays what it is in the checkpoint: "
            "right as long as the trainer does not balance it",
            when=run.only_parameters & (~run.our_worker | _from_checkpoint),
        ),
    ],
    severity=Severity.WRONG_OUTPUT,
    references=[report("deepspeedai/DeepSpeed/pull/8369"), report("vllm-project/vllm/pull/38746")],
    examples=[
        yes("deepseek_v4", {**_DUMMY, **_PARAMETERS}, vllm="0.33.0", patches=_PATCHED, advises="does not balance it"),
        yes("inkling_mm_model", _DUMMY, vllm="0.32.0", patches=_PATCHED),
        yes("glm4_moe", _OURS, vllm="0.32.0", defaults=_OPEN, patches=_PATCHED, gives={"refit.scope": "state_dict"}),
        yes("deepseek_v3", {**_OURS, **_OPEN}, vllm="0.32.0", patches=_PATCHED, refuses="refit.scope=state_dict"),
        yes(
            "glm4_moe",
            {**_OURS, **_PARAMETERS},
            vllm="0.32.0",
            gives={"engine.load_format": "auto"},
            advises="does not balance it",
        ),
        no("glm4_moe", {"engine.load_format": "auto", "refit.scope": "state_dict"}, vllm="0.32.0"),
        no("glm4_moe", {**_DUMMY, **_PARAMETERS}, vllm="0.32.0", purpose="serve"),
        yes({"model_type": "nemotron_h", "layers_block_type": ["mamba", "moe"]}, _DUMMY, vllm="0.32.0"),
        no({"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*", "n_routed_experts": 8}, _DUMMY, vllm="0.32.0"),
        unknown(settings=_DUMMY, vllm="0.32.0"),
    ],
    cost="at start, reads what the checkpoint holds beside its weights: one number per expert and layer",
)


async def scenario(lab: Lab) -> Outcome:
    """An engine that started from dummy weights generates what the trainer's model does, whose biases are the checkpoint's."""
    trainer, model = lab.trainer(lab.checkpoint("glm4_moe")), lab.folder / "glm4_moe-balanced"
    for name, buffer in trainer.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.neg_().mul_(10)  # to about one, so that it decides: the scores are between 0 and 1
    shutil.copytree(lab.checkpoint("glm4_moe"), model, dirs_exist_ok=True)
    trainer.save_pretrained(model)
    sent = [(name, tensor) for name, tensor in lab.weights(model).items() if not name.endswith("e_score_correction_bias")]
    expected = lab.reference(trainer)
    with lab.llm(model, load_format="dummy") as llm:
        llm.collective_rpc("reload_weights", kwargs={"weights_iterator": sent})
        return lab.same_tokens(lab.greedy_of(llm), expected)
