"""The configuration of a generation run: what the user typed, checked, with its defaults.

A slot's name (``engine.load_format``) is a path into this configuration. Unknown keys are errors with the nearest name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from quirks_core import sources
from quirks_core.context import Purpose
from quirks_core.errors import UsageError, nearest
from quirks_core.slots import SLOTS
from worker.section import Section, lifted
from worker.server.config import ServerSection

#: As `quirks_core.slots.HEAD_DTYPES`.
HeadDtype = Literal["float32", "model"]


class ModelSection(Section):
    """Which checkpoint.

    Attributes:
        path: Folder or hub id.
        revision: Branch, tag or commit on the hub.
        tokenizer: Folder or hub id of the tokenizer; the model's own if None.
    """

    path: str = Field(min_length=1)
    revision: str | None = None
    tokenizer: str | None = None


class EngineSection(Section):
    """How the engine runs. None leaves the choice to the engine.

    Attributes:
        runtime: vLLM's runtime. V0 exists only before vLLM 0.11.
        async_engine: Asynchronous engine instead of the synchronous one.
        async_scheduling: Plan the next step while the device works on this one.
        load_format: Where weights come from at start; ``dummy`` for rollouts, else ``auto``, if None.
        dtype: dtype of the weights.
        head_dtype: dtype of the language-model head's product and of the logits: ``float32``, or that of the ``model``. Reaches
            vLLM as ``hf_overrides.head_dtype``, and may be written there, too.
        kv_cache_dtype: dtype of the KV cache.
        tensor_parallel_size: Tensor-parallel ranks.
        pipeline_parallel_size: Pipeline-parallel ranks.
        data_parallel_size: Data-parallel ranks; which engines they belong to says ``parallel.dp_strategy``.
        enable_expert_parallel: Shard experts over data x tensor parallel ranks.
        enable_chunked_prefill: Split long prompts over several steps.
        max_model_len: Longest sequence, prompt and generation together, in tokens.
        max_num_seqs: Most sequences that one step may hold.
        gpu_memory_utilization: Share of device memory.
        enforce_eager: No compilation, no CUDA graphs.
        enable_prefix_caching: Reuse the KV cache of shared prefixes.
        enable_sleep_mode: Lets ``sleep_async`` give memory back while the trainer works; GPUs only.
        logprobs_mode: What a logprob means.
        generation_config: Where the defaults of requests come from: the checkpoint's ``generation_config.json`` (``auto``),
            nowhere (``vllm``), or another folder's.
        seed: Seed of the engine's random numbers.
        compilation_config: vLLM's compilation settings.
        hf_overrides: Changes to the checkpoint's ``config.json``.
        vllm_kwargs: Any other engine argument of the installed vLLM, by its own name.
    """

    runtime: Literal["v0", "v1"] = "v1"
    async_engine: bool = True
    async_scheduling: bool | None = None
    load_format: str | None = None
    dtype: str | None = None
    head_dtype: HeadDtype | None = None
    kv_cache_dtype: str | None = None
    tensor_parallel_size: int = Field(default=1, ge=1)
    pipeline_parallel_size: int = Field(default=1, ge=1)
    data_parallel_size: int = Field(default=1, ge=1)
    enable_expert_parallel: bool = False
    enable_chunked_prefill: bool | None = None
    max_model_len: int | None = Field(default=None, ge=1)
    max_num_seqs: int | None = Field(default=None, ge=1)
    gpu_memory_utilization: float | None = Field(default=None, gt=0, le=1)
    enforce_eager: bool | None = None
    enable_prefix_caching: bool | None = None
    enable_sleep_mode: bool | None = None
    logprobs_mode: Literal["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"] | None = None
    generation_config: str | None = None
    seed: int | None = None
    compilation_config: dict[str, Any] | None = None
    hf_overrides: dict[str, Any] | None = None
    vllm_kwargs: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _lift(cls, values: Any) -> Any:
        """A key of ours that was typed where vLLM has it, as an argument or an override, counts as typed in its own place."""
        return lifted(lifted(values, "vllm_kwargs", cls.model_fields), "hf_overrides", ("head_dtype",))


class SamplingSection(Section):
    """How tokens are sampled.

    Attributes:
        temperature: 0 is greedy.
        top_p: Smallest share of probability to sample from.
        top_k: Number of most probable tokens to sample from; -1 for all.
        max_new_tokens: Most tokens to generate.
        min_new_tokens: Fewest tokens to generate; stop tokens and stop strings wait until then.
        stop_strings: Texts that end a generation; they stay part of it.
        stop_token_ids: Tokens that end a generation, besides the model's end of sequence.
        ignore_eos: Generate on after the end of sequence.
        pad_token_id: Fills rows to equal length; from the checkpoint if None.
    """

    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=-1, ge=-1)
    max_new_tokens: int = Field(default=128, ge=1)
    min_new_tokens: int = Field(default=0, ge=0)
    stop_strings: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    pad_token_id: int | None = None


class TrainSection(Section):
    """What quirks need to know of the trainer.

    Attributes:
        backend: The trainer's parallelism.
        tensor_parallel_size: Tensor-parallel ranks.
        context_parallel_size: Context-parallel ranks.
        sequence_parallel: Shard activations along the sequence over the tensor-parallel ranks.
        sequence_packing: Pack several sequences into one row.
        attn_implementation: Attention of the trainer's model; the trainer's choice if None.
        dtype: dtype of the trainer's forward pass; the engine's if None.
        head_dtype: dtype of its language-model head and logits: ``float32``, or that of the ``model``.
    """

    backend: Literal["fsdp2", "megatron"] = "fsdp2"
    tensor_parallel_size: int = Field(default=1, ge=1)
    context_parallel_size: int = Field(default=1, ge=1)
    sequence_parallel: bool = False
    sequence_packing: bool = False
    attn_implementation: Literal["eager", "flash_attention_2", "sdpa"] | None = None
    dtype: Literal["bfloat16", "float16", "float32"] | None = None
    head_dtype: HeadDtype | None = None


class ParallelSection(Section):
    """How the ranks of a `worker.WorkerGroup` belong together.

    Attributes:
        dp_strategy: ``actors`` (an engine per data-parallel rank, all in one vLLM data-parallel group), ``engine`` (one engine
            that owns its data-parallel ranks) or ``independent`` (engines that share nothing). A quirk chooses if None.
        expert_parallel_size: Ranks that share the experts of a MoE model; what the flag ``engine.enable_expert_parallel`` and
            the sizes come to if None. A size that vLLM would not form is refused.
        distinct_seeds: Every engine of a group has a seed of its own, ``engine.seed`` plus its rank. A quirk chooses if None.
    """

    dp_strategy: Literal["actors", "engine", "independent"] | None = None
    expert_parallel_size: int | None = Field(default=None, ge=1)
    distinct_seeds: bool | None = None


class ClusterSection(Section):
    """The machines, and what a `worker.WorkerGroup` asks of Ray on them.

    Attributes:
        num_nodes: Number of nodes.
        gpus_per_node: GPUs of each node; None on a platform without.
        address: Address of a running Ray cluster; None starts Ray in this process.
        placement: Engines close together (``pack``) or on as many nodes as possible (``spread``).
        cpus_per_engine: CPUs that Ray reserves for each engine.
        start_timeout_s: Seconds until every engine must be up.
    """

    num_nodes: int = Field(default=1, ge=1)
    gpus_per_node: int | None = Field(default=None, ge=1)
    address: str | None = None
    placement: Literal["pack", "spread"] = "pack"
    cpus_per_engine: float = Field(default=1.0, gt=0)
    start_timeout_s: float = Field(default=600.0, gt=0)


class RefitSection(Section):
    """How new weights come from the trainer.

    Attributes:
        scope: What it sends: named parameters only, or the whole state dict with its persistent buffers.
        transport: How ``refit_async`` and ``verify_refit_async`` send a model of this process.
        clear_cache: Drop the KV cache: requests in flight are computed anew under the new weights. Without, they go on with
            what the old weights left in it. A quirk chooses if None.
        timeout_s: Seconds to wait for the trainer at each step of a transfer.
        buffer_mb: Size of a transfer's buffers in MiB; there are two, and they grow to the largest tensor.
        socket_dir: Folder for the sockets of ``ipc_zmq``, of mode 0700 and with a short path; a temporary one if None.
    """

    scope: Literal["parameters", "state_dict"] = "parameters"
    transport: Literal["ipc_zmq", "collective", "file"] = "ipc_zmq"
    clear_cache: bool | None = None
    timeout_s: float = Field(default=120.0, gt=0)
    buffer_mb: int = Field(default=512, ge=1)
    socket_dir: str | None = None


class RequestSection(Section):
    """A request's limits: seconds after which it is given up."""

    timeout_s: float | None = Field(default=None, gt=0)


class QuirksSection(Section):
    """Switches: names of quirks, flags or distributions, ``third-party``, ``all``.

    Attributes:
        disable: To turn off.
        force: To turn on, whatever their match and version ranges say.
        locked: Lock file (``quirks lock``) that the loaded quirks must agree with.
    """

    disable: tuple[str, ...] = ()
    force: tuple[str, ...] = ()
    locked: str | None = None


class GenerationConfig(Section):
    """Everything that a generation worker needs to know.

    Attributes:
        purpose: ``rollout`` (a trainer will refit: weights start as dummy), ``eval`` or ``serve`` (weights are loaded).
        recipe: Name of the training recipe.
        model: Which checkpoint; a plain text is its path.
        engine: How the engine runs.
        sampling: How tokens are sampled.
        train: What quirks need to know of the trainer.
        parallel: How the ranks of a group belong together.
        cluster: The machines.
        refit: What a refit sends.
        request: A request's limits.
        server: The OpenAI-compatible server.
        env: Environment variables for the engine's processes.
        quirks: Switches.
    """

    purpose: Purpose = "rollout"
    recipe: str | None = None
    model: ModelSection
    engine: EngineSection = EngineSection()
    sampling: SamplingSection = SamplingSection()
    train: TrainSection = TrainSection()
    parallel: ParallelSection = ParallelSection()
    cluster: ClusterSection = ClusterSection()
    refit: RefitSection = RefitSection()
    request: RequestSection = RequestSection()
    server: ServerSection = ServerSection()
    env: dict[str, str] = Field(default_factory=dict)
    quirks: QuirksSection = QuirksSection()

    @field_validator("model", mode="before")
    @classmethod
    def _model_from_path(cls, value: Any) -> Any:
        return {"path": str(value)} if isinstance(value, str | Path) else value

    @field_validator("env", mode="before")
    @classmethod
    def _env_as_text(cls, value: Any) -> Any:
        """YAML reads ``NAME: 0`` as a number; in an environment it is a text."""
        if not isinstance(value, dict):
            return value
        return {
            key: str(item) if isinstance(item, int | float) and not isinstance(item, bool) else item
            for key, item in value.items()
        }

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """Checks a nested mapping.

        Raises:
            UsageError: Something is wrong with it; the message lists everything, with the nearest names.
        """
        try:
            config = cls.model_validate(dict(values))
        except ValidationError as error:
            raise UsageError("; ".join(_problem(cls, item) for item in error.errors())) from None
        if problems := config._unsuitable_slots():
            raise UsageError("; ".join(problems))
        return config

    @classmethod
    def load(cls, file: str | Path | None = None, *, model: str | None = None, settings: Iterable[str] = ()) -> Self:
        """Reads a YAML file and lays command-line settings over it.

        Args:
            file: The file; None for none.
            model: Overrides the file's model.
            settings: Texts of the form ``engine.load_format=dummy``; values are read as YAML.

        Raises:
            UsageError: The file cannot be read, or something is wrong with its content.
        """
        values = _read_yaml(Path(file)) if file is not None else {}
        if model is not None:
            section = values.get("model")
            values["model"] = {**section, "path": model} if isinstance(section, dict) else {"path": model}
        for text in settings:
            _lay_over(values, text)
        if "model" not in values:
            raise UsageError("no model: give --model FOLDER_OR_HUB_ID, or a configuration with a 'model' key")
        return cls.parse(values)

    @property
    def model_path(self) -> str:
        """Folder or hub id."""
        return self.model.path

    @property
    def model_revision(self) -> str | None:
        """Branch, tag or commit on the hub."""
        return self.model.revision

    def environment(self) -> Mapping[str, str]:
        """The environment variables that the configuration sets."""
        return self.env

    def slots(self) -> dict[str, Any]:
        """Returns the value of every slot before quirks; a slot that is left open is missing."""
        values = {"engine.load_format": "dummy" if self.purpose == "rollout" else "auto"}
        for slot in SLOTS:
            section, _, key = slot.partition(".")
            if section != "env" and (value := getattr(getattr(self, section), key)) is not None:
                values[slot] = value
        return values

    def typed_slots(self) -> frozenset[str]:
        """Returns the slots whose value the user typed, also where it equals the default; null leaves a slot open."""
        typed = set()
        for slot in SLOTS:
            name, _, key = slot.partition(".")
            section = None if name == "env" else getattr(self, name)
            if section is not None and key in section.model_fields_set and getattr(section, key) is not None:
                typed.add(slot)
        return frozenset(typed)

    def check_engine_arguments(self) -> None:
        """Makes sure that the installed vLLM knows every key of ``engine.vllm_kwargs``; passes where none is installed.

        Raises:
            UsageError: Keys it does not know; the message gives each with the nearest one.
        """
        known = sources.engine_fields()
        if known is None:
            return
        wrong = [
            f"engine.vllm_kwargs.{key}: the installed vLLM has no such engine argument{nearest(key, known)}"
            for key in self.engine.vllm_kwargs
            if key not in known
        ]
        if wrong:
            raise UsageError("; ".join(wrong))

    def _unsuitable_slots(self) -> list[str]:
        slots = {**self.slots(), **{f"env.{key}": value for key, value in self.env.items() if f"env.{key}" in SLOTS}}
        return [problem for slot, value in slots.items() if (problem := SLOTS[slot].problem(value))]


class _UniqueKeys(yaml.SafeLoader):
    """Refuses a key that is written twice: plain YAML would drop the first, a whole section perhaps, in silence."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in seen:
                    raise yaml.MarkedYAMLError(problem=f"key {key.value!r} is written twice", problem_mark=key.start_mark)
                seen.add(key.value)
        return node


def _read_yaml(file: Path) -> dict[str, Any]:
    try:
        values = yaml.load(file.read_text(encoding="utf-8"), _UniqueKeys)  # noqa: S506  # a SafeLoader
    except OSError as error:
        raise UsageError(f"configuration {file} cannot be read: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"configuration {file} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise UsageError(f"configuration {file} must hold a mapping, not {type(values).__name__}")
    return values


def _lay_over(values: dict[str, Any], text: str) -> None:
    """Sets one ``path=value`` in nested mappings."""
    path, equals, raw = text.partition("=")
    if not equals or not path:
        raise UsageError(f"--set {text!r}: write slot=value, for example engine.load_format=dummy")
    try:
        value = yaml.safe_load(raw)
    except yaml.YAMLError:
        raise UsageError(f"--set {text!r}: {raw!r} is not valid YAML") from None
    *parents, key = path.strip().split(".")
    here = values
    for parent in parents:
        below = here.setdefault(parent, {})
        if not isinstance(below, dict):
            if parent != "model":
                raise UsageError(f"--set {text!r}: {parent!r} has no keys")
            below = here[parent] = {"path": str(below)}
        here = below
    here[key] = value


def _problem(root: type[BaseModel], item: Any) -> str:
    """Puts one pydantic error into our words: path, what is wrong, nearest name."""
    path = ".".join(str(part) for part in item["loc"])
    if item["type"] != "extra_forbidden":
        message = item["msg"].removeprefix("Value error, ")
        return (
            f"{path}: {message}" if item["type"] in ("missing", "value_error") else f"{path}: {message}, not {item['input']!r}"
        )
    section: Any = root
    for part in item["loc"][:-1]:
        section = section.model_fields[part].annotation
    key = str(item["loc"][-1])
    hint = nearest(key, section.model_fields)
    if not hint and len(item["loc"]) == 1:  # a key of some section at the top level
        hint = nearest(key, SLOTS)
    if not hint and section is EngineSection:
        hint = "; any other argument of vLLM goes under engine.vllm_kwargs"
    return f"{path}: unknown key{hint}"
