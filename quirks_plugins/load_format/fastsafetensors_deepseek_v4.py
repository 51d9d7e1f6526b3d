"""DeepSeek-V4 with the loader ``fastsafetensors``: token salad, also with greedy decoding.

What happens: the engine starts, answers its health check and generates a mixture of languages and digits. The same command with
the default loader is right. It was reported for vLLM 0.26.0 with tensor and expert parallelism over two nodes.

When it can go: when vllm-project/vllm#50772 is closed with a cause.

Evidence: the report alone; the cause is not known, and no engine of that model was run by us.
"""

from quirks_core import Advise, Affected, Quirk, Severity, model_type, no, report, setting, unknown, yes

_FORMAT = "engine.load_format"
_FAST = {_FORMAT: "fastsafetensors"}

QUIRK = Quirk(
    id="fastsafetensors-deepseek-v4",
    title="DeepSeek-V4 that fastsafetensors has loaded generates token salad",
    match=model_type("deepseek_v4", "deepseek_v41") & setting(_FORMAT).one_of("fastsafetensors"),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Advise(
        f"fastsafetensors was seen to load DeepSeek-V4 wrongly, without an error: compare with {_FORMAT}: auto, or take that"
    ),
    severity=Severity.WRONG_OUTPUT,
    references=report("vllm-project/vllm#50772"),
    examples=[
        yes("deepseek_v4", _FAST, vllm="0.26.0", purpose="serve", advises="engine.load_format: auto"),
        no("deepseek_v4", {_FORMAT: "auto"}, vllm="0.26.0"),
        unknown("deepseek_v4", _FAST),
    ],
)
