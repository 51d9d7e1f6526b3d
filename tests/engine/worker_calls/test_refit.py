"""Refits of a running engine: by every transport, from trainers here and elsewhere, and what is left when one fails."""

from __future__ import annotations

import asyncio
import copy
import stat
from pathlib import Path

import pytest
import torch
from patience import settled

from worker.errors import (
    GenerationAbortedError,
    NotReadyError,
    RefitError,
    RefitRejectedError,
    SleepError,
)
from worker.refit.transport.channel import free_port

IP = "127.0.0.1"
#: Tensors after which the engine has begun to load: the trainer fills the third buffer only when the first was taken.
TOUCHED = 12


def info(policy):
    """What the policy's trainer would announce."""
    return {name: (tensor.shape, tensor.dtype) for name, tensor in policy.model.named_parameters()}


def without(policy, *endings):
    """The policy's model, some parameters left out."""
    model = copy.deepcopy(policy.model)
    for name, _ in policy.model.named_parameters():
        if name.endswith(endings):
            layer, _, own = name.rpartition(".")
            delattr(model.get_submodule(layer), own)
    return model


@pytest.fixture
async def joined(worker, trainer_process):
    """A trainer with a group of its own and the engine's."""
    port = free_port(IP)
    async with trainer_process("collective", port) as trainer:
        await worker.init_collective_async(0, IP, port, 2)
        yield trainer


@pytest.fixture
async def connected(worker, trainer_process):
    """A trainer that knows the engine's sockets."""
    async with trainer_process("ipc_zmq", *await worker.report_refit_addresses_async()) as trainer:
        yield trainer


@pytest.fixture(params=["ipc_zmq", "collective"])
def elsewhere(request):
    """A trainer in a process of its own, and the worker's call that receives from it."""
    trainer = request.getfixturevalue({"ipc_zmq": "connected", "collective": "joined"}[request.param])
    worker = request.getfixturevalue("worker")
    calls = {"ipc_zmq": worker.update_weights_via_ipc_zmq_async, "collective": worker.update_weights_from_collective_async}
    return trainer, calls[request.param]


async def test_a_trainers_process_refits_repeatedly(worker, policies, elsewhere, holds):
    trainer, update = elsewhere
    await worker.prepare_refit_info_async(info(policies.b))

    for policy in (policies.b, policies.a, policies.b):
        trainer.send(policy.file)
        assert await update() is True
        assert await trainer.says() == "sent"
        outcome = await holds(policy)
        assert outcome.passed, outcome


async def test_a_refit_that_is_not_as_announced_is_rejected(worker, policies, elsewhere, holds):
    trainer, update = elsewhere
    announced = info(policies.b)
    announced["model.norm.weight"] = ((7,), torch.float32)
    await worker.prepare_refit_info_async({**announced, "model.extra": ((1,), "int8")})

    trainer.send(policies.b.file)
    with pytest.raises(RefitRejectedError) as caught:
        await update()

    answer = await trainer.says()
    assert "1 missing: model.extra; 1 different: model.norm.weight is float32 [64]" in str(caught.value)
    assert "the engine keeps the weights it had (version 'a')" in str(caught.value)
    assert "reject" in answer
    assert (await holds(policies.a)).passed

    await worker.prepare_refit_info_async(info(policies.b))
    trainer.send(policies.b.file)
    assert await update()
    assert (await holds(policies.b)).passed


async def test_a_trainer_that_dies_half_way_is_told_of_until_a_refit(
    worker, policies, elsewhere, lab, holds, sampling, generated, unfinished
):
    """By the engine: requests in flight end, and later ones are refused until a complete refit."""
    trainer, update = elsewhere
    sampling(max_new_tokens=900)
    consumer = asyncio.create_task(anext(worker.generate_async(lab.batch_of(lab.PROMPTS))))
    await generated(requests=3)
    updating = asyncio.create_task(update())
    trainer.send(policies.b.file, stop_after=TOUCHED)
    assert await trainer.says() == "half-way"

    trainer.process.kill()

    with pytest.raises(RefitError, match="a refit failed half-way"):
        await updating
    with pytest.raises(GenerationAbortedError, match="generation was aborted: a refit failed half-way"):
        await consumer
    assert unfinished() == 0
    with pytest.raises(NotReadyError, match="refit once more, completely, or call restart_async"):
        await anext(worker.generate_async(lab.batch_of(lab.PROMPTS)))
    with pytest.raises(NotReadyError):
        await anext(worker.generate_text_async({"prompts": ["Hello"]}))

    sampling(max_new_tokens=lab.NEW_TOKENS)
    await worker.refit_async(policies.b.model)

    assert (await holds(policies.b)).passed
    assert await worker.verify_refit_async(policies.b.model) == {}


async def test_a_trainer_that_dies_at_once_leaves_the_old_weights(policies, elsewhere, holds):
    trainer, update = elsewhere
    updating = asyncio.create_task(update())
    trainer.send(policies.b.file, stop_after=0)
    assert await trainer.says() == "half-way"

    trainer.process.kill()

    with pytest.raises(RefitError, match=r"the engine keeps the weights it had \(version 'a'\)"):
        await updating
    assert (await holds(policies.a)).passed


async def test_a_group_that_nobody_opened_cannot_be_received_from(worker):
    worker.refitting.joined = False

    with pytest.raises(RefitError, match="call init_collective_async"):
        await worker.update_weights_from_collective_async()


@pytest.mark.parametrize(("rank_prefix", "world_size", "train_world_size"), [(0, 1, 1), (-1, 2, 1), (1, 2, 1), (0, 2, 0)])
async def test_a_group_without_a_rank_for_this_engine_is_refused(worker, rank_prefix, world_size, train_world_size):
    with pytest.raises(RefitError, match="leaves no rank for this engine"):
        await worker.init_collective_async(rank_prefix, IP, 1, world_size, train_world_size)


async def test_a_caller_that_is_cancelled_leaves_a_whole_refit_behind(worker, policies, holds):
    calling = asyncio.create_task(worker.refit_async(policies.b.model, version="b"))
    await settled(lambda: worker.refitting.lock.locked())

    calling.cancel()

    with pytest.raises(asyncio.CancelledError):
        await calling
    assert worker.engine.readiness.version == "b"
    assert (await holds(policies.b)).passed


async def test_a_caller_cancelled_before_its_turn_changes_nothing(worker, policies, holds):
    first = asyncio.create_task(worker.refit_async(policies.b.model, version="b"))
    second = asyncio.create_task(worker.refit_async(policies.a.model, version="never"))
    await settled(lambda: worker.refitting.lock.locked())

    second.cancel()

    await asyncio.gather(first, second, return_exceptions=True)
    assert worker.engine.readiness.version == "b"
    assert (await holds(policies.b)).passed


async def test_verification_takes_the_weights_once_more(worker, policies, elsewhere):
    """Verification takes the weights once more from the trainer's process."""
    trainer, update = elsewhere
    trainer.send(policies.b.file)
    await update()
    assert await trainer.says() == "sent"

    trainer.send(policies.b.file)
    same = await worker.verify_refit_async()
    assert await trainer.says() == "sent"
    trainer.send(policies.a.file)
    other = await worker.verify_refit_async()
    assert await trainer.says() == "sent"

    assert same == {}
    expected = {"model.embed_tokens.weight", "model.norm.weight", "model.layers.1.self_attn.qkv_proj (as it computes)"}
    assert expected <= other.keys()


async def test_parameters_that_a_refit_leaves_out_are_named(worker, policies, holds):
    await worker.refit_async(without(policies.b, "norm.weight"), version="b without norms")

    (note,) = [text for text in worker.warnings if "refits do not reach" in text]
    assert "model.layers.0.input_layernorm.weight" in note
    assert "(5 parameters in all)" in note
    assert not (await holds(policies.b)).passed
    differing = await worker.verify_refit_async(policies.b.model)
    assert {name.rpartition(".")[0].rpartition(".")[2] for name in differing} == {
        "input_layernorm",
        "post_attention_layernorm",
        "norm",
    }


@pytest.mark.parametrize(
    ("left_out", "lacking"), [("k_proj.weight", "qkv_proj lacks k"), ("up_proj.weight", "gate_up_proj lacks 1")]
)
async def test_half_of_a_fused_layer_is_an_error(worker, policies, lab, holds, left_out, lacking):
    """Half of a fused layer is an error because the other half would be garbage."""
    with pytest.raises(RefitError, match=rf"the trainer sends only parts: model\.layers\.0\.\w+\.{lacking}"):
        await worker.refit_async(without(policies.b, left_out))

    with pytest.raises(NotReadyError, match=lacking):
        await anext(worker.generate_async(lab.batch_of(lab.PROMPTS)))
    await worker.refit_async(policies.b.model)
    assert (await holds(policies.b)).passed


async def test_the_sockets_lie_in_a_folder_of_this_user_alone(worker, policies, connected):
    """And they lie there only while they are needed."""
    (address,) = map(Path, await worker.report_refit_addresses_async())
    updating = asyncio.create_task(worker.update_weights_via_ipc_zmq_async())
    await settled(lambda: address.exists() and stat.S_IMODE(address.stat().st_mode) == 0o600)

    folder = stat.S_IMODE(address.parent.stat().st_mode)
    connected.send(policies.a.file)
    await updating

    assert folder == 0o700
    assert not [entry for entry in address.parent.iterdir() if entry.is_socket()]


async def test_an_engine_on_the_processor_says_that_it_cannot_sleep(worker, policies, holds):
    with pytest.raises(SleepError, match="vLLM's CPU platform cannot give memory back"):
        await worker.sleep_async(2)
    with pytest.raises(SleepError, match="tags are a list of"):
        await worker.wake_up_async(tags=["weight"])

    assert (await holds(policies.a)).passed
