"""A trainer of a bfloat16 checkpoint, after one update: how far are the engine's logprobs from its own, in each precision?"""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from worker.lab.kit.lab import PROMPTS


@pytest.fixture(scope="module")
def bfloat16_checkpoint(checkpoint, tmp_path_factory):
    """A checkpoint whose weights and ``config.json`` are bfloat16."""
    import shutil

    folder = tmp_path_factory.mktemp("bfloat16") / "qwen3"
    shutil.copytree(checkpoint("qwen3"), folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config.pop("torch_dtype", None)
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}), encoding="utf-8")
    for file in folder.glob("*.safetensors"):
        tensors = {name: tensor.to(torch.bfloat16) for name, tensor in load_file(file).items()}
        save_file(tensors, file, metadata={"format": "pt"})
    return folder


def _updated(trainer):
    """Takes one step of AdamW; afterwards bfloat16 does not hold the weights."""
    optimizer = torch.optim.AdamW(trainer.parameters(), lr=1e-3)
    for prompt in PROMPTS:
        rows = torch.tensor([prompt])
        trainer(rows, labels=rows).loss.backward()
    optimizer.step()
    assert any((weight != weight.to(torch.bfloat16).float()).any() for weight in trainer.parameters())
    return trainer


async def test_a_float32_engine_is_ten_times_closer(bfloat16_checkpoint, shared_lab, lab):
    """An engine in float32 is ten times closer to a float32 trainer."""
    trainer = _updated(shared_lab.trainer(bfloat16_checkpoint))
    advised, differences = {}, {}

    for dtype in ("auto", "float32"):
        values = {"engine": {"dtype": dtype, "load_format": "auto"}, "train": {"dtype": "float32", "autocast": None}}
        async with shared_lab.worker(bfloat16_checkpoint, values) as worker:
            await worker.refit_async(trainer)
            got = await shared_lab.sample(worker)
            advised[dtype] = [note for note in worker.plan.warnings if note.quirk == "rollout-precision"]
        differences[dtype] = lab.largest_difference(got, shared_lab.rescored(trainer, got))

    assert [bool(advised[dtype]) for dtype in ("auto", "float32")] == [True, False]
    assert differences["float32"] * 10 < differences["auto"], differences


async def test_an_engine_follows_a_trainer_in_float16(bfloat16_checkpoint, shared_lab, lab):
    """An engine follows a trainer in float16 and is closer to it."""
    trainer = _updated(shared_lab.trainer(bfloat16_checkpoint))
    dtypes, differences = {}, {}

    for products in ("bfloat16", "float16"):
        values = {"engine": {"dtype": "auto", "load_format": "auto"}, "train": {"dtype": "float32", "autocast": products}}
        async with shared_lab.worker(bfloat16_checkpoint, values) as worker:
            await worker.refit_async(trainer)
            got = await shared_lab.sample(worker)
            dtypes[products] = worker.receipt.processes[-1].engine.get("engine.dtype")
        with torch.autocast("cpu", getattr(torch, products)):
            differences[products] = lab.largest_difference(got, shared_lab.rescored(trainer, got))

    assert dtypes["float16"] == "float16"
    assert differences["float16"] * 3 < differences["bfloat16"], differences
