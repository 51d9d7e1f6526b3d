"""Which model runner an engine uses, as the releases of vLLM decide it."""

from __future__ import annotations

from typing import Any

import pytest
from installed import needs_vllm

from quirks_core.declaration.examples import yes
from quirks_core.facts.model_runner import MODEL_RUNNER, runner_of
from quirks_core.facts.unknown import UNKNOWN
from quirks_core.source.vllm_source import INSTALLED

_QWEN3 = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
_MOE = {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 8}
_GRANITE = {"model_type": "granitemoe", "architectures": ["GraniteMoeForCausalLM"], "num_local_experts": 8}
_DEEPSEEK = {"model_type": "deepseek_v32", "architectures": ["DeepseekV32ForCausalLM"]}
_HYBRID = {"model_type": "lfm2", "architectures": ["Lfm2ForCausalLM"], "layer_types": ["conv", "full_attention"]}


def _runner(model: dict[str, Any], settings: dict[str, Any] | None = None, **run: Any) -> Any:
    return yes(model, settings, **run).context().fact(MODEL_RUNNER)


def _drafts(method: str | None, **more: Any) -> dict[str, Any]:
    return {"engine.speculative_config": {"num_speculative_tokens": 1, **({"method": method} if method else {})}, **more}


@pytest.mark.parametrize(
    ("model", "runners"),
    [
        (_QWEN3, {"0.15.1": UNKNOWN, "0.21.0": "v1", "0.22.0": "v2", "0.34.0": UNKNOWN, "0.1.dev5+g123": UNKNOWN}),
        ({**_QWEN3, "quantization_config": {"quant_method": "fp8"}}, {"0.23.0": "v1", "0.24.0": "v2"}),
        ({**_QWEN3, "architectures": ["Gemma3ForCausalLM"]}, {"0.24.0": "v1", "0.25.1": "v2"}),
        (_MOE, {"0.28.0": "v1", "0.29.0": "v2"}),
        (_GRANITE, {"0.26.0": "v2"}),
        (_HYBRID, {"0.28.0": UNKNOWN, "0.29.0": "v2"}),
        ({"model_type": "qwen3"}, {"0.28.0": UNKNOWN}),
        ({**_QWEN3, "architectures": ["Qwen3Model"]}, {"0.26.0": UNKNOWN}),
    ],
)
def test_the_release_decides_by_the_model_on_cuda(model, runners):
    assert {version: _runner(model, vllm=version, platform="cuda") for version in runners} == runners


@pytest.mark.parametrize(
    ("method", "runners"),
    [
        ("ngram", "v1 v1 v1 v1 v2 v2"),
        ("draft_model", "v1 v1 v1 v2 v2 v2"),
        ("medusa", "v1 v1 v1 v1 v1 v2"),
        ("suffix", "v1 v1 v1 v1 v1 v1"),
        ("eagle", "v2 v2 v2 v2 v2 v2"),
        ("deepseek_mtp", "v2 v2 v2 v2 v2 v2"),
    ],
)
def test_a_method_that_v2_lacks_in_a_release_makes_it_v1(method, runners):
    versions = ("0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")

    assert [_runner(_QWEN3, _drafts(method), vllm=version, platform="cuda") for version in versions] == runners.split()


@pytest.mark.parametrize(
    ("model", "settings", "run", "runner"),
    [
        (_QWEN3, _drafts("eagle3", **{"engine.pipeline_parallel_size": 2}), {"vllm": "0.29.0"}, "v1"),
        (_QWEN3, _drafts("eagle3", **{"engine.pipeline_parallel_size": 2}), {"vllm": "0.30.0"}, "v2"),
        (_QWEN3, _drafts(None), {"vllm": "0.33.0"}, UNKNOWN),
        (_QWEN3, _drafts("dflash"), {"vllm": "0.28.0"}, UNKNOWN),
        (_MOE, _drafts("dspark"), {"vllm": "0.26.0"}, "v2"),  # only V2 has it
        (_QWEN3, {"engine.enable_dbo": True}, {"vllm": "0.33.0"}, UNKNOWN),
        (_QWEN3, {"engine.enable_dbo": False, "engine.compilation_config": {"mode": 3}}, {"vllm": "0.33.0"}, "v2"),
        (_QWEN3, {"engine.compilation_config": {"mode": 1}}, {"vllm": "0.30.0"}, UNKNOWN),
        (_DEEPSEEK, {}, {"vllm": "0.30.0", "platform": "rocm"}, UNKNOWN),  # some releases choose otherwise for it there
        (_DEEPSEEK, {}, {"vllm": "0.32.0", "platform": "rocm"}, "v2"),
    ],
)
def test_what_else_vllm_looks_at_decides_or_leaves_it_unknown(model, settings, run, runner):
    assert _runner(model, settings, **{"platform": "cuda", **run}) == runner


@pytest.mark.parametrize(
    ("platform", "variable", "runner"),
    [
        ("cpu", None, "v1"),
        ("cpu", "1", "v2"),
        ("cuda", "0", "v1"),
        ("rocm", None, "v2"),
        ("xpu", None, UNKNOWN),
        (None, None, UNKNOWN),
        ("cuda", "yes", UNKNOWN),
    ],
)
def test_the_variable_decides_before_the_platform(platform, variable, runner):
    env = {} if variable is None else {"VLLM_USE_V2_MODEL_RUNNER": variable}

    assert _runner(_QWEN3, vllm="0.32.0", env=env, **({"platform": platform} if platform else {})) == runner


@needs_vllm
@pytest.mark.parametrize("module", ["vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu.model_runner"])
def test_an_engines_runner_is_known_from_its_modules(module):
    kind = type("GPUModelRunner", (), {"__module__": module})
    of_platform = type("CPUModelRunner", (kind,), {"__module__": "vllm.v1.worker.cpu_model_runner"})

    assert INSTALLED.statement(f"{module}:GPUModelRunner") is not None
    assert runner_of(None) is None
    assert runner_of(of_platform()) == runner_of(kind()) == ("v1" if module.endswith("gpu_model_runner") else "v2")
