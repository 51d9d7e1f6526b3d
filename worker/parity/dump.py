"""What one engine makes of given prompts with given seeds, as a file that another engine's can be compared with.

``python -m worker.parity.dump ORDER.json`` makes one in a process of its own, with the interpreter of any environment that
has model-quirks: `worker.parity.migrate` calls it so.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from pydantic import Field, ValidationError, model_validator

from quirks_core.errors import QuirksError, UsageError, words
from quirks_core.plan import sha256
from worker.parity.records import ParityRecord

if TYPE_CHECKING:
    from worker.async_worker import VllmAsyncGenerationWorker
    from worker.config import GenerationConfig

#: Version of the dumps' format; one of another is refused.
DUMP_FORMAT = 1
#: Begins a line by which a dump in a process of its own says what it does.
STAGE = "::stage "
#: Bytes of a weights file that are read at its beginning, middle and end.
_PROBE = 65536

#: Tells the user what comes next.
Tell = Callable[[str], None]
#: Prompt and generated tokens.
Sequences = Sequence[tuple[tuple[int, ...], tuple[int, ...]]]


class Row(ParityRecord):
    """One sequence that the engine generated.

    Attributes:
        kind: ``greedy``, or ``sampled`` with a seed of its own.
        prompt: Number of the prompt.
        seed: The sample's seed; None of a greedy one.
        tokens: G token ids.
        logprobs: G logprobs, in nats, as the engine reports them.
    """

    kind: Literal["greedy", "sampled"]
    prompt: int
    seed: int | None = None
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]


class Dump(ParityRecord):
    """Everything that one engine made, and all that may have decided on it.

    Attributes:
        format: `DUMP_FORMAT`.
        date: When it was made (ISO).
        model: Name of the model.
        model_type: Its ``model_type``.
        config_digest: SHA-256 of its ``config.json``.
        weights_digest: SHA-256 of probes of its weights' files; empty if they are not in a folder of the machine.
        platform: ``cpu``, ``cuda``, …; empty if it cannot be told.
        versions: Versions by package, Python's and the device's name among them.
        plan: The plan's digest.
        quirks: Ids of the quirks in force.
        settings: The slots as in force, and how samples were drawn.
        effective: The engine's own settings (`worker.parity.effective`).
        prompts: Token ids of each prompt.
        rows: What was generated.
        scored: By the digest of some sequences, the logprobs of each one's generated tokens, computed at once as a prompt
            (prefill, temperature 1): always for the dump's own rows, and for another dump's if it was made ``--tokens-of`` it.
    """

    format: int = DUMP_FORMAT
    date: str
    model: str
    model_type: str
    config_digest: str
    weights_digest: str = ""
    platform: str
    versions: dict[str, str]
    plan: str
    quirks: tuple[str, ...]
    settings: dict[str, Any]
    effective: dict[str, Any]
    prompts: tuple[tuple[int, ...], ...]
    rows: tuple[Row, ...]
    scored: dict[str, tuple[tuple[float, ...], ...]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        """What was edited by hand must not fail in the middle of a comparison."""
        for number, row in enumerate(self.rows):
            if not 0 <= row.prompt < len(self.prompts):
                raise ValueError(f"row {number} is of prompt {row.prompt}, and there are {len(self.prompts)}")
            if len(row.tokens) != len(row.logprobs):
                raise ValueError(f"row {number} has {len(row.tokens)} tokens and {len(row.logprobs)} logprobs")
        if (own := self.scored.get(self.digest)) is not None and len(own) != len(self.rows):
            raise ValueError(f"there are {len(self.rows)} rows, and {len(own)} were scored")
        return self

    @property
    def sequences(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Prompt and generated tokens of each row."""
        return [(self.prompts[row.prompt], row.tokens) for row in self.rows]

    @property
    def digest(self) -> str:
        """Names the sequences: equal digests are equal tokens."""
        return digest(self.sequences)

    @classmethod
    def read(cls, file: Path) -> Self:
        """Reads a dump.

        Raises:
            UsageError: The file cannot be read, is no dump, or one of another format.
        """
        expected = "expected a dump as 'quirks parity dump' writes it"
        try:
            values = json.loads(file.read_bytes())
        except OSError as error:
            raise UsageError(f"{file} cannot be read: {error.strerror or error}; {expected}") from None
        except ValueError as error:
            raise UsageError(f"{file} is not valid JSON ({error}); {expected}") from None
        found = values.get("format") if isinstance(values, dict) else None
        if isinstance(values, dict) and "rows" in values and found != DUMP_FORMAT:
            raise UsageError(f"{file} is a dump of format {found}, and this version reads format {DUMP_FORMAT}; make it anew")
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "the whole"
            raise UsageError(f"{file} is not a dump ({where}: {first['msg']}); {expected}") from None

    def write(self, file: Path) -> None:
        """Writes the dump; a reader never sees half of it.

        Raises:
            UsageError: It cannot be written there.
        """
        write_text(file, self.model_dump_json() + "\n")


def digest(sequences: Sequences) -> str:
    """Returns the SHA-256 that names some sequences."""
    return hashlib.sha256(json.dumps(sequences).encode()).hexdigest()


def write_text(file: Path, text: str) -> None:
    """Writes a file; a reader sees the old one or the whole new one.

    Raises:
        UsageError: It cannot be written there.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent, prefix=".") as folder:
            draft = Path(folder, file.name)
            draft.write_text(text, encoding="utf-8")
            draft.replace(file)
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror or error}") from None


# ---- making one


class _Drawn(NamedTuple):
    """A row that is still to be made."""

    kind: Literal["greedy", "sampled"]
    prompt: int
    seed: int | None


async def dump(
    worker: VllmAsyncGenerationWorker,
    prompts: Sequence[Sequence[int]],
    *,
    samples: int = 2,
    seed: int = 0,
    tokens_of: Iterable[Sequences] = (),
    tell: Tell = lambda _: None,
) -> Dump:
    """Has a running engine generate from prompts, greedily and sampled as configured, and score what it made.

    Args:
        worker: The worker; its engine must run and hold the weights to be judged.
        prompts: Token ids of each prompt.
        samples: Sampled rows per prompt; none where the configured temperature is 0.
        seed: Seed of the first sampled row; the next has the next. With a seed of its own, a row does not depend on what
            else is generated beside it.
        tokens_of: Sequences of other dumps to score besides.
        tell: Called with what comes next.

    Raises:
        BatchError: There is no prompt, or one is empty or does not fit the context.
        EngineDiedError: A process of the engine died.
    """
    from worker import vllm_adapter
    from worker.parity.effective import effective, versions

    sampling = vllm_adapter.planned_sampling(worker.config, worker.plan)
    rows = tuple(tuple(map(int, row)) for row in prompts)
    drawn = [_Drawn("greedy", index, None) for index in range(len(rows))]
    tell("generating greedily")
    made = await _generate(worker, rows, drawn)
    if sampling.temperature > 0 and samples > 0:
        tell(f"sampling at temperature {sampling.temperature:g}")
        drawn = [_Drawn("sampled", n // samples, seed + n) for n in range(len(rows) * samples)]
        made += await _generate(worker, rows, drawn)
    scored: dict[str, tuple[tuple[float, ...], ...]] = {}
    own = [(rows[row.prompt], row.tokens) for row in made]
    for sequences in (own, *tokens_of):
        if (name := digest(sequences)) not in scored:
            tell("scoring the other engine's tokens" if scored else "scoring its own tokens")
            scored[name] = await _score(worker, sequences)
    model = worker.plan.context.model
    return Dump(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        model=model.name,
        model_type=str(model.config.get("model_type", "")),
        config_digest=sha256(model.config),
        weights_digest=_weights_digest(model.path),
        platform=worker.plan.context.platform or "",
        versions=versions(),
        plan=worker.plan.digest,
        quirks=tuple(verdict.id for verdict in worker.plan.active),
        settings=_settings(worker, sampling.model_dump(mode="json")),
        effective=effective(worker._running().llm.vllm_config),
        prompts=rows,
        rows=tuple(made),
        scored=scored,
    )


async def _generate(worker: VllmAsyncGenerationWorker, prompts: Sequence[Sequence[int]], drawn: Sequence[_Drawn]) -> list[Row]:
    """Makes rows of one kind."""
    from worker.batch import padded

    greedy = all(item.kind == "greedy" for item in drawn)
    batch = padded([prompts[item.prompt] for item in drawn])
    if not greedy:
        batch["seeds"] = [item.seed for item in drawn]
    found: dict[int, Row] = {}
    async for index, output in worker.generate_async(batch, greedy=greedy):
        item = drawn[index]
        new = slice(len(prompts[item.prompt]), None)
        tokens, logprobs = output["output_ids"][0, new].tolist(), output["logprobs"][0, new].tolist()
        found[index] = Row(kind=item.kind, prompt=item.prompt, seed=item.seed, tokens=tokens, logprobs=logprobs)
    return [found[index] for index in range(len(drawn))]


async def _score(worker: VllmAsyncGenerationWorker, sequences: Sequences) -> tuple[tuple[float, ...], ...]:
    """Returns the engine's logprobs of given tokens by prefill; of a sequence that fills the context all but the last one."""
    from worker.batch import padded

    longest = int(worker._running().llm.model_config.max_model_len) - 1  # vLLM generates a token after every prompt
    rows = [(*prompt, *tokens)[:longest] for prompt, tokens in sequences]
    found: dict[int, tuple[float, ...]] = {}
    async for index, output in worker.score_async(padded(rows)):
        found[index] = tuple(output["logprobs"][0, len(sequences[index][0]) :].tolist())
    return tuple(found[index] for index in range(len(rows)))


# ---- the facts


def _settings(worker: VllmAsyncGenerationWorker, sampling: Mapping[str, Any]) -> dict[str, Any]:
    plan = worker.plan
    slots = {slot: plan.value(slot) for slot in plan.context.settings.keys() | plan.changes.keys()}
    return dict(sorted({**slots, **{f"sampling.{name}": value for name, value in sampling.items()}}.items()))


def _weights_digest(model: str) -> str:
    """Returns a digest of probes of a folder's weights: another checkpoint of the same architecture has another."""
    found = hashlib.sha256()
    folder = Path(model).expanduser()
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    for file in files:
        size = file.stat().st_size
        found.update(f"{file.name} {size}".encode())
        with file.open("rb") as stream:
            for place in (0, size // 2, max(size - _PROBE, 0)):
                stream.seek(place)
                found.update(stream.read(_PROBE))
    return found.hexdigest() if files else ""


# ---- in a process of its own


def prepared(config: GenerationConfig, new_tokens: int | None = None) -> GenerationConfig:
    """Returns a configuration whose engine loads the checkpoint: a rollout's would wait for a trainer's weights.

    Args:
        config: The configuration; a load format that the user typed stays.
        new_tokens: Most tokens to generate from each prompt; as configured if None.
    """
    changes: dict[str, Any] = {}
    if config.engine.load_format is None:
        changes["engine"] = config.engine.model_copy(update={"load_format": "auto"})
    if new_tokens is not None:
        changes["sampling"] = config.sampling.model_copy(update={"max_new_tokens": new_tokens})
    return config.model_copy(update=changes)


class Order(ParityRecord):
    """What a process of its own is to do.

    Attributes:
        config: The configuration: the keys that were typed, and what `prepared` sets.
        disable: Quirks to turn off.
        force: Quirks to turn on.
        prompts: Token ids of each prompt.
        samples: Sampled rows per prompt.
        seed: Seed of the first.
        tokens_of: A dump whose tokens are scored besides.
        output: Where the dump goes.
    """

    config: dict[str, Any]
    disable: tuple[str, ...] = ()
    force: tuple[str, ...] = ()
    prompts: tuple[tuple[int, ...], ...]
    samples: int = 2
    seed: int = 0
    tokens_of: str | None = None
    output: str


async def carry_out(order: Order, tell: Tell) -> Dump:
    """Starts an engine, makes the dump and writes it; the engine is stopped whatever happens.

    Raises:
        QuirksError: The configuration is refused, or the engine does not start or dies.
    """
    from worker.async_worker import VllmAsyncGenerationWorker
    from worker.config import GenerationConfig

    others = [Dump.read(Path(order.tokens_of)).sequences] if order.tokens_of else []
    config = GenerationConfig.parse(order.config)
    worker = VllmAsyncGenerationWorker(config, disable=order.disable, force=order.force)
    try:
        tell("starting the engine")
        await worker.post_init_async()
        found = await dump(worker, order.prompts, samples=order.samples, seed=order.seed, tokens_of=others, tell=tell)
    finally:
        tell("stopping the engine")
        await worker.shutdown()
    found.write(Path(order.output))
    return found


def _main(file: str) -> int:
    def tell(text: str) -> None:
        sys.stdout.write(f"{STAGE}{text}\n")
        sys.stdout.flush()

    try:
        asyncio.run(carry_out(Order.model_validate_json(Path(file).read_bytes()), tell))
    except QuirksError as error:
        sys.stderr.write("\n".join([f"error: {error}", *getattr(error, "__notes__", [])]) + "\n")
        return error.exit_code
    except ValidationError as error:
        sys.stderr.write(f"error: this model-quirks cannot read the order: {words(error)}\n")
        return UsageError.exit_code
    return 0


if __name__ == "__main__":
    # vLLM's children inherit standard output; a dead reader must not make them fail.
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(_main(sys.argv[1]))
