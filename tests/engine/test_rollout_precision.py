"""A trainer of a bfloat16 checkpoint, after one update: how far are the engine's logprobs from its own, in each precision?"""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from worker.lab.kit.lab import PROMPTS


@pytest.fixture(scope="module")
def bfloat16_checkpoint(checkpoint, tmp_path_factory):
    """A checkpoint whose weights and ``config.json`` are bfloat16."""
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


async def test_an_engine_in_the_precision_of_its_trainer_is_closer(bfloat16_checkpoint, lab):
    """In float32 it is ten times closer to a float32 trainer; it follows a trainer that multiplies in float16."""
    trainer = _updated(lab.trainer(bfloat16_checkpoint))
    found, advised, held = {}, {}, {}

    for name, dtype, products in (("plain", "auto", None), ("float32", "float32", None), ("float16", "auto", "float16")):
        values = {"engine": {"dtype": dtype, "load_format": "auto"}, "train": {"dtype": "float32", "autocast": products}}
        async with lab.worker(bfloat16_checkpoint, values) as worker:
            await worker.refit_async(trainer)
            found[name] = await lab.sample(worker)
            advised[name] = "rollout-precision" in {note.quirk for note in worker.plan.warnings}
            held[name] = worker.receipt.processes[-1].engine.get("engine.dtype")

    def differences(products):
        """How far each engine is from the trainer, given the dtype of its products."""
        with torch.autocast("cpu", products or torch.float16, enabled=products is not None):
            return {name: lab.largest_difference(got, lab.rescored(trainer, got)) for name, got in found.items()}

    assert (advised["plain"], advised["float32"], held["float16"]) == (True, False, "float16")
    exact = differences(None)
    assert exact["float32"] * 10 < exact["plain"], exact
    # The first engine is the one that a trainer gets which multiplies in bfloat16.
    assert differences(torch.float16)["float16"] * 3 < differences(torch.bfloat16)["plain"]
