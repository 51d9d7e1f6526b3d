"""The form of a batch: right-padded prompts in, one unpadded row per sample out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from worker.batch import collate, prompts, routed_experts, sample, seeds, stop_strings
from worker.errors import BatchError

IDS = torch.tensor([[5, 6, 7], [8, 9, 0]])
LENGTHS = torch.tensor([3, 2])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_the_padding_is_cut_off_every_row(dtype):
    assert prompts({"input_ids": IDS.to(dtype), "input_lengths": LENGTHS.to(dtype), "rewards": None}) == [[5, 6, 7], [8, 9]]


@pytest.mark.parametrize(
    ("ids", "lengths", "problem"),
    [
        (None, None, "'input_ids' is missing; 'input_lengths' is missing"),
        (IDS.float(), [3, 2], r"'input_ids' must be an integer .* torch.float32; 'input_lengths' must be .* not list"),
        (IDS.bool(), LENGTHS.float(), r"'input_ids' must be an integer .* torch.bool; 'input_lengths' .* torch.float32"),
        (IDS, torch.tensor([3]), "2 rows of input_ids but 1 input_lengths"),
        (IDS, torch.tensor([0, 4]), r"row 0: input length 0 is outside 1\.\.3; row 1: input length 4 is outside 1\.\.3"),
        (torch.tensor([[5, -100], [-1, 2], [3, -100]]), torch.tensor([1, 2, 2]), "row 1: negative token ids; row 2: negative"),
    ],
)
def test_all_that_is_wrong_with_a_batch_is_in_one_error(ids, lengths, problem):
    data = {name: value for name, value in (("input_ids", ids), ("input_lengths", lengths)) if value is not None}

    with pytest.raises(BatchError, match=f"batch: {problem}"):
        prompts(data)


def test_a_sample_holds_copies_in_one_row_of_the_promised_dtypes():
    generated, logprobs, spans = [7, 8, 9], [-0.5, -1.0, -1.5], [("1", 0, 2), ("2", 2, 3)]
    row = sample([5, 6], generated, logprobs, truncated=True, weight_versions=spans, cached=1)

    for alive in (generated, logprobs, spans):
        alive.clear()

    assert {name: (value.dtype, value.tolist()) for name, value in row.items() if isinstance(value, torch.Tensor)} == {
        "output_ids": (torch.int64, [[5, 6, 7, 8, 9]]),
        "logprobs": (torch.float32, [[0.0, 0.0, -0.5, -1.0, -1.5]]),
        "generation_lengths": (torch.int64, [3]),
        "unpadded_sequence_lengths": (torch.int64, [5]),
        "truncated": (torch.bool, [True]),
        "num_cached_tokens": (torch.int64, [1]),
    }
    assert row["weight_versions"] == [[("1", 0, 2), ("2", 2, 3)]]


def test_samples_come_back_in_order_padded_on_the_right():
    short = sample([1], [2], [-1.0], truncated=False, weight_versions=[("a", 0, 1)])
    long = sample([3, 4], [5, 6], [-2.0, -3.0], truncated=True, weight_versions=[("a", 0, 1), ("b", 1, 2)])

    batch = collate([(1, long), (0, short)], pad_token_id=9)

    assert batch["output_ids"].tolist() == [[1, 2, 9, 9], [3, 4, 5, 6]]
    assert batch["logprobs"].tolist() == [[0.0, -1.0, 0.0, 0.0], [0.0, 0.0, -2.0, -3.0]]
    assert batch["unpadded_sequence_lengths"].tolist() == [2, 4]
    assert batch["truncated"].tolist() == [False, True]
    assert batch["weight_versions"] == [[("a", 0, 1)], [("a", 0, 1), ("b", 1, 2)]]


@pytest.mark.parametrize(
    ("data", "configured", "strings"),
    [
        ({"stop_strings": [["\n", "END"], [], ["END", "?"]]}, ("</s>", "?"), ("\n", "</s>", "?", "END")),
        ({"stop_strings": [None, None, None]}, ("b", "a", "b"), ("a", "b")),
        ({"stop_strings": None}, ("b", "a", "b"), ("a", "b")),
        ({}, (), ()),
    ],
)
def test_every_sample_stops_at_any_of_the_stop_strings(data, configured, strings):
    assert stop_strings(data, 3, configured=configured) == strings


@pytest.mark.parametrize("given", ["ab", [None], [["a"], "b"], [["a"], [1]], [["a"], [""]]])
def test_stop_strings_of_another_form_are_refused(given):
    with pytest.raises(BatchError, match=r"'stop_strings' must hold None or a list of texts .* for each of 2 rows"):
        stop_strings({"stop_strings": given}, 2)


@pytest.mark.parametrize("given", [[3, 4], torch.tensor([3, 4])])
def test_every_row_may_have_a_seed_of_its_own(given):
    assert seeds({"seeds": given}, 2) == {0: 3, 1: 4}
    assert seeds({}, 2) == {}


@pytest.mark.parametrize("given", [[3], [3, None], [3, 4.0], [True, False], torch.tensor([[3], [4]])])
def test_seeds_that_are_not_one_integer_per_row_are_refused(given):
    with pytest.raises(BatchError, match="'seeds' must hold an integer for each of 2 rows"):
        seeds({"seeds": given}, 2)


@pytest.mark.parametrize(
    ("actual", "experts", "dtype", "missing"), [(4, 8, torch.int8, 0), (5, 200, torch.int16, 0), (3, 1 << 17, torch.int32, 1)]
)
def test_experts_are_aligned_with_the_tokens(actual, experts, dtype, missing):
    """As in NeMo RL's batches: -1 where no route was captured, and a plain row for the last token, which nothing computed."""
    found = np.arange(actual * 6, dtype=np.uint8).reshape(actual, 3, 2)

    batch = routed_experts(found, 5, experts)

    rows = batch["routed_experts"]
    assert (rows.shape, rows.dtype) == ((1, 5, 3, 2), dtype)
    assert rows[0, : min(actual, 4)].tolist() == found[:4].tolist()
    assert rows[0, 4 - missing : 4].tolist() == [[[-1, -1]] * 3] * missing
    assert rows[0, 4].tolist() == [[0, 1]] * 3
    counts = [int(batch[f"r3_routed_experts_{name}_routes"]) for name in ("missing", "expected", "actual")]
    assert counts == [missing, 4, actual]
    with pytest.raises(BatchError, match=f"the experts of {actual} tokens for a sample of {actual - 1}"):
        routed_experts(found, actual - 1, experts)


def test_batches_of_samples_with_experts_are_padded_with_none():
    rows = [sample([1] * size, [2], [0.5], truncated=False) for size in (1, 3)]
    with_experts = [{**row, **routed_experts(np.ones((1, 2, 2), np.uint8), row["output_ids"].shape[1], 8)} for row in rows]

    batch = collate(list(enumerate(with_experts)), pad_token_id=0)

    assert batch["routed_experts"].shape == (2, 4, 2, 2)
    assert batch["routed_experts"][0, 2:].tolist() == [[[-1, -1]] * 2] * 2
    with pytest.raises(BatchError, match="only some samples have 'routed_experts'"):
        collate([(0, rows[0]), (1, with_experts[1])], pad_token_id=0)
