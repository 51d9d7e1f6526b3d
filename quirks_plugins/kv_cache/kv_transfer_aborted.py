"""Prefill and decode apart, over NIXL: one aborted request can end the engine, and with it all data-parallel ranks.

What happens: "assert req_id in self.requests" (``Scheduler._update_from_kv_xfer_finished``), some time after requests were
aborted: by a trainer that drops old samples, a client that hangs up, or a time limit. If both transfers of an aborted request
end in the same step, the first one frees the request, and the second one looks for it.

When it can go: when vLLM passes over requests that are gone. Read in 0.22.0, 0.24.0, 0.26.0, 0.28.0, 0.30.0 and 0.33.0, which
are alike. prime-rl patches the method.

Evidence: that code and the reports; it needs two engines with GPUs, and was not run by us.
"""

from quirks_core import Advise, Affected, Fact, Quirk, Severity, described, no, purpose, report, unknown, yes

_CONNECTOR = "engine.kv_transfer_config"
_PARTS = f"{_CONNECTOR}.kv_connector_extra_config.connectors.kv_connector"
_NIXL = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
_transfers = described(
    Fact(f"{_CONNECTOR}.kv_connector").one_of("NixlConnector") | Fact(_PARTS).any_in("NixlConnector"),
    "the KV connector is, or combines, `NixlConnector`",
    "the KV connector is not `NixlConnector`",
)

QUIRK = Quirk(
    id="kv-transfer-aborted",
    title="An aborted request whose KV transfers end in one step ends an engine with NIXL",
    match=purpose("rollout") & _transfers,
    affected=Affected("vllm", introduced="0.22.0"),
    adjustments=Advise(
        "aborting requests can end this engine while their KV cache is under way: let rollouts finish in place of aborting "
        "them, also around weight updates (/pause?mode=keep), and give clients no time limit of their own"
    ),
    severity=Severity.CRASH,
    references=[report("vllm-project/vllm#46240"), report("PrimeIntellect-ai/prime-rl/pull/2843")],
    examples=[
        yes("qwen3", {_CONNECTOR: _NIXL}, vllm="0.28.0", advises="mode=keep"),
        yes(
            "qwen3",
            {_CONNECTOR: {"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": [_NIXL]}}},
            vllm="0.33.0",
        ),
        no("qwen3", {_CONNECTOR: _NIXL}, vllm="0.28.0", purpose="serve"),
        no("qwen3", vllm="0.28.0"),
        unknown("qwen3", {_CONNECTOR: _NIXL}),
    ],
)
