"""``VLLM_USE_RUST_FRONTEND=1``: ``vllm serve`` answers requests in another program, which quirks do not reach.

What happens: the program ``vllm-rs`` tokenises and checks requests in the place of vLLM's Python code, so quirks that patch
that code do nothing there; those that patch the engine act as before. Before 0.30.0 the program had no HTTP routes for weight
updates: a trainer's ``POST /init_weight_transfer_engine`` ends with 404. Programs that call ``LLM`` or ``AsyncLLM`` can ignore
the advice, because only ``vllm serve`` reads the variable.

When it can go: when requests are checked in Python again; the routes are there from vLLM 0.30.0 on. No server was run with it
by us.
"""

from quirks_core import Advise, Affected, Kind, Quirk, Severity, StaticProbe, fix, no, report, unknown, yes
from quirks_core.declaration.match import environment, package, purpose, setting

_VARIABLE = "VLLM_USE_RUST_FRONTEND"
_ON = {_VARIABLE: "1"}
_NCCL = {"engine.weight_transfer_config": {"backend": "nccl"}}
_without_routes = purpose("rollout") & setting("engine.weight_transfer_config").is_set() & package("vllm", fixed="0.30.0")
#: The quirks with a patch of what this program does by itself (tests/quirks/test_catalogue.py).
IN_THE_FRONT_END = (
    "double-bos",
    "eos-without-tokenizer",
    "lora-inplace-reload",
    "stop-ids-vocabulary",
    "stop-strings-without-tokenizer",
    "v2-request-limits",
)

QUIRK = Quirk(
    id="rust-frontend",
    title="With vLLM's Rust front end, quirks about requests do nothing, and before 0.30 it takes no weights over HTTP",
    kind=Kind.RULE,
    match=environment(_VARIABLE).one_of("1"),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=[
        Advise(
            f"{_VARIABLE}=1: the program that takes requests has no HTTP routes for weight updates; unset the variable, or "
            "take vLLM 0.30 or later",
            when=_without_routes,
        ),
        Advise(
            f"{_VARIABLE}=1: these quirks do nothing for requests to `vllm serve`: {', '.join(IN_THE_FRONT_END)}",
            when=~_without_routes,
        ),
    ],
    severity=Severity.CRASH,
    references=[report("vllm-project/vllm#51220"), fix("vllm-project/vllm/pull/56567")],
    evidence=StaticProbe("vllm.entrypoints.cli.serve", r"api_server_manager = RustFrontendProcessManager\("),
    examples=[
        yes(settings=_NCCL, vllm="0.29.0", env=_ON, advises="no HTTP routes"),
        yes(settings=_NCCL, vllm="0.30.0", env=_ON, advises="these quirks do nothing"),
        yes(vllm="0.26.0", env=_ON, purpose="serve", advises="v2-request-limits"),
        no(vllm="0.32.0"),
        unknown(env=_ON),
    ],
)
