"""One engine with a tied head, two policies for it, and trainers in processes of their own."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import fork_server
import pytest
import torch
from forked_programs import Program
from patience import HUNG_S
from safetensors.torch import save_file

from worker.refit import tensors

#: Longer than the other modules' engines, so that a generation can still be under way when something happens to it.
LONGEST = 1024

#: Sends the weights of each file that it reads of, and says how that ended.
_TRAINER = """
import sys, time
from safetensors.torch import load_file
from worker.refit import CollectiveSender, Manifest, send_ipc_zmq

orders, how, *where = sys.argv[1:]
lines = open(orders)  # before anything that waits for the engine
sender = CollectiveSender("127.0.0.1", int(where[0]), world_size=2, timeout_s=3600) if how == "collective" else None
for line in lines:
    file, stop_after = line.split()
    weights = load_file(file)

    def source():
        for index, item in enumerate(weights.items()):
            if index == int(stop_after):
                print("half-way", flush=True)
                time.sleep(3600)
            yield item

    options = {"manifest": Manifest.of(weights.items()), "buffer_bytes": 1}
    try:
        sender.send(source, **options) if sender else send_ipc_zmq(source, where, timeout_s=60, **options)
    except Exception as error:
        print(f"{type(error).__name__}: {error}", flush=True)
    else:
        print("sent", flush=True)
"""


class Trainer:
    """A trainer in a process of its own, which was forked from one that has imported what it needs."""

    def __init__(self, process, orders, answers) -> None:
        self.process, self._orders, self._answers = process, orders, answers

    def send(self, file, *, stop_after=-1):
        """Begins to send; with `stop_after` it hangs after so many tensors."""
        print(file, stop_after, file=self._orders, flush=True)

    async def says(self):
        """What it says next: ``sent``, ``half-way``, or what went wrong."""
        async with asyncio.timeout(HUNG_S):
            return (await asyncio.to_thread(self._answers.readline)).strip()


@pytest.fixture(scope="session")
def trainer_process(tmp_path_factory):
    """Starts a trainer, given a transport and where its engine is; ends it afterwards."""

    @asynccontextmanager
    async def start(how, *where):
        orders = tmp_path_factory.mktemp("trainer") / "orders"
        os.mkfifo(orders)
        answers, output = os.pipe()
        words = [sys.executable, "-c", _TRAINER, str(orders), how, *map(str, where)]
        fork_server.start()
        process = Program(words, env=os.environ, cwd=Path.cwd(), stdout=output, stderr=2)
        os.close(output)
        try:
            with os.fdopen(answers) as reader, await asyncio.to_thread(orders.open, "w") as writer:
                yield Trainer(process, writer, reader)
        finally:
            process.kill()
            process.wait()

    return start


@pytest.fixture(scope="package")
def model(checkpoint):
    """A tied head, which a refit on the CPU reaches through a quirk alone."""
    return checkpoint("llama_tied")


@pytest.fixture(scope="package")
def policies(checkpoint, model, shared_lab, tmp_path_factory):
    """Two sets of weights for the engine: as models, as what transformers makes of the prompts, and as files."""
    folder = tmp_path_factory.mktemp("policies")
    found = {}
    for name, path in (("a", model), ("b", checkpoint("llama_tied", seed=1))):
        trainer = shared_lab.trainer(path)
        file = folder / f"{name}.safetensors"
        save_file({name: tensor.clone() for name, tensor in tensors(trainer, "state_dict")}, file)
        found[name] = SimpleNamespace(model=trainer, tokens=shared_lab.reference(trainer), file=file)
    return SimpleNamespace(**found)


@pytest.fixture(scope="package")
async def engine(model, running):
    """The one engine of this folder, from dummy weights."""
    values = {"engine": {"max_model_len": LONGEST}, "sampling": {"temperature": 0.7}, "refit": {"timeout_s": HUNG_S}}
    async with running(model, values) as worker:
        yield worker


@pytest.fixture
async def worker(engine, policies):
    """The engine with policy ``a``; a test must leave it idle and whole."""
    async with asyncio.timeout(HUNG_S):
        engine.refitting.announced = None
        await engine.refit_async(policies.a.model, version="a")
    yield engine
    async with asyncio.timeout(HUNG_S):
        assert not await engine.engine.llm.is_paused()
        assert engine.engine.llm.output_processor.get_num_unfinished_requests() == 0
        assert await engine.reset_prefix_cache_async()  # false while the engine's own side still works on a request


@pytest.fixture
def sampling(engine, monkeypatch):
    """Changes how the worker samples, for one test."""

    def change(**values):
        monkeypatch.setattr(engine.requests, "sampling", engine.requests.sampling.model_copy(update=values))

    return change


@pytest.fixture
def unfinished(engine):
    """How many requests the engine works on."""
    return engine.engine.llm.output_processor.get_num_unfinished_requests


@pytest.fixture(scope="session")
def until():
    """Waits until something is so."""

    async def wait(holds):
        async with asyncio.timeout(HUNG_S):
            while not holds():  # noqa: ASYNC110 - neither engine nor file system offers an event
                await asyncio.sleep(0.001)

    return wait


@pytest.fixture
def generated(engine):
    """Waits until every request has made some tokens."""

    async def wait(requests, tokens=10):
        async with asyncio.timeout(HUNG_S):
            while len(made := await engine.engine.generated_so_far()) != requests or min(made) < tokens:  # noqa: ASYNC110 - no event for it
                await asyncio.sleep(0.001)

    return wait


@pytest.fixture
def refitting(engine, refit_section):
    """Changes how the worker refits, for one test."""
    return partial(refit_section, engine.refitting.sender)


@pytest.fixture
def holds(engine, shared_lab):
    """Says whether the engine generates what transformers does with a policy."""

    async def check(policy):
        async with asyncio.timeout(HUNG_S):
            return shared_lab.same_tokens(await shared_lab.greedy(engine), policy.tokens)

    return check


@pytest.fixture
def logprobs_of(lab):  # noqa: ARG001 - torch is imported once the environment is set
    """What a policy thinks of each generated token, given everything before it."""

    def rescore(policy, ids, prompt_length):
        with torch.no_grad():
            logits = policy.model(ids, use_cache=False).logits[0, prompt_length - 1 : -1].double()
        return logits.log_softmax(-1).gather(1, ids[0, prompt_length:, None])[:, 0]

    return rescore
