"""Data and expert parallelism on Ray: engines in one group, engines that share nothing, and one engine with ranks of its own.

    python benchmarks/data_parallel.py                                  a table; needs two GPUs, uses four if they are there
    python benchmarks/data_parallel.py --json --output FILE             JSON; FILE is written anew after each set of engines
    python benchmarks/data_parallel.py --sets independent:2,actors:2    these alone: strategy and number of ranks
    python benchmarks/data_parallel.py --tiny                           a tiny model on two CPU cores: does it run?

The model has the layers of Qwen3-30B-A3B, 12 of them, with random weights in bfloat16: 8.1 B parameters, 14.5 GB of experts.
Every rank gets 256 requests of 128 + 256 tokens (even), or rank 0 gets them and every other rank 4 (uneven; counted is the rate
of rank 0). CUDA graphs are on; `--compile` adds vLLM's default compilation, which takes minutes at each start. Only one set of
engines is up at a time. In it the loads take turns; `--repeat` takes the whole list of sets again and again. The set `bare` is
one engine with ranks of its own as vLLM starts it, without a plan, and driven without and with logprobs, which all others have.

Measured before on two H200, vLLM 0.26.0, same model and load: two independent engines 45 900 tokens/s together, data parallel 2
with expert parallel 2 in one group 50 100; uneven 22 960 and 24 990 on the busy rank. The aim: no less than these ratios,
half of the experts' bytes on each rank, and at two and four GPUs at least 0.9 of linear.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from worker import WorkerGroup

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")

#: Requests of every rank but the busy one, under the uneven load.
QUIET = 4
#: Seconds after which a round counts as hanging.
LIMIT_S = 180.0
EVEN_AIM, UNEVEN_AIM, EFFICIENCY_AIM, BARE_AIM = 50_100 / 45_900, 24_990 / 22_960, 0.9, 0.95
#: What a kernel may add to its weights.
PADDING = 1.02
BYTES = "expert bytes of a rank"
_GRAPHS_ALONE = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}
#: What a bare engine does not know, or is given anyway.
_OURS_ALONE = ("generate_from_dummy", "load_format", "vllm_kwargs")


@dataclass(frozen=True, slots=True)
class Setting:
    """What is measured.

    Attributes:
        layers: The model's configuration.
        requests: Requests of a rank.
        prompt: Tokens of a prompt.
        new: Tokens generated from each.
        engine: Engine section of the configuration.
        env: Environment of the engines.
    """

    layers: Mapping[str, Any]
    requests: int
    prompt: int
    new: int
    engine: Mapping[str, Any]
    env: Mapping[str, str] = field(default_factory=dict)


REAL = Setting(
    layers={
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "vocab_size": 151936,
        "max_position_embeddings": 4096,
    },
    requests=256,
    prompt=128,
    new=256,
    # Room for twice a rank's share: a balancer that is off by one must not make a request wait for a whole generation.
    engine={"dtype": "bfloat16", "max_model_len": 1024, "max_num_seqs": 512, "gpu_memory_utilization": 0.5},
)
TINY = Setting(
    layers={
        "hidden_size": 64,
        "intermediate_size": 128,
        "moe_intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "vocab_size": 512,
        "max_position_embeddings": 256,
    },
    requests=8,
    prompt=16,
    new=16,
    engine={"dtype": "float32", "max_model_len": 256, "enforce_eager": True},
    env={"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1", "TORCHDYNAMO_DISABLE": "1"},
)


@dataclass(frozen=True, slots=True)
class Engines:
    """One set of engines, which is up alone.

    Attributes:
        strategy: ``actors``, ``engine``, ``independent``, or ``bare`` for vLLM alone.
        ranks: Data-parallel ranks, one on each GPU.
    """

    strategy: str
    ranks: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads ``actors:2``.

        Raises:
            argparse.ArgumentTypeError: It is something else.
        """
        strategy, _, ranks = text.partition(":")
        if strategy not in ("actors", "engine", "independent", "bare") or not ranks.isdecimal() or int(ranks) < 1:
            raise argparse.ArgumentTypeError(f"{text!r}: write actors:2, engine:2, independent:2 or bare:2")
        return cls(strategy, int(ranks))

    @property
    def experts_shared(self) -> bool:
        """Whether the ranks share the experts; engines that share nothing cannot."""
        return self.strategy != "independent" and self.ranks > 1

    def __str__(self) -> str:
        return f"{self.strategy}:{self.ranks}"


@dataclass(slots=True)
class Figures:
    """What one set of engines did.

    Attributes:
        even: Tokens per second of all ranks together, for each round.
        plain: The same without logprobs; a bare engine's alone.
        uneven: Tokens per second of the busy rank, for each round.
        expert_bytes: Bytes of expert weights in each process.
        start_s: Seconds until the engines were up and proven, for each start.
    """

    even: list[float] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)
    uneven: list[float] = field(default_factory=list)
    expert_bytes: list[int] = field(default_factory=list)
    start_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Ratio:
    """Two figures of the same run.

    Attributes:
        what: Which by which.
        value: The ratio.
        aim: What it should be at least, or at most for bytes; 0 if there is no aim.
    """

    what: str
    value: float
    aim: float = 0.0


Results = dict[Engines, Figures]


def checkpoint(folder: Path, setting: Setting) -> Path:
    """Writes the configuration of the model; its weights are made by the engines."""
    from transformers import Qwen3MoeConfig

    Qwen3MoeConfig(
        **setting.layers,
        norm_topk_prob=True,
        tie_word_embeddings=False,
        architectures=["Qwen3MoeForCausalLM"],
        dtype=setting.engine["dtype"],
    ).save_pretrained(folder)
    return folder


def configuration(folder: Path, engines: Engines, setting: Setting, *, compiled: bool) -> dict[str, Any]:
    """The group's configuration."""
    engine = {
        **setting.engine,
        "load_format": "dummy",
        "generate_from_dummy": True,
        "data_parallel_size": engines.ranks,
        "enable_expert_parallel": engines.experts_shared,
        "vllm_kwargs": {"skip_tokenizer_init": True},
    }
    if not compiled and not engine.get("enforce_eager"):
        engine["compilation_config"] = _GRAPHS_ALONE
    return {
        "model": str(folder),
        "purpose": "rollout",
        "engine": engine,
        "sampling": {"max_new_tokens": setting.new, "ignore_eos": True},
        "parallel": {"dp_strategy": engines.strategy},
        "env": dict(setting.env),
    }


def batch(setting: Setting, requests: int, seed: str) -> dict[str, Any]:
    """Prompts that share no prefix with any other: ``input_ids`` [B, S], ``input_lengths`` [B]."""
    from worker.lab.kit.lab import batch_of

    chosen = random.Random(seed)  # noqa: S311  # prompts, not secrets
    return batch_of(
        [[chosen.randrange(3, setting.layers["vocab_size"]) for _ in range(setting.prompt)] for _ in range(requests)]
    )


async def rate(group: WorkerGroup, data: dict[str, Any], setting: Setting, rank: int | None = None) -> float:
    """Tokens per second of one batch.

    Raises:
        RuntimeError: Samples are missing, or too short.
    """
    start = time.perf_counter()
    lengths = [int(output["generation_lengths"]) async for _, output in group.generate_async(data, data_parallel_rank=rank)]
    seconds = time.perf_counter() - start
    if lengths != [setting.new] * len(data["input_ids"]):
        raise RuntimeError(f"{len(data['input_ids'])} requests of {setting.new} tokens came back with {lengths}")
    return sum(lengths) / seconds


async def even(group: WorkerGroup, ranks: int, setting: Setting, seed: str) -> float:
    """Every rank has its share, dealt out by the group; the rate of all."""
    return await rate(group, batch(setting, ranks * setting.requests, seed), setting)


async def uneven(group: WorkerGroup, ranks: int, setting: Setting, seed: str) -> float:
    """One rank has all requests, the others next to none; the rate of the busy one."""
    busy = rate(group, batch(setting, setting.requests, seed), setting, 0)
    quiet = [rate(group, batch(setting, QUIET, f"{seed}-{rank}"), setting, rank) for rank in range(1, ranks)]
    return (await asyncio.gather(busy, *quiet))[0]


#: The rate of one round, given what its prompts are drawn from; and the list that the counted rounds go to.
Load = tuple[str, Callable[[str], Awaitable[float]], list[float]]


@asynccontextmanager
async def in_group(config: dict[str, Any], engines: Engines, setting: Setting, figures: Figures) -> AsyncIterator[list[Load]]:
    """Starts engines of ours; yields the loads for them."""
    from worker import WorkerGroup

    async with WorkerGroup(config) as group:
        figures.expert_bytes = [row.expert_bytes for row in group.topology.rows]
        say(f"{engines}: expert weights {figures.expert_bytes} bytes")
        loads = [("even", even, figures.even)] + ([("uneven", uneven, figures.uneven)] if engines.ranks > 1 else [])
        yield [(name, partial(load, group, engines.ranks, setting), found) for name, load, found in loads]


@asynccontextmanager
async def bare(config: dict[str, Any], engines: Engines, setting: Setting, figures: Figures) -> AsyncIterator[list[Load]]:
    """Starts an engine of vLLM's own with the same arguments; yields the even load for it, without and with logprobs."""
    os.environ.update(setting.env)
    import rollouts
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    from worker.engine import vllm_adapter

    # As the worker's requests are, so that what differs is the worker and the group.
    common = {"max_tokens": setting.new, "ignore_eos": True, "detokenize": False, "output_kind": RequestOutputKind.FINAL_ONLY}
    plain, with_logprobs = SamplingParams(**common), SamplingParams(logprobs=0, flat_logprobs=True, **common)
    arguments = {name: value for name, value in config["engine"].items() if name not in _OURS_ALONE}
    llm = rollouts.bare_engine(config["model"], **arguments)

    async def rate_of(params: SamplingParams, seed: str) -> float:
        rows = batch(setting, engines.ranks * setting.requests, seed)["input_ids"].tolist()
        start = time.perf_counter()
        return await rollouts.bare_batch(llm, rows, params) / (time.perf_counter() - start)

    try:
        yield [("plain", partial(rate_of, plain), figures.plain), ("even", partial(rate_of, with_logprobs), figures.even)]
    finally:
        vllm_adapter.stop_engine(llm)


async def one_set(config: dict[str, Any], engines: Engines, setting: Setting, rounds: int, figures: Figures) -> None:
    """Starts engines, has the loads take turns, and shuts them down whatever happens; the first round is not counted."""
    started = bare if engines.strategy == "bare" else in_group
    start = time.perf_counter()
    async with started(config, engines, setting, figures) as loads:
        figures.start_s.append(time.perf_counter() - start)
        say(f"{engines}: up after {figures.start_s[-1]:.1f} s")
        for number in range(rounds + 1):
            for name, load, found in loads:
                async with asyncio.timeout(LIMIT_S):
                    tokens_per_s = await load(f"{number}-{name}")
                say(f"{engines}: {name} {tokens_per_s:,.0f} tokens/s ({f'round {number}' if number else 'not counted'})")
                if number:
                    found.append(tokens_per_s)


def ratios(results: Results, setting: Setting) -> list[Ratio]:
    """Every ratio of which both figures are there; only the real model at its measured size has all aims."""
    found: list[Ratio] = []

    def compare(
        what: str, load: str, ours: Engines, theirs: Engines, scale: int = 1, aim: float = 0.0, other: str = ""
    ) -> None:
        pairs = ((load, ours), (other or load, theirs))
        values = [median(getattr(results[key], name)) if key in results else 0.0 for name, key in pairs]
        if all(values):
            found.append(Ratio(f"{what}: {ours} to {theirs}", values[0] / (values[1] * scale), aim))

    one = Engines("independent", 1)
    for engines in results:
        apart = Engines("independent", engines.ranks)
        aimed = setting is REAL and engines.strategy == "actors"
        if engines.experts_shared and engines.strategy != "bare":
            at_two = aimed and engines.ranks == 2
            compare("even", "even", engines, apart, aim=EVEN_AIM * at_two)
            compare("uneven", "uneven", engines, apart, aim=UNEVEN_AIM * at_two)
            compare(BYTES, "expert_bytes", engines, apart if apart in results else one, aim=1 / engines.ranks)
        if engines.strategy == "actors":
            alone = Engines("bare", engines.ranks)
            compare("of vLLM alone without logprobs", "even", engines, alone, other="plain")
            compare("of vLLM alone with logprobs", "even", engines, alone, aim=BARE_AIM * aimed)
        if engines.ranks > 1 and engines.strategy != "bare":
            compare("of linear", "even", engines, one, engines.ranks, EFFICIENCY_AIM * aimed)
    return found


def median(values: Sequence[float]) -> float:
    """The figure to quote; 0 if there is none."""
    return statistics.median(values) if values else 0.0


def problems_of(results: Results, setting: Setting) -> list[str]:
    """What is wrong apart from time: experts that the ranks do not share."""
    sizes = [ratio for ratio in ratios(results, setting) if ratio.what.startswith(BYTES)]
    return [f"{ratio.what}: {ratio.value:.3g}, not {ratio.aim:.3g}" for ratio in sizes if ratio.value > ratio.aim * PADDING]


def say(text: str) -> None:
    """Shows progress."""
    print(text, file=sys.stderr, flush=True)


def encoded(results: Results, setting: Setting, problems: Sequence[str]) -> str:
    """Everything as JSON."""
    sets = {
        str(engines): {**asdict(figures), "even_median": median(figures.even), "uneven_median": median(figures.uneven)}
        for engines, figures in results.items()
    }
    load = {"requests_per_rank": setting.requests, "prompt": setting.prompt, "new": setting.new, "quiet": QUIET}
    found = [asdict(ratio) for ratio in ratios(results, setting)]
    return json.dumps(
        {"model": dict(setting.layers), "load": load, "sets": sets, "ratios": found, "problems": list(problems)}, indent=2
    )


def show(results: Results, setting: Setting, problems: Sequence[str]) -> None:
    """Prints tables."""
    console = Console(width=None if sys.stdout.isatty() else 128)
    table = Table(title="tokens/s: median (slowest to fastest round)", title_justify="left")
    table.add_column("engines")
    for heading in ("even, all ranks", "the same, no logprobs", "uneven, busy rank", "experts MB/rank", "start s", "rounds"):
        table.add_column(heading, justify="right")
    for engines, figures in results.items():
        size = f"{max(figures.expert_bytes) / 1e6:,.1f}" if figures.expert_bytes else ""
        start = f"{median(figures.start_s):.0f}" if figures.start_s else ""
        table.add_row(
            str(engines),
            _spread(figures.even),
            _spread(figures.plain),
            _spread(figures.uneven),
            size,
            start,
            str(len(figures.even)),
        )
    console.print(table)
    for ratio in ratios(results, setting):
        at_most = ratio.what.startswith(BYTES)
        met = ratio.value <= ratio.aim * PADDING if at_most else ratio.value >= ratio.aim
        aim = f"  (aim: at {'most' if at_most else 'least'} {ratio.aim:.3g}, {'met' if met else 'MISSED'})" if ratio.aim else ""
        console.print(f"{ratio.what}: {ratio.value:.3g}{aim}", highlight=False)
    for problem in problems:
        console.print(f"[bold red]problem:[/] {problem}", highlight=False)


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})" if values else ""


def usual(gpus: int, *, tiny: bool) -> list[Engines]:
    """The sets that a machine has room for, the most wanted first."""
    two = [Engines("independent", 2), Engines("actors", 2), Engines("engine", 2)]
    if not tiny:  # vLLM's CPU platform has no data-parallel MoE without a quirk
        two.insert(2, Engines("bare", 2))
    return [
        *(two if gpus > 1 or tiny else []),
        Engines("independent", 1),
        *([Engines("actors", 4)] if gpus > 3 else []),
    ]


def arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--output", type=Path, help="also write JSON here, after each set of engines")
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds of each load (default 5)")
    parser.add_argument("--repeat", type=int, default=1, help="how often to take the list of sets (default 1)")
    parser.add_argument("--sets", type=lambda text: [Engines.parse(item) for item in text.split(",")], help="sets of engines")
    parser.add_argument("--compile", action="store_true", help="vLLM's default compilation besides CUDA graphs")
    parser.add_argument("--tiny", action="store_true", help="a tiny model on the CPU")
    return parser.parse_args()


async def measured(options: argparse.Namespace, sets: Sequence[Engines], setting: Setting) -> tuple[Results, list[str]]:
    """Measures one set after the other; one that fails is a problem, and the others are worth having."""
    results: Results = {engines: Figures() for engines in sets}
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        model = checkpoint(Path(folder), setting)
        for engines in [*sets] * options.repeat:
            config = configuration(model, engines, setting, compiled=options.compile)
            say(f"{engines}: starting")
            try:
                await one_set(config, engines, setting, options.rounds, results[engines])
            except Exception as error:
                traceback.print_exc()
                problems.append(f"{engines}: {type(error).__name__}: {error}")
            if options.output is not None:
                options.output.write_text(encoded(results, setting, problems + problems_of(results, setting)), encoding="utf-8")
    return results, problems + problems_of(results, setting)


def main() -> int:
    """Measures and prints; the exit code is 1 if there are problems. No figure makes it fail: the machine may be busy."""
    import torch

    options = arguments()
    gpus = torch.cuda.device_count()
    if not gpus and not options.tiny:
        print("benchmarks/data_parallel.py: needs GPUs (--tiny runs without); figures are in docs/results/performance.md")
        return 0
    setting = TINY if options.tiny else REAL
    sets = options.sets or usual(gpus, tiny=options.tiny)
    results, problems = asyncio.run(measured(options, list(dict.fromkeys(sets)), setting))
    if options.json:
        print(encoded(results, setting, problems))
    else:
        show(results, setting, problems)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
