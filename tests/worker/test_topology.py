"""What processes say of themselves, held against the plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quirks_core.plugins.planning import make_plan
from worker import GenerationConfig
from worker.engine.topology import Expected, Row, Topology
from worker.errors import TopologyError

LAYERS = ("layers.0.experts", "layers.1.experts")
EXPERTS = 8
#: A group of two ranks that share the experts.
SHARED = Expected(strategy="actors", data=2, tensor=1, pipeline=1, experts=2, is_moe=True)
APART = Expected(strategy="independent", data=2, tensor=2, pipeline=1, experts=2, is_moe=True)


def _formed(expected: Expected) -> Topology:
    """What processes report that have formed what is expected."""
    together = expected.stepping_together
    rows = []
    for data in range(expected.data):
        for stage in range(expected.pipeline):
            for tensor in range(expected.tensor):
                flat = tensor if expected.strategy == "independent" else data * expected.tensor + tensor
                share = EXPERTS // expected.experts
                held = range(flat * share, (flat + 1) * share) if expected.experts > 1 else range(EXPERTS)
                layers = [LAYERS[stage]] if expected.pipeline > 1 else LAYERS
                rows.append(
                    Row(
                        engine=0 if expected.strategy == "engine" else data,
                        pid=100 + len(rows),
                        device="cpu",
                        dp_rank=0 if expected.strategy == "independent" else data,
                        dp_size=together,
                        pp_rank=stage,
                        pp_size=expected.pipeline,
                        tp_rank=tensor,
                        tp_size=expected.tensor,
                        ep_rank=flat if expected.experts > 1 else None,
                        ep_size=expected.experts,
                        experts={layer: tuple(held) for layer in layers} if expected.is_moe else {},
                        expert_count=dict.fromkeys(layers, EXPERTS) if expected.is_moe else {},
                        expert_bytes=len(held) << 20 if expected.is_moe else 0,
                    )
                )
    return Topology(tuple(rows))


def _changed(topology: Topology, number: int, **values) -> Topology:
    rows = list(topology.rows)
    rows[number] = replace(rows[number], **values)
    return Topology(tuple(rows))


def _problems(topology: Topology, expected: Expected) -> str:
    with pytest.raises(TopologyError) as caught:
        topology.check(expected)
    return str(caught.value)


RIGHT = {
    "actors": SHARED,
    "actors over TP": replace(SHARED, tensor=2, experts=4),
    "actors over PP": replace(SHARED, pipeline=2),
    "actors without expert parallelism": replace(SHARED, experts=1),
    "one engine": replace(SHARED, strategy="engine"),
    "one engine, dense": replace(SHARED, strategy="engine", experts=1, is_moe=False),
    "independent, EP within TP": APART,
    "independent, dense": replace(APART, experts=1, is_moe=False),
    "alone": replace(SHARED, strategy=None, data=1, experts=1),
}


@pytest.mark.parametrize("expected", RIGHT.values(), ids=RIGHT)
def test_what_was_expected_passes_unless_a_process_is_missing(expected):
    formed, count = _formed(expected), expected.data * expected.tensor * expected.pipeline

    formed.check(expected)
    message = _problems(Topology(formed.rows[:-1]), expected)

    assert f"there are {count - 1} processes instead of {count}" in message


def test_everything_that_is_wrong_is_in_one_error_with_its_process():
    """The trap of NVIDIA-NeMo/RL#1495 is every engine for itself, in groups of 1."""
    sizes = _problems(_changed(_changed(_formed(SHARED), 0, dp_size=1, tp_size=4), 1, pp_size=2, ep_size=1), SHARED)

    first, second = (f"engine {n}, DP {n}, PP 0, TP 0 (process 10{n}) is in a" for n in (0, 1))
    assert sizes.partition(": ")[2].split("; ") == [
        f"{first} data-parallel group of 1 instead of 2",
        f"{first} tensor-parallel group of 4 instead of 1",
        f"{second} pipeline of 2 instead of 1",
        f"{second} expert-parallel group of 1 instead of 2",
    ]


@pytest.mark.parametrize(
    ("expected", "number", "held", "problem"),
    [
        (SHARED, 1, (4, 5, 6), "expert 7 is held by 0 processes instead of 1"),
        (SHARED, 1, (3, 4, 5, 6, 7), "expert 3 is held by 2 processes instead of 1"),
        (replace(SHARED, experts=1), 1, range(7), "expert 7 is held by 1 processes instead of 2"),
        (APART, 3, range(4), "expert 0 is held by 2 processes instead of 1"),
        (replace(SHARED, pipeline=2), 3, (4, 5, 6), "expert 7 is held by 0 processes instead of 1"),
    ],
    ids=["missing", "doubled", "without EP each has all", "each independent engine has all", "stages have their own layers"],
)
def test_a_missing_or_doubled_expert_is_named_with_its_layer(expected, number, held, problem):
    row = _formed(expected).rows[number]

    message = _problems(_changed(_formed(expected), number, experts={**row.experts, LAYERS[1]: held}), expected)

    assert f"{LAYERS[1]}: {problem}" in message
    assert LAYERS[0] not in message


@pytest.mark.usefixtures("shell")
@pytest.mark.parametrize(
    ("model_type", "ranks", "expert_parallel_size", "expected"),
    [
        ("qwen3_moe", 2, 4, RIGHT["actors over TP"]),
        ("qwen3_moe", 2, 2, APART),
        ("qwen3", 2, None, RIGHT["independent, dense"]),
        ("qwen3_moe", 1, None, RIGHT["alone"]),
    ],
)
def test_a_plan_says_what_its_processes_form(model, model_type, ranks, expert_parallel_size, expected):
    folder = model(model_type, **({"num_experts": EXPERTS} if "moe" in model_type else {}))
    engine = {"data_parallel_size": ranks, "tensor_parallel_size": ranks}
    parallel = {"expert_parallel_size": expert_parallel_size}

    plan = make_plan(GenerationConfig.parse({"model": str(folder), "engine": engine, "parallel": parallel}))

    plan.check()
    assert Expected.of(plan) == expected
