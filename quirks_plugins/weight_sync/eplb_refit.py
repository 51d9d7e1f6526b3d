"""EPLB moves experts, and a refit loads them into the places where they were at the start.

What happens: after EPLB (the load balancer of expert parallelism) has moved experts, a weight update puts them into other
experts' places: rollouts become garbage, or a little worse, and nothing is reported. The loader's mapping comes from the
initial places, while requests are routed by the current ones. A move that is under way also copies old experts over the new
ones (vllm-project/vllm#55228). ``sharded_rdt`` is the only transfer engine of vLLM that refuses EPLB. A trainer that sends
weights in a way of its own may follow the moves, as prime-rl's does (PrimeIntellect-ai/prime-rl#3583).

When it can go: when vLLM loads into the current places, or refuses such updates.
"""

from quirks_core import Advise, Affected, ModelFlag, Quirk, Require, Severity, StaticProbe, no, report, unknown, yes
from quirks_core.declaration.match import purpose, setting
from quirks_plugins.conditions import our_worker
from quirks_plugins.kit import Lab, Outcome
from quirks_plugins.runs import QWEN3_MOE

_SLOT = "engine.enable_eplb"
_ON = {_SLOT: True}
_NCCL, _OURS = {"engine.weight_transfer_config": {"backend": "nccl"}}, {"engine.generate_from_dummy": False}
_by_vllms_loader = our_worker | setting("engine.weight_transfer_config").is_set()

QUIRK = Quirk(
    id="eplb-refit",
    title="A refit loads experts into the places where they were before EPLB moved them",
    flag=ModelFlag.WEIGHT_SYNC,
    match=purpose("rollout") & setting(_SLOT).is_true(),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=[
        Require(
            _SLOT,
            False,
            reason="a refit does not follow the experts that EPLB has moved",
            remedy=f"set {_SLOT}: false",
            when=_by_vllms_loader,
        ),
        Advise(
            f"make sure that the trainer loads experts into the places where EPLB has moved them, or set {_SLOT}: false; the "
            "loaders of vLLM take the places of the start",
            when=~_by_vllms_loader,
        ),
    ],
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("https://github.com/vllm-project/vllm/pull/55228"),
        report("https://github.com/PrimeIntellect-ai/prime-rl/pull/3583"),
    ],
    evidence=StaticProbe(
        "vllm.model_executor.layers.fused_moe.routed_experts",
        r"physical_to_logical_map = \(\s+EplbState\.build_initial_global_physical_to_logical_map",
    ),
    examples=[
        yes(QWEN3_MOE, {**_ON, **_NCCL}, vllm="0.32.0", refuses=_SLOT),
        yes(QWEN3_MOE, _OURS, vllm="0.26.0", defaults=_ON, gives={_SLOT: False}),
        yes(QWEN3_MOE, _ON, vllm="0.32.0", advises="EPLB has moved them"),
        no(QWEN3_MOE, vllm="0.32.0"),
        no(QWEN3_MOE, {_SLOT: False}, vllm="0.32.0"),
        no(QWEN3_MOE, _ON, vllm="0.32.0", purpose="serve"),
        unknown(QWEN3_MOE, _ON),
    ],
    cost="ranks with popular experts have more to do than others",
)


async def scenario(lab: Lab) -> Outcome:
    """EPLB is off, or a refit loads each expert into the place where it is after EPLB moved it."""
    import torch
    from vllm.distributed.eplb.policy.default import DefaultEplbPolicy
    from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts

    measure, expected = "experts of four places after EPLB moved them", "EPLB is off, or the same"
    plan = lab.plan(lab.checkpoint("qwen3_moe"), {"engine": {"enable_eplb": True, "enable_expert_parallel": True}})
    if any(quirk.id == QUIRK.id for refusal in plan.refusals for quirk in refusal.quirks):
        return Outcome(True, measure, "refused", expected)
    mapping = RoutedExperts.build_expert_params_mapping("gate_proj", "down_proj", "up_proj", num_experts=4)
    loaded = {place: int(name.split(".")[1]) for _, name, place, shard in mapping if shard == "w2"}
    start = torch.tensor([[loaded[place] for place in range(4)]])
    moved = DefaultEplbPolicy.rebalance_experts(torch.tensor([[4.0, 3.0, 2.0, 1.0]]), 4, 1, 1, 2, start)
    got = f"{moved[0].tolist()}, and a refit loads {start[0].tolist()}"
    return Outcome(torch.equal(start, moved), measure, got, expected)
