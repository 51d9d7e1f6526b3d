"""The difference between rollout and trainer on real engines: its parts add up, and what remains is measured."""

from __future__ import annotations

import pytest

from quirks_core.cli import main
from worker.lab.parity.explain import Explanation

pytestmark = pytest.mark.usefixtures("forked")

_ENGINE = ("engine.enforce_eager=true", "engine.max_model_len=256", "engine.num_gpu_blocks_override=512")
_ENGINE = (*_ENGINE, "engine.distributed_executor_backend=uni", "env.VLLM_ENABLE_V1_MULTIPROCESSING=0", "env.OMP_NUM_THREADS=1")


@pytest.fixture
def explained(checkpoint, capsys):
    """Explains a tiny model's difference on the command line."""

    def explain(kind: str, *arguments: str) -> Explanation:
        settings = [part for text in (*_ENGINE, *arguments) for part in ("--set", text)]
        model = ("--model", str(checkpoint(kind)), "--tokens", "12", "--num-prompts", "3")
        assert main(["parity", "explain", "--trainer", "trl", *model, *settings, "--json"]) == 0
        return Explanation.model_validate_json(capsys.readouterr().out)

    return explain


def test_the_shares_add_up_to_the_difference(explained) -> None:
    found = explained("llama", "engine.dtype=bfloat16", "sampling.temperature=0.7")

    assert sum(part.share for part in found.parts) == pytest.approx(found.mean_abs_delta, rel=1e-6)
    assert found.temperature == 0.7
    assert "products in bfloat16 (autocast)" in found.trainer
    shares = {part.what: part.alone for part in found.parts}
    assert shares["the engine's kernels in float32, against transformers"] < 1e-4
    assert shares["the engine's weights rounded to bfloat16"] > 0, "the tiny checkpoint is in float32"
    remains = {(row.engine, row.trainer): row.mean_abs_delta for row in found.remains}
    assert remains["as it is", "as it is"] == pytest.approx(found.mean_abs_delta)
    assert remains["float32", "float32"] < 1e-4 < found.mean_abs_delta / 5
    assert len(remains) == 9
    assert found.failed == {}
    assert all(row.step_seconds > 0 for row in found.remains)
    assert 0 < found.whole["vocab_kl"] < 1
    assert found.whole["vocab_variation"] > 0


def test_the_part_of_a_refused_engine_is_in_the_next_one(explained) -> None:
    found = explained("qwen3_next", "engine.dtype=bfloat16")  # whose kernels for CPUs compute in bfloat16 alone

    assert set(found.failed) == {"float32"}
    assert "cpu-gdn-bfloat16" in found.failed["float32"]
    assert "the engine's layers in bfloat16, against transformers" in {part.what for part in found.parts}
    assert sum(part.share for part in found.parts) == pytest.approx(found.mean_abs_delta, rel=1e-6)


def test_float32_on_both_sides_leaves_nothing_to_try(explained) -> None:
    found = explained("llama", "engine.dtype=float32", "train.dtype=float32", "train.autocast=null")

    assert found.mean_abs_delta < 1e-4
