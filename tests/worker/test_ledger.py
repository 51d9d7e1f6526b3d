"""The ledger of a worker process, without an engine around it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from quirks_core.base.errors import QuirksError
from worker.refit.engine import ledger
from worker.refit.engine.adapters import Adapters
from worker.refit.weights.digest import digests


@pytest.fixture
def worker():
    """A worker that may sleep, with a model that may be reloaded."""
    model = nn.Linear(4, 4)
    return SimpleNamespace(
        model_runner=SimpleNamespace(get_model=lambda: model),
        parallel_config=SimpleNamespace(data_parallel_index=0, world_size=1, rank=0, enable_eplb=False),
        reload_weights=lambda: model.weight.data.add_(1),
        sleep=lambda level=1: None,  # noqa: ARG005 - vLLM's name
        wake_up=lambda tags=None: None,  # noqa: ARG005 - as above
    )


def test_a_process_s_memory_is_read_except_while_it_sleeps(worker):
    model = worker.model_runner.get_model()
    ledger.watch(worker)

    def looked():
        found = ledger.look(worker)
        return found["number"], found["digests"].get("weight")

    def now():
        return digests([("weight", model.weight)], whole=False)["weight"]

    assert looked() == (0, now())
    worker.reload_weights()
    before = now()
    assert looked() == (1, before)

    worker.sleep(2)
    with torch.no_grad():
        model.weight.zero_()
    assert looked() == (1, before)
    worker.wake_up(["kv_cache"])
    assert looked() == (1, before)
    worker.wake_up(["weights"])
    assert looked() == (1, now())
    worker.sleep()
    worker.wake_up()
    assert looked() == (1, now())


def test_what_is_not_finite_counts_once_an_update_writes_it(worker):
    model = worker.model_runner.get_model()
    model.weight.data[0, 0] = torch.nan
    worker.reload_weights = lambda: model.bias.data.add_(1)
    ledger.watch(worker)
    found = []
    for change in (lambda: None, lambda: model.weight.data[1].add_(1), lambda: model.weight.data.zero_()):
        change()
        worker.reload_weights()
        found += ledger.settle(worker)["entries"]

    assert [entry["not_finite"] for entry in found] == [["weight"], [], ["weight"], []]


def test_a_process_without_a_ledger_is_an_error(worker):
    with pytest.raises(QuirksError, match="MODEL_QUIRKS_LEDGER=off"):
        ledger.look(worker)


def adapter(value, path="a"):
    """A request for an adapter of one layer, with what is loaded for it."""
    layer = SimpleNamespace(lora_a=torch.full((2, 2), value), lora_b=torch.ones(2, 2), scaling=1.0)
    named = {"lora_name": path, "lora_int_id": 1, "lora_path": path, "load_inplace": False}
    return SimpleNamespace(**named, loaded=SimpleNamespace(loras={"q_proj": layer}))


MANAGER = SimpleNamespace(modules={"q_proj": None}, packed_modules={})


def test_an_adapter_is_an_update_if_it_was_not_loaded_last():
    adapters = Adapters(whole=False)

    def load(*values):
        request = adapter(*values)
        found = adapters.add(MANAGER, request, request.loaded)
        return None if found is None else found["changed"]

    first, second = ("q_proj.lora_a", "q_proj.lora_b"), ("q_proj.lora_a",)
    assert [load(1.0), load(1.0), load(2.0), load(2.0), load(1.0)] == [first, None, second, None, second]
    assert [load(2.0, "b"), load(1.0)] == [second, None]


def test_the_model_s_last_update_is_known_after_many_adapters(worker):
    worker.model_runner.get_model().load_weights = lambda _: None
    worker.model_runner.lora_manager = manager = SimpleNamespace(_load_adapter=lambda one: one.loaded, _adapter_manager=MANAGER)
    worker.load_model, worker.model_config = lambda: None, None
    worker.device_config = SimpleNamespace(device_type="cpu")
    ledger.watch(worker)
    worker.load_model()
    worker.reload_weights()

    for number in range(20):
        manager._load_adapter(adapter(float(number)))

    assert ledger.look(worker)["number"] == 1
    assert [entry["way"] for entry in ledger.settle(worker)["entries"]] == ["start", "reload", *["lora"] * 20]
