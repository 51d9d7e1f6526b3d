"""The account of an engine's core, with an executor that answers in the place of its workers."""

from __future__ import annotations

from types import SimpleNamespace

from quirks_core.hook import accounts, worker_calls
from quirks_core.ledger.account import Entry


class Executor:
    """Has the entries of one worker, whose weights come by no call of the core: a trainer in its process writes them."""

    vllm_config = SimpleNamespace(
        parallel_config=SimpleNamespace(world_size=1),
        lora_config=None,
        model_config=SimpleNamespace(quantization=None, dtype="torch.bfloat16", skip_tokenizer_init=True),
        weight_transfer_config=None,
    )

    def __init__(self):
        self.new = []

    def collective_rpc(self, method, timeout=None, args=(), kwargs=None):  # noqa: ARG002 - vLLM's names
        """Answers as the worker does."""
        rows, self.new = self.new, []
        return [{"value": {"entries": rows, "is_open": False}}]

    def execute_model(self, scheduled):
        """Does nothing."""


def test_what_came_without_a_call_of_the_core_is_in_the_account(monkeypatch):
    monkeypatch.setattr(accounts, "_missing", str)
    executor = Executor()
    accounts.watch_executor(executor)
    for number in range(1, 8):
        held = {"layers.0.weight": f"{number:032x}"}
        entry = Entry(number=number, way="raw", rank=0, digests=held, changed=tuple(held))
        executor.new.append(entry.model_dump(mode="json"))

        (answer,) = executor.collective_rpc(worker_calls.METHOD, args=("worker.refit.engine.ledger:trainer_at", [number], {}))

        assert (answer["value"]["updates"], answer["value"]["problems"]) == (number, [])
