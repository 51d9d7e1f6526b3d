"""What is remembered of a trainer's model between two refits, and what makes it be described anew."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.multiprocessing.reductions import StorageWeakRef

from worker.errors import RefitError
from worker.refit import Manifest, Source, tensors
from worker.refit.weights import scope
from worker.refit.weights.snapshot import Snapshot

CPU = torch.device("cpu")


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).share_memory()


@pytest.fixture
def layouts(monkeypatch):
    """The models whose tensors were looked at whole."""
    seen = []

    def layout(model, wanted):
        seen.append(model)
        return scope.layout(model, wanted)

    monkeypatch.setattr("worker.refit.weights.source.layout", layout)
    return seen


def test_a_source_has_what_is_sent(model):
    """Each scope has a description of its own."""
    for wanted in ("state_dict", "parameters"):
        source, expected = Source(model, wanted), dict(tensors(model, wanted))
        assert source.manifest == Manifest.of(expected.items())
        places = {name: tensor.data_ptr() for name, tensor in expected.items()}
        for _ in range(2):
            assert {name: tensor.data_ptr() for name, tensor in source()} == places
    with pytest.raises(ValueError, match="everything"):
        Source(model, "everything")


def test_a_model_that_an_optimizer_updates_is_described_once(model, layouts):
    first = Source(model, "parameters")
    key, looks = first.shared(CPU).key, len(layouts)
    with torch.no_grad():
        model[0].weight.mul_(2)
    second = Source(model, "parameters")

    assert second.manifest is first.manifest
    assert second.shared(CPU).key == key
    assert len(layouts) == looks
    assert torch.equal(dict(second())["0.weight"], model[0].weight)


def weight(change):
    """A change of the data of one weight."""
    return lambda model: setattr(model[0].weight, "data", change(model[0].weight.data))


def _frozen_into_a_buffer(model):
    held = model[0].weight.data
    del model[0].weight
    model[0].register_buffer("weight", held)


CHANGES = {
    "moved": weight(torch.clone),
    "reshaped": weight(lambda held: held.view(2, 8)),
    "cast": weight(lambda held: held.view(torch.bfloat16)),
    "transposed": weight(torch.t),
    "replaced": lambda model: setattr(model[0], "weight", nn.Parameter(model[0].weight.data)),
    "frozen into a buffer": _frozen_into_a_buffer,
    "emptied": lambda model: setattr(model[0], "bias", None),
    "added": lambda model: model.append(nn.Linear(4, 4)),
    "removed": lambda model: model.pop(1),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_model_whose_tensors_have_changed_is_described_anew(model, layouts, change):
    Source(model, "parameters")

    change(model)
    source = Source(model, "parameters")

    assert len(layouts) == 2
    assert source.manifest == Manifest.of(tensors(model, "parameters"))


@pytest.mark.parametrize("change", [CHANGES["added"], lambda model: setattr(model[1], "running_mean", torch.ones(4))])
def test_in_a_snapshot_of_named_tensors_nothing_else_counts(model, change):
    everything, named = Snapshot(model), Snapshot(model, {"0.weight", "0.bias"})

    change(model)

    assert (named.holds(model), everything.holds(model)) == (True, False)
    CHANGES["moved"](model)
    assert not named.holds(model)


def test_a_sharded_model_is_described_once_and_gathered_anew(model, layouts, mesh):
    """Of a sharded tensor a rank has a part; what is sent is whole, and as it is now."""
    whole = model[0].weight.detach().clone()
    model[0].weight = nn.Parameter(distribute_tensor(whole, mesh, [Shard(0)]))
    first = Source(model, "parameters")
    with torch.no_grad():
        model[0].weight.mul_(2)
    second = Source(model, "parameters")

    assert second.manifest is first.manifest
    assert second.shards is first.shards
    assert first.manifest == Manifest.of(first())
    assert torch.equal(dict(second())["0.weight"], 2 * whole)
    assert not layouts
    model[0].weight = nn.Parameter(model[0].weight.detach().clone())
    assert Source(model, "parameters").shards is not first.shards


def test_a_source_whose_model_has_moved_offers_no_memory(model, mesh):
    """An engine would read what the weights were."""
    plain = Source(model, "parameters")
    plain.shared(CPU)
    sharded = nn.Linear(4, 4)
    sharded.weight = nn.Parameter(distribute_tensor(sharded.weight.detach(), mesh, [Shard(0)]))
    source = Source(sharded, "parameters")
    source.shared(CPU)
    model[0].weight.data = model[0].weight.data.clone()
    sharded.weight = nn.Parameter(sharded.weight.detach().clone())

    for offer, *arguments in (plain.shared, CPU), (plain.held, CPU, 0), (source.shared, CPU), (source.held, CPU, 0):
        with pytest.raises(RefitError, match="make a Source for every refit"):
            offer(*arguments)


@pytest.mark.parametrize("is_sharded", [False, True])
def test_other_memory_at_the_same_address_is_noticed(mesh, is_sharded):
    """Engines have the old memory open under that address."""
    values = bytearray(64)
    first, second = (torch.frombuffer(values, dtype=torch.float32).view(4, 4) for _ in range(2))
    model = nn.Linear(4, 4, bias=False)
    model.weight = nn.Parameter(DTensor.from_local(first, mesh, [Shard(0)]) if is_sharded else first)
    source = Source(model, "parameters")
    source.shared(CPU)

    if is_sharded:
        model.weight._local_tensor = second
    else:
        model.weight.data = second

    with pytest.raises(RefitError, match="make a Source for every refit"):
        source.shared(CPU)


def test_a_sharded_model_moves_after_it_was_described(mesh):
    """Torch moves no ``DTensor`` that has a weak reference."""
    model = nn.Linear(4, 4)
    model.weight = nn.Parameter(distribute_tensor(model.weight.detach(), mesh, [Shard(0)]))
    Source(model, "parameters").held(CPU, 0)

    model.to(torch.float64)

    assert {spec.dtype for spec in Source(model, "parameters").manifest.tensors} == {"float64"}


def test_a_buffer_that_a_sharded_model_makes_is_sent(mesh):
    class Counted(nn.Linear):
        def _save_to_state_dict(self, destination, prefix, keep_vars):
            super()._save_to_state_dict(destination, prefix, keep_vars)
            destination[f"{prefix}made"] = torch.ones(2)

    model = Counted(4, 4)
    model.weight = nn.Parameter(distribute_tensor(model.weight.detach(), mesh, [Shard(0)]))

    assert torch.equal(dict(Source(model, "state_dict")())["made"], torch.ones(2))


@pytest.mark.parametrize("is_sharded", [False, True])
def test_memory_that_a_trainer_has_left_is_free(mesh, is_sharded):
    """A trainer that shares its GPU with the engine takes its weights off it after a refit."""
    model = nn.Linear(4, 4).share_memory()
    if is_sharded:
        model.weight = nn.Parameter(distribute_tensor(model.weight.detach(), mesh, [Shard(0)]))
    weight = (model.weight.to_local() if is_sharded else model.weight).detach().share_memory_()
    source = Source(model, "parameters")
    assert source.shared(CPU) is not None
    left = StorageWeakRef(weight.untyped_storage())

    model.weight = nn.Parameter(torch.zeros(4, 4))
    del weight, source
    gc.collect()

    assert left.expired()


def test_nothing_keeps_a_model_that_its_trainer_has_dropped():
    model = nn.Linear(4, 4).share_memory()
    Source(model, "parameters").shared(CPU)
    gone = weakref.ref(model)

    del model
    gc.collect()

    assert gone() is None
