"""The frontier of a run on real engines: every pair is measured, and float16 is advised only where it works."""

from __future__ import annotations

from pathlib import Path

import pytest

from quirks_core.cli import main
from worker.lab.parity.frontier import Frontier
from worker.lab.parity.prompts import TEXTS

pytestmark = pytest.mark.usefixtures("forked")

_ENGINE = ("engine.enforce_eager=true", "engine.max_model_len=256", "engine.num_gpu_blocks_override=512")
_ENGINE = (*_ENGINE, "engine.distributed_executor_backend=uni", "env.VLLM_ENABLE_V1_MULTIPROCESSING=0", "env.OMP_NUM_THREADS=1")


@pytest.fixture
def explained(capsys, tmp_path):
    """Measures a model's frontier on the command line."""

    def explain(model: Path, *arguments: str, output: Path | None = None) -> Frontier:
        prompts = tmp_path / "prompts.txt"
        prompts.write_text("\n".join(TEXTS[:3]), encoding="utf-8")
        settings = [part for text in (*_ENGINE, *arguments) for part in ("--set", text)]
        written = ("--output", str(output)) if output else ()
        given = ("--model", str(model), "--tokens", "12", "--prompts", str(prompts), "--target", "0.02", *written)
        assert main(["parity", "explain", "--trainer", "trl", *given, *settings, "--json"]) == 0
        return Frontier.model_validate_json(capsys.readouterr().out)

    return explain


def _means(found: Frontier) -> dict[tuple[str, str], float]:
    return {(pair.engine.name, pair.trainer.name): pair.mean_abs_delta for pair in found.pairs}


def test_every_pair_is_measured_and_float16_is_closer(explained, checkpoint, tmp_path) -> None:
    pytest.importorskip("matplotlib", reason="the picture needs matplotlib: pip install 'model-quirks[parity]'")
    found = explained(checkpoint("llama"), "engine.dtype=bfloat16", "sampling.temperature=0.7", output=tmp_path)

    means = _means(found)
    assert len(means) == 5 * 5
    assert found.temperature == 0.7
    assert (found.now.engine.name, found.now.trainer.name) == ("bf16", "bf16 autocast")
    assert means["fp32", "fp32"] < 1e-4 < means["fp16", "fp16 autocast"] < means["bf16", "bf16 autocast"] / 3
    assert not any(pair.nonfinite for pair in found.pairs)
    assert found.no_float16 == ""
    assert found.best in found.edge or found.best.is_equal
    assert all(side.seconds > 0 and side.memory > 0 for side in (*found.engines, *found.trainers))
    caches = {engine.name: engine.kv_bytes for engine in found.engines}
    assert caches["fp32"] == 2 * caches["fp16"] == 2 * caches["bf16"] == 2 * 2 * 32 * 4, "2 layers, keys and values, 1 head"
    assert {"model.layers.0", "model.layers.1", "lm_head"} <= found.range.layers.keys()
    assert Frontier.model_validate_json((tmp_path / "frontier.json").read_text()) == found
    assert (tmp_path / "frontier.png").read_bytes().startswith(b"\x89PNG")


def test_a_model_that_vllm_refuses_in_float16_is_not_advised_it(explained, checkpoint) -> None:
    found = explained(checkpoint("gemma3"), "engine.dtype=bfloat16")

    assert {engine.name for engine in found.engines if engine.failed} == {"fp16", "fp16, fp32 head"}
    assert "does not support float16" in found.no_float16


def test_a_model_refused_in_float16_is_not_advised_it(explained, checkpoint) -> None:
    """Its trainer, with all weights in bfloat16, is measured alone."""
    trainer = ("train.dtype=bfloat16", "train.autocast=null")
    found = explained(checkpoint("qwen3_next"), "engine.dtype=bfloat16", *trainer)  # its kernels for CPUs take bfloat16 alone

    assert {engine.dtype for engine in found.engines if engine.failed} == {"float16", "float32"}
    assert all("cpu-gdn-bfloat16" in engine.failed for engine in found.engines if engine.failed)
    assert "cpu-gdn-bfloat16" in found.no_float16
    assert found.best is None or not found.best.needs_float16
    assert found.now.trainer.name == "all bf16"
    assert ("bf16", "all fp16") in _means(found)
    assert not any(found.can_be_advised(pair) for pair in found.pairs if pair.trainer.weights == "float16")
