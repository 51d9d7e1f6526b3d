"""Nemotron Nano VL and Omni that start from dummy weights keep noise in the layer scales of their vision tower.

What happens: a rollout that started from dummy weights sees images as noise, also after refits. Text is right, and no error
appears. RADIO, the vision tower, multiplies the output of each block by two parameters, ``ls1`` and ``ls2``. Checkpoints have
none, because they are multiplied into the other weights, so vLLM's model sets them to 1 (``InternVisionEncoderLayer``).
``load_format: dummy`` overwrites them with numbers of ±1e-3, and no trainer sends them; vLLM's loader would skip them.

When it can go: when a dummy load leaves parameters alone that no checkpoint holds, or the loader sets them. NeMo RL loads two
of these models from the checkpoint for that reason, and for the others edits vLLM's loader (NVIDIA-NeMo/RL#3990);
vllm-project/vllm#39767 was closed without a merge.
"""

from quirks_core import Affected, Quirk, Require, Severity, StaticProbe, described, no, report, unknown, yes
from quirks_core.declaration.match import Fact, model_type, purpose, setting
from quirks_plugins.kit import Lab, Outcome

_LOAD = "engine.load_format"
_DUMMY = {_LOAD: "dummy"}
_NAMES = (
    "NemotronH_Nano_Omni_Reasoning_V3",
    "NemotronH_Nano_VL_V2",
    "NemotronH_Omni_Reasoning_V3",
    "NemotronH_Super_Omni_Reasoning_V3",
)
_SUPER = {"model_type": "acme", "architectures": ["NemotronH_Super_Omni_Reasoning_V3"]}

QUIRK = Quirk(
    id="radio-scale-dummy",
    title="A dummy start leaves noise in the layer scales of RADIO, the vision tower of Nemotron Nano VL and Omni",
    match=(
        described(
            model_type(*_NAMES) | Fact("model.architectures").any_in(*_NAMES),
            "the model is a Nemotron Nano VL or Omni (" + ", ".join(f"`{name}`" for name in _NAMES) + ")",
            "the model is no Nemotron Nano VL or Omni",
        )
        & purpose("rollout")
        & ~setting("engine.language_model_only").is_true()
    ),
    affected=Affected("vllm", introduced="0.16.0"),
    adjustments=Require(
        _LOAD,
        "auto",
        instead_of=("dummy",),
        reason="a dummy load overwrites the layer scales of the vision tower, and no refit restores them",
        remedy=f"set {_LOAD}: auto, or engine.language_model_only: true",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[report("vllm-project/vllm/pull/39767"), report("NVIDIA-NeMo/RL/pull/3990")],
    evidence=StaticProbe("vllm.model_executor.models.radio", r'if suffix in \{"ls1", "ls2"\} or [^\n]+\n\s+continue'),
    examples=[
        yes("NemotronH_Nano_Omni_Reasoning_V3", _DUMMY, vllm="0.33.0", refuses=[_LOAD, "engine.language_model_only"]),
        yes(_SUPER, vllm="0.26.0", defaults=_DUMMY, gives={_LOAD: "auto"}),
        yes("NemotronH_Nano_VL_V2", {_LOAD: "safetensors"}, vllm="0.32.0", gives={}),
        no("NemotronH_Nano_VL_V2", {**_DUMMY, "engine.language_model_only": True}, vllm="0.32.0"),
        no("NemotronH_Nano_VL_V2", _DUMMY, vllm="0.32.0", purpose="eval"),
        no("nemotron_h", _DUMMY, vllm="0.32.0"),
        unknown("NemotronH_Nano_VL_V2", _DUMMY),
    ],
    cost="reads the whole checkpoint at every engine start",
)


async def scenario(lab: Lab) -> Outcome:
    """The rollout starts from the checkpoint, or the tower's layer scales are 1 after a dummy load."""
    import json

    model = lab.folder / "nano"
    model.mkdir(parents=True, exist_ok=True)
    (model / "config.json").write_text(json.dumps({"model_type": _NAMES[1], "architectures": [_NAMES[1]]}), encoding="utf-8")
    measure, expected = "layer scales of the vision tower after the start", "from the checkpoint, or 1"
    plan = lab.plan(model, {"engine": {"load_format": None}})
    if plan.value(_LOAD) == "auto":
        return Outcome(True, measure, "from the checkpoint", expected)
    scales = _after_a_dummy_load(f"file://{lab.folder}/group")
    return Outcome(scales == {1.0}, measure, f"between {min(scales):.2g} and {max(scales):.2g}", expected)


def _after_a_dummy_load(group: str) -> set[float]:
    """Makes a RADIO tower of vLLM's in this process, and returns the values of its layer scales after a dummy load."""
    from vllm.config import LoadConfig, VllmConfig, set_current_vllm_config
    from vllm.distributed import parallel_state
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader
    from vllm.model_executor.models.radio import RadioModel
    from vllm.transformers_utils.configs.radio import RadioConfig

    config = RadioConfig("vit_small_patch16_224", image_size=32, cpe_max_size=64)
    config.num_hidden_layers = 1
    with set_current_vllm_config(VllmConfig()):
        parallel_state.init_distributed_environment(1, 0, group, 0, backend="gloo")
        parallel_state.initialize_model_parallel()
        tower = RadioModel(config)
        DummyModelLoader(LoadConfig(load_format="dummy")).load_weights(tower, None)
    named = tower.named_parameters()
    return {number for name, scale in named if name.endswith((".ls1", ".ls2")) for number in scale.flatten().tolist()}
