"""Patches of built-in quirks as functions, without an engine; their scenarios and `tests/engine` run them in one."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import multiprocessing
from functools import partial
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import save_file  # noqa: E402 - torch may be missing

from quirks_plugins.dtype.apertus_xielu_bfloat16 import wrap_init  # noqa: E402 - torch may be missing
from quirks_plugins.moe_backend.cpu_router_bias import wrap_compute_routing  # noqa: E402 - torch may be missing
from quirks_plugins.runtime.v2_request_limits import wrap_process_inputs  # noqa: E402 - torch may be missing
from quirks_plugins.timeout.dp_coordinator_timeout import wrap_wait_for_addresses  # noqa: E402 - torch may be missing
from quirks_plugins.weight_sync.dummy_tied_head import wrap_initialize_model  # noqa: E402 - torch may be missing
from quirks_plugins.weight_sync.packed_broadcast_order import wrap_consumer  # noqa: E402 - torch may be missing

HEAD, EMBEDDINGS = "lm_head.weight", "model.embed_tokens.weight"
ZEROS, ONES = torch.zeros(3, 2), torch.ones(3, 2)


def test_xielu_gets_the_default_dtype():
    made = []

    wrap_init(lambda _self, *_, **options: made.append(options))(None, 0.8, 0.8)

    assert made == [{"dtype": torch.get_default_dtype()}]


@pytest.mark.parametrize(("arguments", "named"), [((), {"dtype": "int8"}), ((1, 2, 3, 4, "int8"), {})])
def test_xielu_keeps_a_dtype_that_is_named(arguments, named):
    made = []

    wrap_init(lambda _self, *values, **options: made.append((values, options)))(None, *arguments, **named)

    assert made == [(arguments, named)]


def test_addresses_that_have_come_are_read_at_once():
    (received, sent), (alive, _) = multiprocessing.Pipe(duplex=False), multiprocessing.Pipe(duplex=False)
    sent.send("addresses")

    wait = wrap_wait_for_addresses(lambda _self, pipe: pipe.recv())

    assert wait(SimpleNamespace(proc=SimpleNamespace(sentinel=alive.fileno())), received) == "addresses"


@pytest.mark.parametrize("index", [True, False], ids=["index", "one file"])
@pytest.mark.parametrize(
    ("tensors", "load_format", "tied"),
    [
        ({HEAD: ZEROS, EMBEDDINGS: ONES}, "dummy", False),
        ({HEAD: ONES, EMBEDDINGS: ONES}, "dummy", True),
        ({HEAD: ZEROS, EMBEDDINGS: ONES}, "auto", True),  # vLLM itself has looked by then
        ({EMBEDDINGS: ONES}, "dummy", True),
        ({HEAD: ZEROS, EMBEDDINGS: ONES, f"draft.{HEAD}": ZEROS}, "dummy", True),  # which is the head?
    ],
)
def test_the_checkpoint_decides_what_a_dummy_start_ties(tensors, load_format, tied, index, tmp_path):
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    if index:
        save_file(tensors, tmp_path / "one.safetensors")
        weight_map = dict.fromkeys(tensors, "one.safetensors")
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")
    else:
        save_file(tensors, tmp_path / "model.safetensors")
    text = SimpleNamespace(tie_word_embeddings=True)
    whole = SimpleNamespace(tie_word_embeddings=True, get_text_config=lambda: text)
    model_config = SimpleNamespace(model=str(tmp_path), revision=None, hf_config=whole)
    config = SimpleNamespace(model_config=model_config, load_config=SimpleNamespace(load_format=load_format))

    seen = wrap_initialize_model(lambda given: (whole.tie_word_embeddings, text.tie_word_embeddings, given))(config)

    assert seen == (tied, tied, config)


@pytest.mark.parametrize(
    ("drafts", "v2", "wanted", "refused"),
    [(True, True, {"logprob_token_ids": [1]}, True), (True, True, {"logprobs": 1}, False),
     (False, True, {"logprob_token_ids": [1]}, False), (True, False, {"logprob_token_ids": [1]}, False)],
)  # fmt: skip
def test_the_v2_runner_refuses_token_ids_beside_drafts(drafts, v2, wanted, refused):
    from vllm import SamplingParams
    from vllm.exceptions import VLLMValidationError

    config = SimpleNamespace(use_v2_model_runner=v2, speculative_config={} if drafts else None)
    request = SimpleNamespace(sampling_params=SamplingParams(**wanted))
    process = partial(wrap_process_inputs(lambda _: request), SimpleNamespace(vllm_config=config))

    with pytest.raises(VLLMValidationError, match="logprob_token_ids") if refused else contextlib.nullcontext():
        assert process() is request


def test_a_packed_broadcast_is_always_received_on_one_stream():
    from vllm.distributed.weight_transfer.packed_tensor import packed_nccl_broadcast_consumer

    given = []

    @functools.wraps(packed_nccl_broadcast_consumer)
    def consume(*args, **kwargs):
        given.append(inspect.signature(packed_nccl_broadcast_consumer).bind(*args, **kwargs).arguments)

    wrapped = wrap_consumer(consume)
    wrapped(iter(()), None, 0, print)
    wrapped(iter(()), None, 0, print, 2**20, 3, "cpu")
    wrapped(iterator=iter(()), group=None, src=0, post_unpack_func=print, num_buffers=2)

    assert [one["num_buffers"] for one in given] == [1, 1, 1]


@pytest.mark.parametrize(("scoring", "score"), [("softmax", lambda x: x.softmax(1)), ("sigmoid", torch.sigmoid)])
def test_the_correction_bias_chooses_experts_without_groups(scoring, score):
    """The biased scores choose the experts, and the plain ones are their weights, as in transformers."""
    from vllm.model_executor.layers.fused_moe.router.cpu_router import CPURouter

    tokens, experts, top = 5, 8, 2
    logits = torch.randn(tokens, experts, generator=torch.Generator().manual_seed(0))
    bias, nothing = torch.linspace(1, -1, experts), torch.zeros(tokens, experts)
    router = CPURouter(top, experts, scoring_func=scoring, e_score_correction_bias=bias)

    weights, ids = wrap_compute_routing(CPURouter._compute_routing)(router, torch.empty(tokens, 4), logits, None)

    chosen = (score(logits) + bias).topk(top).indices
    expected = score(logits).gather(1, chosen)
    found = nothing.scatter(1, ids.long(), weights)  # the weight of each expert for each token
    assert torch.allclose(found, nothing.scatter(1, chosen, expected / expected.sum(1, keepdim=True)))
