"""``reload_weights`` works with vLLM's default loader alone: after a sleep of level 2 other loaders cannot bring weights back.

What happens: "Model reloading with `runai_streamer` format" (``NotImplementedError``) in the call that vLLM's documentation and
TRL make after a sleep of level 2 has dropped the weights. Only a loader with ``get_all_weights`` can be asked again:
``DefaultModelLoader`` (`auto`, `safetensors`, `fastsafetensors`, …), and from 0.32.0 on ``runai_streamer``. `dummy` has none
either.

When it can go: when ``BaseModelLoader`` demands the method. Trainers that send weights after waking up are not concerned, our
worker among them. Read in 0.16.0, 0.26.0 and 0.29.0 to 0.33.0.
"""

from quirks_core import Advise, Affected, Kind, Quirk, Severity, StaticProbe, no, package, report, setting, unknown, yes
from quirks_plugins.conditions import our_worker

_FORMAT, _SLEEP = "engine.load_format", {"engine.enable_sleep_mode": True}
_LOADERS = ("bitsandbytes", "dummy", "modelexpress", "runai_streamer_sharded", "sharded_state", "tensorizer")
_streamer = setting(_FORMAT).one_of("runai_streamer") & package("vllm", fixed="0.32.0")

QUIRK = Quirk(
    id="reload-loader",
    title="After a sleep of level 2, reload_weights fails with every loader but the default one",
    kind=Kind.RULE,
    match=setting("engine.enable_sleep_mode").is_true() & (setting(_FORMAT).one_of(*_LOADERS) | _streamer) & ~our_worker,
    affected=Affected("vllm", introduced="0.16.0"),
    adjustments=Advise(
        f"reload_weights cannot read again what {_FORMAT} has loaded: sleep at level 1, send all weights after waking up, or "
        f"set {_FORMAT}: auto"
    ),
    severity=Severity.CRASH,
    crash="Model reloading with",
    references=[report("vllm-project/vllm/pull/58124"), report("huggingface/trl/pull/4571")],
    evidence=StaticProbe("vllm.model_executor.model_loader.dummy_loader", "def get_all_weights", found_means_affected=False),
    examples=[
        yes("qwen3", {**_SLEEP, _FORMAT: "runai_streamer"}, vllm="0.31.0", purpose="serve", advises="level 1"),
        yes("qwen3", {**_SLEEP, _FORMAT: "sharded_state"}, vllm="0.33.0"),
        yes("qwen3", {**_SLEEP, _FORMAT: "dummy"}, vllm="0.26.0"),
        no("qwen3", {**_SLEEP, _FORMAT: "runai_streamer"}, vllm="0.32.0"),
        no("qwen3", {**_SLEEP, _FORMAT: "dummy", "engine.generate_from_dummy": False}, vllm="0.32.0"),
        no("qwen3", {_FORMAT: "tensorizer"}, vllm="0.32.0"),
        unknown("qwen3", {**_SLEEP, _FORMAT: "tensorizer"}),
    ],
)
