"""A rollout with a KV connector that keeps the KV cache of old weights is refused."""

from __future__ import annotations

import pytest

from quirks_core.source.vllm_source import INSTALLED
from quirks_plugins.kv_cache.kv_connector_stale import _KEEPERS

CONNECTOR = "engine.kv_transfer_config"
_FOLDER = "vllm.distributed.kv_transfer.kv_connector.v1"
_MODULES = {
    "ExampleConnector": "example_connector",
    "FlexKVConnectorV1": "flexkv_connector",
    "HF3FSKVConnector": "hf3fs.hf3fs_connector",
    "LMCacheConnectorV1": "lmcache_connector",
    "LMCacheMPConnector": "lmcache_mp_connector",
}


@pytest.mark.parametrize("name", _KEEPERS)
def test_a_connector_that_keeps_is_refused_in_a_rollout_and_taken_by_a_server(plan_for, name):
    typed = {CONNECTOR: {"kv_connector": name, "kv_role": "kv_both"}}

    (refusal,) = plan_for("qwen3", typed).refusals
    assert "OffloadingConnector" in refusal.remedy
    assert plan_for("qwen3", {**typed, "purpose": "serve"}).refusals == []


@pytest.mark.parametrize("name", ["OffloadingConnector", "MooncakeStoreConnector", "NixlConnector"])
def test_a_connector_that_forgets_or_keeps_nothing_is_taken(plan_for, name):
    assert plan_for("qwen3", {CONNECTOR: {"kv_connector": name, "kv_role": "kv_both"}}).refusals == []


@pytest.mark.parametrize("name", _KEEPERS)
def test_the_installed_connector_has_no_way_to_clear_its_store(name):
    source = INSTALLED.module_source(f"{_FOLDER}.{_MODULES[name]}")

    assert source is not None
    assert "def reset_cache" not in source
