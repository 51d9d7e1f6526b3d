"""The wrapper around the router of vLLM's CPU platform, on the real router and without an engine."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from quirks_plugins.moe_backend.cpu_router_bias import wrap_compute_routing  # noqa: E402 - vllm may be missing

TOKENS, EXPERTS, TOP = 5, 8, 2


@pytest.fixture(scope="module")
def router():
    from vllm.model_executor.layers.fused_moe.router.cpu_router import CPURouter

    compute = wrap_compute_routing(CPURouter._compute_routing)

    def routed(logits, **settings):
        """Returns the weight of each expert for each token, ``[tokens, experts]``."""
        weights, ids = compute(CPURouter(TOP, EXPERTS, **settings), torch.empty(TOKENS, 4), logits, None)
        return torch.zeros(TOKENS, EXPERTS).scatter(1, ids.long(), weights)

    return routed


@pytest.fixture
def logits():
    return torch.randn(TOKENS, EXPERTS, generator=torch.Generator().manual_seed(0))


def expected(scores, bias):
    """The biased scores choose the experts, and the plain ones are their weights, as in transformers."""
    chosen = (scores + bias).topk(TOP).indices
    weights = scores.gather(1, chosen)
    return torch.zeros(TOKENS, EXPERTS).scatter(1, chosen, weights / weights.sum(1, keepdim=True))


@pytest.mark.parametrize(("scoring", "score"), [("softmax", lambda x: x.softmax(1)), ("sigmoid", torch.sigmoid)])
def test_the_correction_bias_chooses_experts_without_groups(router, logits, scoring, score):
    bias = torch.linspace(1, -1, EXPERTS)

    found = router(logits, scoring_func=scoring, e_score_correction_bias=bias)

    assert torch.allclose(found, expected(score(logits), bias))


def test_a_softmax_without_a_bias_is_routed_as_before(router, logits):
    assert torch.allclose(router(logits), expected(logits.softmax(1), 0))
