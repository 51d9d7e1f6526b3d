"""Which pair of dtypes is taken, and what is said of it."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import AutoModelForCausalLM

from worker.lab.cli.parity import show_frontier
from worker.lab.parity.explain import range_of
from worker.lab.parity.frontier import LARGEST, Frontier, Pair, Range, Side
from worker.lab.parity.records import Sample


def _engine(dtype: str, gb: float, head: str = "", **values) -> Side:
    return Side(side="engine", dtype=dtype, head=head or dtype, weights=dtype, seconds=1.0, memory=gb, **values)


def _trainer(dtype: str, gb: float, weights: str = "float32") -> Side:
    return Side(side="trainer", dtype=dtype, head=dtype, weights=weights, seconds=1.0, memory=gb)


BF16, FP16, FP32 = _engine("bfloat16", 1.0), _engine("float16", 1.0), _engine("float32", 2.0)
IN_BF16, IN_FP16, IN_FP32 = _trainer("bfloat16", 1.0), _trainer("float16", 1.0), _trainer("float32", 1.2)
#: Mean |Δ| of SmolLM2-135M on an H200.
MEANS = {
    (BF16, IN_BF16): 0.041, (BF16, IN_FP16): 0.034, (FP16, IN_BF16): 0.027, (FP16, IN_FP16): 0.005, (FP16, IN_FP32): 0.0041,
    (FP32, IN_FP32): 0.0018,
}  # fmt: skip


def _frontier(means=MEANS, *, largest=1e3, nonfinite=(), target=0.01, engines=(BF16, FP16, FP32), beyond=0) -> Frontier:
    pairs = [
        Pair(engine=one, trainer=two, mean_abs_delta=mean, max_abs_delta=mean, kl_k3=mean, nonfinite=(one, two) in nonfinite)
        for (one, two), mean in means.items()
    ]
    layers = {"model.layers.0": 10.0, "model.layers.1": largest}
    found = Range(layers=layers, beyond=beyond, below=7, weights=1000)
    trainers, versions = (IN_BF16, IN_FP16, IN_FP32), {"vllm": "0.33.0"}
    sides = {"engines": engines, "trainers": trainers, "pairs": pairs, "range": found, "versions": versions}
    return Frontier(model="m", device="cpu", temperature=1.0, tokens=512, target=target, **sides)


def test_of_about_equal_costs_equal_dtypes_are_taken() -> None:
    found = _frontier()

    assert found.best == Pair(engine=FP16, trainer=IN_FP16, mean_abs_delta=0.005, max_abs_delta=0.005, kl_k3=0.005, nonfinite=0)
    assert found.advice == (
        "fp16 on both sides (engine.dtype=float16; train.dtype=float32, train.autocast=float16) leaves 0.005 nats where "
        "bf16 on both sides leaves 0.041: 8.2 times closer, KL k3 0.005 instead of 0.041, at 1 times the cost."
    )
    assert [pair.mean_abs_delta for pair in found.edge] == [0.005, 0.0041, 0.0018]


def test_a_smaller_target_costs_more() -> None:
    assert (best := _frontier(target=0.003).best)
    assert best.name == "fp32 on both sides"


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"largest": 7e4}, "an activation in model.layers.1 is 70000, and float16 ends at 65504"),
        ({"largest": math.nan}, "an activation in model.layers.1 is nan"),
        ({"beyond": 5}, "5 weights are beyond 65504, where float16 ends"),
        ({"nonfinite": [(FP16, IN_FP16)]}, "1 logprobs in float16 are no numbers"),
        ({"engines": (BF16, _engine("float16", 0, failed="no float16 here"))}, "the engine refuses it: no float16 here"),
    ],
)
def test_float16_is_not_advised_where_it_does_not_work(values, why) -> None:
    found = _frontier(**values)

    assert found.no_float16.startswith(why)
    assert not any(found.can_be_advised(pair) for pair in found.pairs if pair.needs_float16)
    assert found.best.name == "fp32 on both sides"


def test_weights_in_float16_are_not_advised() -> None:
    """A gradient scaler refuses them."""
    found = _frontier({(BF16, IN_BF16): 0.041, (FP16, _trainer("float16", 0.5, weights="float16")): 0.005})

    assert found.best is None
    assert found.advice.startswith("No pair is within 0.01 nats; bf16 on both sides")


def test_a_run_within_the_target_is_left_unless_one_is_cheaper() -> None:
    kept = _frontier({(FP16, IN_FP32): 0.0041, (FP16, IN_FP16): 0.005})
    cheaper = _frontier({(FP32, IN_FP32): 0.0018, (FP16, IN_FP16): 0.005})

    assert kept.advice == "Nothing to change: the run as it is leaves 0.0041 nats, within 0.01."
    assert cheaper.advice.startswith("fp16 on both sides")


def test_a_terminal_shows_every_pair_with_its_costs(screened) -> None:
    text = screened(
        lambda screen: show_frontier(screen, _frontier(engines=(BF16, _engine("float32", 0, failed="no memory")))), width=80
    )

    rows = [line.split() for line in text.splitlines()]
    assert ["fp16", "fp16", "autocast", "0.005", "0.005", "0.005", "1.00", "*"] in rows
    assert ["bf16", "bf16", "autocast", "0.041", "0.041", "0.041", "1.00", "now"] in rows
    assert "engine fp32: no memory" in text
    assert "of 1000 weights 0 are beyond that, and 7 below its smallest number" in " ".join(text.split())


def test_what_float16_cannot_hold_is_read_from_the_model(tiny_checkpoint) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_checkpoint("llama"))
    with torch.no_grad():
        weight = model.get_parameter("model.layers.0.self_attn.o_proj.weight").view(-1)
        weight[:5], weight[5:8] = 1e5, 1e-9

    found = range_of(model, [Sample(prompt=(5, 6), tokens=(7, 8), rollout=(0.0, 0.0))])

    assert (found.beyond, found.below) == (5, 3)
    assert found.largest[1] > LARGEST
    assert {"model.layers.0", "model.layers.1", "lm_head"} <= found.layers.keys()
