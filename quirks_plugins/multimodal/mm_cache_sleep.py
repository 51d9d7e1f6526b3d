"""After a sleep, vLLM before 0.22 loses images and audio that it has seen before: an assertion, then an engine that hangs.

What happens: "Expected a cached item for mm_hash" for the first request with an image of an earlier one, which is every second
step in training. A sleep of level 1 or a pause with ``clear_cache`` empties the cache of the engine's process
(``EngineCore._reset_caches``), while the client's process goes on sending hashes in place of images. Some trainers reset both
caches before each sleep (``reset_mm_cache``), and are not concerned.

When it can go: when vLLM 0.21 is no longer supported. 0.22.0 empties both (vllm-project/vllm#43001). Read in 0.16.0, 0.17.1,
0.20.0, 0.21.0 and 0.22.0.
"""

from quirks_core import Advise, Affected, Fact, Quirk, Severity, StaticProbe, fix, no, report, setting, unknown, yes

_CACHE, _SLEEP = "engine.mm_processor_cache_gb", {"engine.enable_sleep_mode": True}
_VISION = {"model_type": "qwen2_5_vl", "vision_config": {"depth": 2}}

QUIRK = Quirk(
    id="mm-cache-sleep",
    title="After a sleep the engine no longer has the images that its client believes it has",
    match=Fact("model.is_multimodal").is_true()
    & setting("engine.enable_sleep_mode").is_true()
    & ~setting(_CACHE).one_of(0, 0.0),
    affected=Affected("vllm", introduced="0.17.0", fixed="0.22.0"),
    adjustments=Advise(
        "a sleep empties one half of the cache of images only, and the next request with a known one fails: call "
        f"reset_mm_cache before each sleep, set {_CACHE}: 0, or install vLLM 0.22 or newer"
    ),
    severity=Severity.CRASH,
    crash="Expected a cached item for mm_hash",
    references=[report("vllm-project/vllm#42995"), fix("vllm-project/vllm/pull/43001")],
    evidence=StaticProbe(
        "vllm.v1.engine.async_llm", r"if level >= 1:\s+await self\.renderer\.clear_mm_cache_async", found_means_affected=False
    ),
    examples=[
        yes(_VISION, _SLEEP, vllm="0.20.0", advises="reset_mm_cache"),
        no(_VISION, {**_SLEEP, _CACHE: 0}, vllm="0.20.0"),
        no(_VISION, _SLEEP, vllm="0.22.0"),
        no(_VISION, vllm="0.20.0"),
        no("qwen3", _SLEEP, vllm="0.20.0"),
        unknown(_VISION, _SLEEP),
    ],
)
