"""The wrapper around the router of vLLM's CPU platform, on the real router and without an engine."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from quirks_plugins.moe_backend.cpu_router_bias import wrap_compute_routing  # noqa: E402 - vllm may be missing

TOKENS, EXPERTS, TOP = 5, 8, 2


@pytest.mark.parametrize(("scoring", "score"), [("softmax", lambda x: x.softmax(1)), ("sigmoid", torch.sigmoid)])
def test_the_correction_bias_chooses_experts_without_groups(scoring, score):
    """The biased scores choose the experts, and the plain ones are their weights, as in transformers."""
    from vllm.model_executor.layers.fused_moe.router.cpu_router import CPURouter

    logits = torch.randn(TOKENS, EXPERTS, generator=torch.Generator().manual_seed(0))
    bias, nothing = torch.linspace(1, -1, EXPERTS), torch.zeros(TOKENS, EXPERTS)
    router = CPURouter(TOP, EXPERTS, scoring_func=scoring, e_score_correction_bias=bias)

    weights, ids = wrap_compute_routing(CPURouter._compute_routing)(router, torch.empty(TOKENS, 4), logits, None)

    chosen = (score(logits) + bias).topk(TOP).indices
    expected = score(logits).gather(1, chosen)
    found = nothing.scatter(1, ids.long(), weights)  # the weight of each expert for each token
    assert torch.allclose(found, nothing.scatter(1, chosen, expected / expected.sum(1, keepdim=True)))
