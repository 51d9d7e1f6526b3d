"""Programs that know nothing of model-quirks, each in processes of its own, on real vLLM engines."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import fork_server
import forked_programs
import openai
import pytest
import torch
from forked_programs import Started
from installations import lay
from patience import HUNG_S, until
from programs import Outcome, free_port

from quirks_core.facts.packages import installed_version
from quirks_core.hook import receipts as file_of_receipts
from quirks_core.hook.receipts import Receipts
from worker.lab.kit.lab import Lab

_ROOT = Path(__file__).resolve().parents[3]
_OURS = "model-quirks: "
#: A worker of a configuration, until it is ended.
_WORKER = """
import asyncio, json, sys
from worker import VllmAsyncGenerationWorker

async def main(config, port):
    config["server"]["port"] = int(port)
    worker = VllmAsyncGenerationWorker(config)
    await worker.post_init_async()
    await asyncio.Event().wait()

if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1]), sys.argv[3]))
"""


@dataclass(frozen=True)
class Ended:
    """A program that has ended."""

    code: int
    text: str

    @property
    def said(self) -> list[str]:
        """The lines of ours."""
        return said(self.text)

    def result(self) -> Any:
        """What the program printed after RESULT."""
        lines = [line for line in self.text.splitlines() if line.startswith("RESULT ")]
        assert len(lines) == 1, self.text[-4000:]
        return json.loads(lines[0].removeprefix("RESULT "))


def said(text: str) -> list[str]:
    """Returns the lines of ours of an output."""
    return [line.partition(_OURS)[2] for line in text.splitlines() if _OURS in line]


@dataclass
class Programs:
    """Starts programs in an environment without anything of the developer's.

    Attributes:
        folder: Where they run.
        environment: What they get.
        count: How many there were.
        forks: Whether they are copies of a process that has imported vLLM, where that is possible.
        few_blocks: Options for a small KV cache; memory that is touched for the first time takes up to 3 s per GiB.
        small: Options for a small engine.
    """

    folder: Path
    environment: dict[str, str]
    count: int = field(default=0)
    forks: bool = False
    few_blocks: ClassVar[Sequence[str]] = ("--num-gpu-blocks-override", "64")
    small: ClassVar[Sequence[str]] = ("--max-model-len", "128", "--max-num-seqs", "8", *few_blocks)

    @contextlib.contextmanager
    def running(self, *command: str | Path, port: int = 0, **variables: str) -> Iterator[Server]:
        """Runs a program until the end of the block, in an environment with nothing of the developer's that could count."""
        self.count += 1
        log = self.folder / f"program-{self.count}.log"
        others = ("COLUMNS", "MODEL_QUIRKS", "VLLM_", "NCCL_", "NRL_")
        kept = {name: text for name, text in os.environ.items() if not name.startswith(others)}
        words, env = [str(word) for word in command], {**kept, **self.environment, **variables}
        with log.open("wb") as output:
            program = forked_programs.start(words, env=env, cwd=self.folder, output=output.fileno(), forks=self.forks)
        try:
            yield Server(program, log, port)
        finally:
            end(program)

    def run(self, *command: str | Path, **variables: str) -> Ended:
        """Runs a program to its end."""
        with self.running(*command, **variables) as started:
            code = started.program.wait(HUNG_S)
        return Ended(code, started.log.read_text(errors="replace"))

    def script(self, text: str, *arguments: str | Path, **variables: str) -> Ended:
        """Runs a Python script to its end."""
        file = self.folder / f"script_{self.count}.py"
        file.write_text(textwrap.dedent(text), encoding="utf-8")
        return self.run(sys.executable, file, *arguments, **variables)

    @contextlib.contextmanager
    def server(self, *command: str | Path, **variables: str) -> Iterator[Server]:
        """Runs a server, on a port of its own, until the end of the block."""
        port = free_port()
        with self.running(*command, "--port", str(port), port=port, **variables) as server:
            until(server.is_healthy, f"{server.url}/health; the program's output is in {server.log}", every_s=0.5)
            yield server

    def send(self, url: str, model: Path, *options: str, ranks: int = 1) -> Ended:
        """Sends a model to a server, as a trainer of one process or of two that share it does."""
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--standalone"]
        command = launcher if ranks > 1 else [sys.executable]
        return self.run(*command, _ROOT / "examples" / "send_weights.py", model, url, *options, OMP_NUM_THREADS="1")

    def worker(
        self, model: Path, key: str, *, env: dict[str, str] | None = None, name: str = "", **engine: Any
    ) -> contextlib.AbstractContextManager[Server]:
        """Runs our worker until the end of the block: a small engine, with a server that has the routes for trainers."""
        script = self.folder / "our_worker.py"
        script.write_text(_WORKER, encoding="utf-8")
        small = {"load_format": "auto", "max_model_len": 128, "max_num_seqs": 8, "num_gpu_blocks_override": 64}
        small["enforce_eager"] = True
        server = {"enabled": True, "rl_routes": True, "rl_api_key": key, "validation_temperature": 0.0}
        server |= {"served_model_name": name} if name else {}
        config = {"model": str(model), "env": env or {}, "engine": {**small, **engine}, "server": server}
        return self.server(sys.executable, script, json.dumps(config))


@dataclass
class Server:
    """A server that is up."""

    program: Started
    log: Path
    port: int

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def said(self) -> list[str]:
        """The lines of ours."""
        return said(self.log.read_text(errors="replace"))

    def completion(self, *, key: str = "none", **fields: Any) -> Any:
        """What its only model makes of a prompt."""
        client = openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, timeout=HUNG_S)
        model = client.models.list().data[0].id
        return client.completions.create(model=model, **fields).choices[0]

    def is_healthy(self) -> bool:
        """Says whether it answers; one that has ended is an error."""
        assert self.program.poll() is None, self.log.read_text(errors="replace")[-6000:]
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=HUNG_S) as answer:  # noqa: S310
            return answer.status == 200
        return False


def end(program: Started) -> None:
    """Ends a program with everything that it started."""
    for number, limit_s in ((signal.SIGTERM, 20.0), (signal.SIGKILL, HUNG_S)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.wait(limit_s)
            time.sleep(0.5)
    assert program.poll() is not None


@pytest.fixture(scope="session")
def started_programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """Starts programs; where the CPU build has no metadata of the name vllm, its own command needs a stub of it."""
    folder = tmp_path_factory.mktemp("programs")
    site = folder / "site"
    version = f"{(installed_version('vllm') or '').partition('+')[0]}+cpu"  # vLLM finds its platform by that label
    lay(site, "vllm", version)
    environment = {
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join([str(_ROOT), str(site), str(_ROOT / "tests" / "startup")]),
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
    }
    return Programs(folder, environment)


@pytest.fixture(scope="session")
def programs(started_programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """Starts programs as copies of a process that has imported vLLM: neither start nor import is the law of most tests."""
    forks = {"TESTS_FORK_SERVER": fork_server.address(), "TESTS_FORKED": "planted_faults.py send_weights.py"}
    environment = {**started_programs.environment, **forks}
    return replace(started_programs, folder=tmp_path_factory.mktemp("forked"), environment=environment, forks=True)


@pytest.fixture(scope="session")
def vllm() -> Path:
    """The command of that name."""
    return Path(sys.executable).with_name("vllm")


@pytest.fixture(scope="session")
def quirks_run() -> Callable[..., list[str | Path]]:
    """The command ``quirks run`` with options, up to what it runs."""
    return lambda *options: [sys.executable, "-m", "quirks_core.cli", "run", *options, "--"]


@pytest.fixture(scope="session")
def models(checkpoint: Callable[..., Path]) -> list[Path]:
    """Three checkpoints of one kind."""
    return [checkpoint("qwen3", seed=seed) for seed in range(3)]


@pytest.fixture(scope="session")
def greedy(lab: Lab) -> Callable[[Path, Sequence[Sequence[int]], int], list[list[int]]]:
    """Returns what transformers' model of a folder says after each prompt, as token ids."""

    def completed(model: Path, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
        trainer, found = lab.trainer(model), []
        for prompt in prompts:
            made = trainer.generate(torch.tensor([prompt]), max_new_tokens=tokens, do_sample=False)
            found.append(made[0, len(prompt) :].tolist())
        return found

    return completed


@pytest.fixture
def weights(quirks: Callable[..., Outcome]) -> Callable[..., tuple[int, str, str]]:
    """Runs ``quirks weights``; returns its exit code, what it printed, and its error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        ended = quirks("weights", *arguments)
        return ended.code, ended.out, " ".join(ended.err.split())

    return run


@pytest.fixture
def receipts(tmp_path: Path) -> Callable[..., Receipts]:
    """Reads a file of receipts; that of the test is the attribute ``file``."""

    def read(file: Path | None = None) -> Receipts:
        return file_of_receipts.read(file or read.file)

    read.file = tmp_path / "receipts.json"
    return read
