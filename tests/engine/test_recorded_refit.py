"""Refits that copy straight into the model, as recorded at the first one, where no layer packs its weights."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from worker.errors import NotReadyError, RefitError


@pytest.fixture(scope="module")
async def worker(plain_layers, lab):
    """An engine whose layers keep their weights as they are, every second refit compared with the model's loaders."""
    run = {"recipe": "plain", "refit": {"verify_every": 2}}
    with plain_layers(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")  # a test sends a function
        async with lab.worker(lab.checkpoint("qwen3"), run) as worker:
            yield worker


@pytest.fixture(scope="module")
def policies(lab):
    """Two policies; the second one lies in shared memory, from which the engine's processes read."""
    first, second = (lab.trainer(lab.checkpoint("qwen3", seed=seed)) for seed in (1, 2))
    return first, second.share_memory()


async def refitted(worker, policy, lab):
    """Refits, to exactly the policy's weights; returns how many tensors were copied, and how many went through the reload."""
    await worker.refit_async(policy)
    assert lab.same_tokens(await lab.greedy(worker), lab.reference(policy)).passed
    assert await worker.verify_refit_async(policy) == {}
    return worker.last_refit.copied, worker.last_refit.reloaded


async def test_every_refit_after_the_first_copies_every_tensor(worker, policies, lab):
    sent = len(dict(policies[0].named_parameters()))

    found = [await refitted(worker, policies[turn % 2], lab) for turn in range(4)]

    assert found == [(0, sent), (sent, 0), (sent, 0), (sent, 0)]
    assert worker.last_refit.layers == worker.last_refit.unloaded == ()


async def test_copied_tensors_are_verified_in_place(worker, policies):
    for _ in range(2):
        await worker.refit_async(policies[0])
    changed = copy.deepcopy(policies[0])
    changed.model.layers[1].mlp.gate_proj.weight.data[0, 0] += 1

    found = await worker.verify_refit_async(changed)

    assert found == {"model.layers.1.mlp.gate_up_proj.weight": "has other values than its loader would write"}
    assert await worker.verify_refit_async(policies[0]) == {}


async def twice(worker, policy):
    """One of two refits in a row is compared with the model's loaders."""
    for _ in range(2):
        await worker.refit_async(policy)


async def test_wrong_copies_are_refused_until_the_next_refit(worker, policies, lab):
    def swap(running):
        copies = running.weight_transfer_engine._plan._copies
        k, v = (next(name for name in copies if name.endswith(f".{part}_proj.weight")) for part in "kv")
        copies[k], copies[v] = copies[v], copies[k]

    await worker.engine.llm.collective_rpc(swap)

    with pytest.raises(RefitError, match=r"what the model's loaders do, in model\.layers\.0\.self_attn\.qkv_proj\.weight"):
        await twice(worker, policies[1])

    with pytest.raises(NotReadyError, match="a refit failed half-way"):
        await lab.greedy(worker)
    assert (await refitted(worker, policies[0], lab))[0] == 0


async def test_trainers_memory_is_given_back_on_request(worker, policies, lab):
    """Its pages are mapped by the engine's process from the refit on until then."""
    await worker.refit_async(policies[1])
    size = max(tensor.untyped_storage().nbytes() for tensor in policies[1].parameters())

    def mapped():
        maps = [Path(f"/proc/{process.pid}/maps").read_text() for process in worker.engine._members]
        spans = (line.split()[0].split("-") for text in maps for line in text.splitlines() if "shm/torch_" in line)
        return sum(int(end, 16) - int(start, 16) for start, end in spans)

    assert mapped() >= size
    await worker.refitting.forget()
    assert mapped() < size
    assert await refitted(worker, policies[1], lab)
