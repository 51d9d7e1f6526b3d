"""One engine with a tied head, and two policies for it."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from patience import HUNG_S
from safetensors.torch import save_file

from worker.refit import tensors

#: Longer than the other modules' engines, so that a generation can still be under way when something happens to it.
LONGEST = 1024


@pytest.fixture(scope="package")
def model(checkpoint):
    """A tied head, which a refit on the CPU reaches through a quirk alone."""
    return checkpoint("llama_tied")


@pytest.fixture(scope="package")
def policies(checkpoint, model, lab, tmp_path_factory):
    """Two sets of weights for the engine: as models, as what transformers makes of the prompts, and as files."""
    folder = tmp_path_factory.mktemp("policies")
    found = {}
    for name, path in (("a", model), ("b", checkpoint("llama_tied", seed=1))):
        trainer = lab.trainer(path)
        file = folder / f"{name}.safetensors"
        save_file({name: tensor.clone() for name, tensor in tensors(trainer, "state_dict")}, file)
        found[name] = SimpleNamespace(model=trainer, tokens=lab.reference(trainer), file=file)
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
    engine.refitting.announced = None
    await engine.refit_async(policies.a.model, version="a")
    yield engine
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


@pytest.fixture
def generated(engine, under_way):
    """Waits until every request has made some tokens."""
    return partial(under_way, engine)


@pytest.fixture
def refitting(engine, refit_section):
    """Changes how the worker refits, for one test."""
    return partial(refit_section, engine.refitting.sender)


@pytest.fixture
def holds(engine, lab):
    """Says whether the engine generates what transformers does with a policy."""

    async def check(policy):
        return lab.same_tokens(await lab.greedy(engine), policy.tokens)

    return check


@pytest.fixture
def logprobs_of(lab):  # noqa: ARG001 - torch is imported once the environment is set
    """What a policy thinks of each generated token, given everything before it."""

    def rescore(policy, ids, prompt_length):
        with torch.no_grad():
            logits = policy.model(ids, use_cache=False).logits[0, prompt_length - 1 : -1].double()
        return logits.log_softmax(-1).gather(1, ids[0, prompt_length:, None])[:, 0]

    return rescore
