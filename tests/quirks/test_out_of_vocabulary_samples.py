"""Ids that the tokenizer does not know are not sampled in rollouts."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from quirks_core.configuration.config import SamplingSection
from worker.engine import vllm_adapter
from worker.server.profile import SamplingProfile

SLOT = "tokenizer.only_known_ids"


@pytest.fixture
def padded(tmp_path):
    """Writes a tokenizer of four ids into the folder of the model that is planned for."""
    folder = tmp_path / "model"
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    vocabulary = {token: number for number, token in enumerate("abcd")}
    content = {"added_tokens": [], "model": {"type": "BPE", "vocab": vocabulary, "merges": []}}
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.usefixtures("padded")
@pytest.mark.parametrize(
    ("rows", "changes", "warned"), [(6, {SLOT: True}, 0), (1028, {SLOT: True}, 0), (1029, {}, 1), (4, {}, 0)]
)
def test_rows_that_only_pad_are_ruled_out_as_long_as_a_request_can_hold_them(plan_for, rows, changes, warned):
    outcome = plan_for({"model_type": "qwen3", "vocab_size": rows})

    assert (outcome.changes, len(outcome.warnings)) == (changes, warned)


@pytest.mark.usefixtures("padded")
def test_with_speculative_decoding_vllm_takes_no_bias_so_it_only_says_so(plan_for):
    outcome = plan_for({"model_type": "qwen3", "vocab_size": 6}, {"engine.speculative_config": {"model": "draft"}})

    assert (outcome.changes, len(outcome.warnings)) == ({}, 1)


@pytest.mark.usefixtures("padded")
def test_what_was_typed_stays(plan_for):
    assert plan_for({"model_type": "qwen3", "vocab_size": 6}, {SLOT: False}).statuses == {SLOT: "kept_user"}


@pytest.mark.parametrize(("skipped", "ids"), [(False, range(4, 6)), (True, range(6, 6))])
def test_the_ids_are_those_between_the_tokenizer_and_the_model_and_none_without_a_tokenizer(skipped, ids):
    config = SimpleNamespace(get_vocab_size=lambda: 6, skip_tokenizer_init=skipped)

    assert (
        vllm_adapter.unknown_ids(SimpleNamespace(model_config=config, get_tokenizer=lambda: SimpleNamespace(max_token_id=3)))
        == ids
    )


def test_a_request_to_the_server_gets_the_bias_beside_its_own():
    profile = SamplingProfile(SamplingSection(), fixed=False, longest=10, bias=vllm_adapter.forbidding([4, 5]))
    names = ("temperature", "top_p", "top_k", "stop_token_ids", "stop", "max_tokens", "max_completion_tokens")
    request = SimpleNamespace(**dict.fromkeys(names), logit_bias={"3": 1.0}, model_fields_set=set())

    profile.complete(request)

    assert request.logit_bias == {"3": 1.0, "4": -100.0, "5": -100.0}
