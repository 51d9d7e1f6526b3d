"""A KV connector that cannot be cleared: after a weight update, prompts get the KV cache of old policies.

What happens: from the second step on rollouts drift away from the trainer, for prompts that were seen before an update.
``pause_generation(clear_cache=True)`` clears vLLM's own blocks and calls the connector, which should clear its store. A
connector without ``reset_cache`` inherits one that does nothing and returns None (``KVConnectorBase_V1``), and
``Scheduler.reset_connector_cache`` treats every result except False as success. vLLM logs this at the level DEBUG only.
Connectors that only carry a request from one engine to the next keep nothing, and neither does HiSparse.

When it can go: when vLLM treats a connector that did not clear its cache as a failure, or these connectors learn to clear it.
"""

from collections.abc import Mapping
from typing import Any

from quirks_core import Advise, Affected, Quirk, Refuse, Severity, StaticProbe, described, no, report, unknown, yes
from quirks_core.declaration.match import Fact, purpose
from quirks_plugins.kit import Lab, Outcome

#: Connectors that store KV blocks for later requests, and in vLLM 0.26.0 to 0.33.0 have no `reset_cache` of their own.
_KEEPERS = ("ExampleConnector", "FlexKVConnectorV1", "HF3FSKVConnector", "LMCacheConnectorV1", "LMCacheMPConnector")

_CONNECTOR = "engine.kv_transfer_config"
_PARTS = "kv_connector_extra_config.connectors"
_named = f"`{'`, `'.join(_KEEPERS[:-1])}` or `{_KEEPERS[-1]}`"
_keeps = Fact(f"{_CONNECTOR}.kv_connector").one_of(*_KEEPERS) | Fact(f"{_CONNECTOR}.{_PARTS}.kv_connector").any_in(*_KEEPERS)
_own_module = (
    Fact(f"{_CONNECTOR}.kv_connector_module_path").is_set() | Fact(f"{_CONNECTOR}.{_PARTS}.kv_connector_module_path").is_set()
)
_may_keep = described(
    _keeps | _own_module,
    f"the KV connector is, or combines, {_named}, or one of a module of its own (`kv_connector_module_path`)",
    "all KV connectors can be cleared",
)
_OFFLOADING = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}
_OWN = {_CONNECTOR: {"kv_connector": "Acme", "kv_connector_module_path": "acme.connector"}}
_LMCACHE = {_CONNECTOR: {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}}


def _combined(*connectors: Mapping[str, Any]) -> dict[str, Any]:
    return {_CONNECTOR: {"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": list(connectors)}}}


QUIRK = Quirk(
    id="kv-connector-stale",
    title="A KV connector that cannot be cleared serves the KV cache of old weights after an update",
    match=purpose("rollout") & _may_keep,
    affected=Affected("vllm", introduced="0.26.0"),  # connectors of older releases were not examined
    adjustments=[
        Refuse(
            "the KV connector in engine.kv_transfer_config keeps the KV cache of old weights when an update clears all caches",
            "drop engine.kv_transfer_config, or take one that can be cleared: OffloadingConnector, MooncakeStoreConnector",
            when=described(_keeps, f"it is, or combines, {_named}", "it is another one"),
        ),
        Advise(
            "make sure that the connector of kv_connector_module_path has a reset_cache that clears its store: vLLM takes one "
            "without as cleared, and prompts then get the KV cache of old weights",
            when=described(_own_module, "it comes from a module of its own", "it is one of vLLM's"),
        ),
    ],
    severity=Severity.WRONG_OUTPUT,
    references=[report("vllm-project/vllm/pull/42695"), report("vllm-project/vllm/pull/57970")],
    evidence=StaticProbe("vllm.v1.core.sched.scheduler", r"self\.connector\.reset_cache\(\) is False"),
    examples=[
        yes(settings=_LMCACHE, vllm="0.32.0", refuses="OffloadingConnector"),
        yes(settings=_combined(_OFFLOADING, _LMCACHE[_CONNECTOR]), vllm="0.32.0", refuses="OffloadingConnector"),
        yes(settings=_OWN, vllm="0.32.0", advises="has a reset_cache"),
        no(settings=_LMCACHE, vllm="0.32.0", purpose="serve"),
        no(settings={_CONNECTOR: _OFFLOADING}, vllm="0.32.0"),
        unknown(settings=_LMCACHE),
    ],
)


async def scenario(lab: Lab) -> Outcome:
    """After an update that clears all caches, prompts that were seen before get the new policy's logprobs; or it is refused."""
    from quirks_core.plan.records import RefusedError

    model = lab.checkpoint("qwen3")
    second = lab.trainer(lab.checkpoint("qwen3", seed=1))
    store = lab.folder / "kv-store"
    store.mkdir(exist_ok=True)
    connector = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(store)},
    }
    # Only whole blocks are stored, and only one of the prompts is longer than the smallest that every platform has.
    values = {"engine": {"vllm_kwargs": {"block_size": 32, "kv_transfer_config": connector}}, "refit": {"clear_cache": True}}
    measure = "largest difference to the new trainer's logprobs, on prompts seen before the update"
    try:
        async with lab.worker(model, values) as worker:
            await worker.refit_async(lab.trainer(model))
            await lab.sample(worker)
            await worker.refit_async(second)
            got = await lab.sample(worker)
    except RefusedError as error:
        return Outcome(True, measure, f"refused: {error.refusals[0].reason}", "refused, or at most 0.001")
    return lab.close_logprobs(got, lab.rescored(second, got), measure=measure)
