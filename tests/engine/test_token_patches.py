"""Ids that are not sampled, BOS and EOS, by vLLM's own classes, without an engine."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from quirks_plugins.tokenizer.token_patches import (
    _placeholder_ids,
    wrap_forward_known,
    wrap_generation_config,
    wrap_init_known,
    wrap_tokenize,
)

_KNOWN = {f"token-{number}": number for number in range(6)}


@pytest.fixture
def tokenizer():
    """Returns a tokenizer that knows 6 ids, with the properties of vLLM's."""
    return SimpleNamespace(max_token_id=5, vocab_size=6, get_vocab=lambda: _KNOWN)


@pytest.fixture
def layer(monkeypatch, tokenizer):
    """Makes vLLM's layer for a vocabulary of 8 whose tokenizer knows 6 ids."""
    from vllm import config, tokenizers
    from vllm.model_executor.layers import logits_processor

    model_config = SimpleNamespace(head_dtype=torch.float32, skip_tokenizer_init=False, get_vocab_size=lambda: 8)
    current = SimpleNamespace(model_config=model_config)
    monkeypatch.setattr(logits_processor, "get_current_vllm_config", lambda: current)
    monkeypatch.setattr(config, "get_current_vllm_config", lambda: current)
    monkeypatch.setattr(tokenizers, "cached_tokenizer_from_config", lambda _: tokenizer)
    kind = logits_processor.LogitsProcessor
    monkeypatch.setattr(kind, "__init__", wrap_init_known(kind.__init__))
    monkeypatch.setattr(kind, "forward", wrap_forward_known(kind.forward))
    return lambda rows: kind(rows, logits_as_input=True)


@pytest.mark.parametrize(
    ("largest", "added", "known"),
    [(5, {}, 6), (6, {}, 6), (6, {"<added>": 6}, 7)],
    ids=["an id", "a count, as in vLLM 0.31", "the id of an added token"],
)
def test_ids_unknown_to_the_tokenizer_have_no_probability(layer, tokenizer, largest, added, known):
    tokenizer.max_token_id = largest
    tokenizer.get_vocab = lambda: _KNOWN | added

    found = layer(8)(None, torch.zeros(3, 8)).softmax(-1)

    assert torch.equal(found[:, known:], torch.zeros(3, 8 - known))
    assert torch.allclose(found[:, :known], torch.full((3, known), 1 / known))


def test_an_omni_model_s_image_ids_are_its_thinker_s():
    outer = SimpleNamespace(thinker_config=SimpleNamespace(image_token_id=3))

    assert _placeholder_ids(SimpleNamespace(hf_config=outer, get_vocab_size=lambda: 8)) == [range(3, 4)]


@pytest.mark.parametrize(("rows", "columns"), [(8, 4), (4, 4)], ids=["a part of the vocabulary", "a draft's vocabulary"])
def test_logits_of_other_columns_are_left_alone(layer, rows, columns):
    assert torch.equal(layer(rows)(None, torch.ones(1, columns)), torch.ones(1, columns))


@pytest.mark.parametrize(
    ("text", "asked", "given"), [("<s>a", True, False), ("a", True, True), ("<s>a", False, False), ("a<s>", True, True)]
)
def test_text_that_begins_with_bos_gets_no_special_tokens(text, asked, given):
    from vllm.renderers.params import TokenizeParams

    renderer = SimpleNamespace(get_tokenizer=lambda: SimpleNamespace(bos_token="<s>"))  # noqa: S106 - no password
    tokenize = wrap_tokenize(lambda _self, _prompt, params: params.add_special_tokens)

    found = tokenize(renderer, {"prompt": text}, TokenizeParams(max_total_tokens=None, add_special_tokens=asked))

    assert found is given


@pytest.mark.parametrize(
    ("skipped", "named", "expected"),
    [(True, {}, [1, 106]), (True, {"eos_token_id": 7}, 7), (False, {}, None)],
)
def test_eos_of_the_configuration_counts_as_a_last_resort(skipped, named, expected):
    config = SimpleNamespace(
        skip_tokenizer_init=skipped,
        hf_config=SimpleNamespace(eos_token_id=None),
        hf_text_config=SimpleNamespace(eos_token_id=[1, 106]),
    )

    assert wrap_generation_config(lambda _: dict(named))(config).get("eos_token_id") == expected
