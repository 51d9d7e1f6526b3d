"""What built-in quirks say of the installed packages, which examples cannot check: their versions are assumed."""

from __future__ import annotations

import re

import pytest

from quirks_core.source.vllm_source import INSTALLED
from quirks_plugins.kv_cache.kv_connector_stale import _KEEPERS
from quirks_plugins.weight_sync.router_bias_buffers import QUIRK as ROUTER_BIAS

_FOLDER = "vllm.distributed.kv_transfer.kv_connector.v1"
_MODULES = {
    "ExampleConnector": "example_connector",
    "FlexKVConnectorV1": "flexkv_connector",
    "HF3FSKVConnector": "hf3fs.hf3fs_connector",
    "LMCacheConnectorV1": "lmcache_connector",
    "LMCacheMPConnector": "lmcache_mp_connector",
}
#: Types that do not bear the name of the module of transformers with their router; the second is vLLM's own.
_MODULE_OF = {**dict.fromkeys(("inkling_mm_model", "inkling_model", "inkling_text"), "inkling"), "kimi_k25": "deepseek_v3"}
UNREAD = {"VLLM_USE_V1": "1", "VLLM_ATTENTION_BACKEND": "FLASH_ATTN"}


@pytest.mark.parametrize("name", _KEEPERS)
def test_the_installed_connector_has_no_way_to_clear_its_store(name):
    source = INSTALLED.module_source(f"{_FOLDER}.{_MODULES[name]}")

    assert source is not None
    assert "def reset_cache" not in source


@pytest.mark.parametrize("model_type", sorted(ROUTER_BIAS.model_types or ()))
def test_transformers_keeps_the_bias_of_each_model_in_a_buffer(model_type):
    module = _MODULE_OF.get(model_type, model_type)
    source = INSTALLED.module_source(f"transformers.models.{module}.modeling_{module}")

    assert source is not None
    assert re.search(r"self\.(e_score_correction_bias|expert_bias) = nn\.Buffer\(", source)


@pytest.mark.parametrize(("settings", "environ"), [({}, UNREAD), ({"env": UNREAD}, {})], ids=["shell", "configuration"])
def test_unread_variables_are_named_in_one_warning(plan_for, settings, environ):
    plan = plan_for("qwen3", settings, environ=environ)

    (warning,) = [str(warning) for warning in plan.warnings if "unread-environment" in str(warning)]
    assert f"vLLM {plan.context.packages['vllm']} does not read VLLM_ATTENTION_BACKEND, VLLM_USE_V1" in warning
