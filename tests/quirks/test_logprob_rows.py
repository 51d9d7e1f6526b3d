"""The wrappers around vLLM's V1 samplers, on the real samplers and without an engine."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from quirks_plugins.logprobs.token_rows_patches import wrap_rejection_sampler, wrap_sampler  # noqa: E402 - vllm may be missing

VOCABULARY, TOP = 32, 3
IDS = [7, 9, 11, 2, 30]


@pytest.fixture(scope="module")
def metadata():
    from vllm.v1.sample.logits_processor import LogitsProcessors
    from vllm.v1.sample.metadata import SamplingMetadata

    def made(ids, top=TOP, requests=2):
        return SamplingMetadata(
            temperature=None,
            all_greedy=True,
            all_random=False,
            top_p=None,
            top_k=None,
            generators={},
            max_num_logprobs=top,
            no_penalties=True,
            prompt_token_ids=None,
            frequency_penalties=torch.empty(0),
            presence_penalties=torch.empty(0),
            repetition_penalties=torch.empty(0),
            output_token_ids=[[] for _ in range(requests)],
            allowed_token_ids_mask=None,
            bad_words_token_ids={},
            logitsprocs=LogitsProcessors(),
            spec_token_ids=[[] for _ in range(requests)],
            logprob_token_ids=ids,
        )

    return made


@pytest.fixture(scope="module")
def sampler():
    from vllm.v1.sample.sampler import Sampler

    return Sampler()


@pytest.fixture
def logits():
    return torch.randn(2, VOCABULARY, generator=torch.Generator().manual_seed(0))


def row(result, index, width):
    """Returns a row's ids and logprobs, as far as its request reads them."""
    found = result.logprobs_tensors
    return found.logprob_token_ids[index, :width].tolist(), found.logprobs[index, :width].tolist()


@pytest.mark.parametrize("ids", [IDS, IDS[:1]], ids=["more ids than top logprobs", "fewer"])
def test_each_request_of_a_mixed_batch_gets_what_it_gets_alone(sampler, metadata, logits, ids):
    forward = wrap_sampler(type(sampler).forward)

    mixed = forward(sampler, logits.clone(), metadata({0: ids}))

    assert row(mixed, 0, 1 + len(ids)) == row(sampler(logits.clone(), metadata({0: ids}, None)), 0, 1 + len(ids))
    assert row(mixed, 1, 1 + TOP) == row(sampler(logits.clone(), metadata(None)), 1, 1 + TOP)
    assert "gather_specific_token_logprobs" not in vars(sampler)


@pytest.fixture(scope="module")
def rejection(sampler):
    from vllm.platforms import current_platform
    from vllm.v1.sample.rejection_sampler import RejectionSampler

    current_platform.register_triton_kernel_overrides()  # as the worker does, where Triton is missing
    return RejectionSampler(sampler)


@pytest.fixture
def drafted(logits):
    """Logits ``[2 * 3, vocabulary]`` of two requests with two draft tokens each that are accepted, and their metadata."""
    from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

    rows = torch.cat([logits, -logits, logits.flip(1)])
    best = rows.argmax(1).tolist()
    plan = SpecDecodeMetadata.make_dummy([best[:2], best[3:5]], device=torch.device("cpu"))
    plan.target_logits_indices, plan.bonus_logits_indices = torch.tensor([0, 1, 3, 4]), torch.tensor([2, 5])
    return rows, plan


@pytest.mark.parametrize("top", [None, TOP])
def test_drafted_tokens_get_the_logprobs_of_the_given_ids(rejection, metadata, drafted, top):
    rows, plan = drafted
    forward = wrap_rejection_sampler(type(rejection).forward)

    found = forward(rejection, plan, None, rows.clone(), metadata({1: IDS}, top)).logprobs_tensors

    expected = rows.log_softmax(1)[3:, IDS]
    assert torch.allclose(found.logprobs[3:, 1 : 1 + len(IDS)], expected, atol=1e-6)
    assert found.logprob_token_ids[3:, 1 : 1 + len(IDS)].tolist() == [IDS] * 3
    assert "gather_logprobs" not in vars(rejection.sampler)
