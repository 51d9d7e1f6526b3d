"""GGUF with tensor parallelism from vLLM 0.26 on: every rank loads the first rank's part of merged weights.

What happens: the engine starts, and its output is garbage. vLLM reads GGUF by a plugin, vllm-gguf-plugin, whose loaders of
merged columns and of query, key and value take the rank from an argument that vLLM 0.26 no longer passes, so that it is 0.
With one rank, and with vLLM 0.25 or older, the plugin is right.

When it can go: when vllm-gguf-plugin 0.0.5 is no longer in use; the change came a day after that release. Read in 0.0.1 to
0.0.5 and in vLLM 0.25.1, 0.26.0, 0.28.0 and 0.33.0 (``MergedColumnParallelLinear.weight_loader_v2``). The loader of 0.0.5,
called as either release calls it on the second rank, took the first half without the rank, and the second with it. No engine
was run.
"""

from quirks_core import Affected, Quirk, Refuse, Severity, StaticProbe, described, fix, no, report, unknown, yes
from quirks_core.declaration.match import Fact, model_name, package
from quirks_plugins.conditions import TP

_TWO = {"engine.tensor_parallel_size": 2}
_GGUF = {**_TWO, "engine.load_format": "gguf"}
_PLUGIN = {"vllm-gguf-plugin": "0.0.5"}
_named = described(model_name(r"\.gguf$|gguf:\w+$"), "its name is that of a GGUF file", "its name is not that of a GGUF file")
_gguf = described(
    _named | Fact("engine.quantization").one_of("gguf") | Fact("engine.load_format").one_of("gguf"),
    "the checkpoint is GGUF",
    "the checkpoint is not GGUF",
)

QUIRK = Quirk(
    id="gguf-tensor-parallel",
    title="GGUF weights of merged layers are the first rank's on every rank",
    match=_gguf & TP.above(1) & package("vllm", introduced="0.26.0"),
    affected=Affected("vllm-gguf-plugin", introduced="0.0.1", fixed="0.0.6"),
    adjustments=Refuse(
        "this vllm-gguf-plugin loads the first rank's part of merged weights on every rank, and the output is garbage",
        "install vllm-gguf-plugin 0.0.6 or newer (or its main branch), or set engine.tensor_parallel_size: 1",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[report("vllm-project/vllm-gguf-plugin#103"), fix("vllm-project/vllm-gguf-plugin/pull/106")],
    evidence=StaticProbe("vllm_gguf_plugin.quantization.params", r'kwargs\.get\("tp_rank", 0\)'),
    examples=[
        yes("qwen3", {**_TWO, "engine.quantization": "gguf"}, vllm="0.26.0", packages=_PLUGIN, refuses="0.0.6"),
        yes("qwen3", _GGUF, vllm="0.33.0", packages=_PLUGIN, purpose="serve"),
        no("qwen3", _GGUF, vllm="0.25.1", packages=_PLUGIN),
        no("qwen3", _GGUF, vllm="0.33.0", packages={"vllm-gguf-plugin": "0.0.6"}),
        no("qwen3", {"engine.load_format": "gguf"}, vllm="0.33.0", packages=_PLUGIN),
        no("qwen3", _TWO, vllm="0.33.0", packages=_PLUGIN),
        unknown("qwen3", _GGUF, packages=_PLUGIN),
    ],
)
