"""Real vLLM engines on CPU, one per module; the lab that ships with the kit, and what only these tests ask of it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import fork_server
import pytest
from forked_programs import Program
from installations import lay
from patience import HUNG_S, settled

from quirks_core.source.vllm_source import INSTALLED
from worker import VllmAsyncGenerationWorker
from worker.lab.kit.lab import NEW_TOKENS, PROMPTS, Generated, Lab, batch_of, set_environment

set_environment()  # vLLM reads its environment while it is imported, and none of the above imports it


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder starts an engine, and may hang."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.engine)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(HUNG_S))


#: An engine whose core does the work of its only worker, as on a GPU, is up in half the time. vLLM's CPU platform gives a
#: worker a process of its own, to bind its threads to cores; unbound threads wait for each other on a busy machine.
#: Memory of the KV cache that is touched for the first time takes up to 3 s per GiB; 512 blocks have room for 65 536 tokens.
_LEAN = {
    "engine": {"distributed_executor_backend": "uni", "num_gpu_blocks_override": 512},
    "env": {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1"},
}


def _lean(values: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Returns a configuration for an engine without a process for its worker, unless it needs one."""
    given = dict(values or {})
    sizes = [given.get("engine", {}).get(f"{name}_parallel_size", 1) for name in ("pipeline", "tensor")]
    if max(sizes) > 1:
        return given
    return {**given, **{section: {**lean, **given.get(section, {})} for section, lean in _LEAN.items()}}


class _LeanLab(Lab):
    """Starts lean engines, in processes that have imported vLLM already; holds what tests ask of their outputs.

    It is all in one place, because importlib mode keeps test modules from importing each other.
    """

    PROMPTS, NEW_TOKENS = PROMPTS, NEW_TOKENS
    batch_of = staticmethod(batch_of)

    @staticmethod
    def largest_difference(one: Sequence[Generated], other: Sequence[Generated]) -> float:
        """The largest absolute difference between logprobs."""
        pairs = zip(one, other, strict=True)
        return max(abs(a - b) for x, y in pairs for a, b in zip(x.logprobs, y.logprobs, strict=True))

    @asynccontextmanager
    async def worker(
        self, model: Path, values: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncIterator[VllmAsyncGenerationWorker]:
        """Starts a worker as `Lab.worker` does."""
        lean = _lean(values)
        has_workers = lean["engine"].get("distributed_executor_backend") != "uni"
        with fork_server.instead_of_spawning(), pytest.MonkeyPatch.context() as patch:
            if has_workers:
                patch.setenv(fork_server.SPARES_VARIABLE, "2")
            async with super().worker(model, lean, **options) as found:
                yield found


@pytest.fixture(scope="session")
def lean() -> Callable[..., dict[str, Any]]:
    """Makes a configuration lean."""
    return _lean


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """Checkpoints, engines and transformers as the reference."""
    fork_server.start()
    return _LeanLab(tmp_path_factory.mktemp("lab"))


@pytest.fixture
def forked(lab: Lab) -> Iterator[None]:  # noqa: ARG001 - it starts the server
    """Engines that the test starts by itself are in processes that have imported vLLM already."""
    with fork_server.instead_of_spawning():
        yield


@pytest.fixture(scope="session")
def checkpoint(lab: Lab) -> Callable[..., Path]:
    """Makes a tiny checkpoint of a kind, once per kind and seed."""
    return lab.checkpoint


@pytest.fixture(scope="session")
def running(lab: Lab) -> Callable[..., AbstractAsyncContextManager[VllmAsyncGenerationWorker]]:
    """Starts a worker with a small engine and shuts it down whatever happens."""
    return lab.worker


@pytest.fixture
def refit_section(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Changes how a worker or a group refits (`refit` of its configuration), for one test."""

    def change(sender: Any, **values: Any) -> None:
        monkeypatch.setattr(sender, "section", sender.section.model_copy(update=values))

    return change


@pytest.fixture(scope="session")
def third_party(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., AbstractContextManager[Path]]:
    """Lays an installed distribution of one module where the engine's processes find it too; its folder is on their path."""

    @contextmanager
    def laid(name: str, points: Mapping[str, str], source: str) -> Iterator[Path]:
        site = tmp_path_factory.mktemp("site")
        lay(site, name, "1.0", points)
        (site / f"{name}.py").write_text(source, encoding="utf-8")
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(site)
            patch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
            yield site

    return laid


_TARGET = "vllm.model_executor.layers.utils:dispatch_cpu_unquantized_gemm"
_PLAIN = """
from quirks_core import Fact, ModelFlag, Patch, Quirk, Severity, report

QUIRK = Quirk(
    id="acme-plain/linear",
    title="linear layers keep their weights as they are",
    flag=ModelFlag.ENVIRONMENT,
    match=Fact("recipe").one_of("plain"),
    adjustments=Patch(TARGET, wrapper="acme_plain:plain", expects=(EXPECTS,)),
    severity=Severity.NOISE,
    references=report("https://example.org/1"),
)


def plain(original):
    import torch

    def dispatch(layer, remove_weight):
        layer.cpu_linear = torch.nn.functional.linear

    return dispatch
"""


@pytest.fixture(scope="session")
def plain_layers(third_party: Callable[..., AbstractContextManager[Path]]) -> Callable[..., AbstractContextManager[Path]]:
    """Has engines of the recipe ``plain`` copy all weights, as on a GPU: on the CPU vLLM packs those of linear layers."""

    def laid() -> AbstractContextManager[Path]:
        source = f"TARGET = {_TARGET!r}\nEXPECTS = {INSTALLED.fingerprint(_TARGET)!r}\n{_PLAIN}"
        return third_party("acme_plain", {"acme-plain/linear": "acme_plain:QUIRK"}, source)

    return laid


#: Sends the weights of each file that it reads of, and says how that ended.
_TRAINER = """
import sys
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
                next(lines)
            yield item

    options = {"manifest": Manifest.of(weights.items()), "buffer_bytes": 1}
    try:
        sender.send(source, **options) if sender else send_ipc_zmq(source, where, timeout_s=3600, **options)
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
        """Begins to send; with `stop_after` it waits after so many tensors."""
        print(file, stop_after, file=self._orders, flush=True)

    def go_on(self):
        """Has it send what comes after the tensors that it has sent."""
        print(file=self._orders, flush=True)

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


@pytest.fixture(scope="session")
def under_way() -> Callable[..., Awaitable[None]]:
    """Waits until so many requests of a worker have made some tokens each."""

    async def wait(worker: VllmAsyncGenerationWorker, requests: int, tokens: int = 10) -> None:
        async def holds() -> bool:
            return sum(made >= tokens for made in await worker.engine.generated_so_far()) >= requests

        await settled(holds)

    return wait
