"""The sections of a configuration: their fields, with types, limits, defaults and help."""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

#: Trainers whose source was read (`quirks_core.facts.trainers`).
Framework = Literal["trl", "verl", "nemo-rl", "openrlhf", "skyrl", "prime-rl", "ms-swift", "pipeline-rl"]
#: What a language-model head computes in: float32, or the dtype of the model.
HeadDtype = Literal["float32", "model"]
#: What an HTTP header can hold without quoting; spaces would end the token.
_HEADER_TEXT = re.compile(r"[\x21-\x7e]+")


class Section(BaseModel):
    """A part of the configuration: frozen, and strict about its keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


def _lifted(values: Any, place: str, ours: Container[str] | None) -> Any:
    """Moves keys that were typed in a mapping inside of a section up to the section.

    Raises:
        ValueError: One of them was typed in both places with different values.
    """
    inner = values.get(place) if isinstance(values, dict) else None
    if not isinstance(inner, dict):
        return values
    moved = {key: value for key, value in inner.items() if ours is None or key in ours}
    if twice := sorted(key for key in moved if key in values and values[key] != moved[key]):
        raise ValueError(f"{', '.join(twice)} set twice with different values, here and under {place}")
    rest = {key: value for key, value in inner.items() if key not in moved}
    outer = {key: value for key, value in values.items() if key != place}
    return {**outer, **moved, **({place: rest} if rest else {})}


class ModelSection(Section):
    """Which checkpoint."""

    path: str = Field(min_length=1, description="folder or hub id")
    revision: str | None = Field(None, description="branch, tag or commit on the hub")
    tokenizer: str | None = Field(None, description="folder or hub id of the tokenizer; the model's own if left open")


class EngineSection(Section):
    """How the engine runs; what is left open is the engine's choice.

    Any other argument of the installed vLLM goes here, too, by its own name. ``vllm_kwargs`` is an alias: what stands in it
    counts as typed in the section itself.
    """

    model_config = ConfigDict(extra="allow")

    async_engine: bool = Field(True, description="asynchronous engine (AsyncLLM) instead of the synchronous one")
    async_scheduling: bool | None = Field(None, description="plan the next step while the device works on this one")
    load_format: str | None = Field(
        None,
        description="where weights come from at start: auto (the checkpoint), dummy (random), …; "
        "dummy for rollouts, else auto, if left open",
    )
    generate_from_dummy: bool = Field(
        False,
        description="generate from dummy weights before the first refit, for benchmarks of speed: the tokens mean nothing",
    )
    dtype: str | None = Field(None, description="dtype of the weights; auto takes the checkpoint's")
    head_dtype: HeadDtype | None = Field(
        None,
        description="dtype of the language-model head's product and of the logits; "
        "reaches vLLM as hf_overrides.head_dtype, and may be written there, too",
    )
    kv_cache_dtype: str | None = Field(None, description="dtype of the KV cache; auto takes the weights'")
    tensor_parallel_size: int = Field(1, ge=1, description="tensor-parallel ranks")
    pipeline_parallel_size: int = Field(1, ge=1, description="pipeline-parallel ranks")
    data_parallel_size: int = Field(
        1, ge=1, description="data-parallel ranks, of one engine or of several (parallel.dp_strategy)"
    )
    enable_expert_parallel: bool = Field(False, description="shard experts over data x tensor parallel ranks")
    enable_chunked_prefill: bool | None = Field(None, description="split long prompts over several steps")
    max_model_len: int | None = Field(None, ge=1, description="longest sequence, prompt and generation together, in tokens")
    max_num_seqs: int | None = Field(None, ge=1, description="most sequences that one step may hold")
    gpu_memory_utilization: float | None = Field(None, gt=0, le=1, description="share of device memory that the engine may use")
    enforce_eager: bool | None = Field(None, description="eager execution: no compilation, no CUDA graphs")
    enable_prefix_caching: bool | None = Field(None, description="reuse the KV cache of shared prefixes")
    enable_sleep_mode: bool | None = Field(
        None, description="lets sleep_async give memory back while the trainer works; GPUs only"
    )
    logprobs_mode: Literal["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"] | None = Field(
        None, description="what a logprob means: before (raw) or after (processed) temperature, penalties and top-k/p"
    )
    generation_config: str | None = Field(
        None, description="defaults of requests: auto (the checkpoint's generation_config.json), vllm (none), or a folder's"
    )
    seed: int | None = Field(None, description="seed of the engine's random numbers")
    compilation_config: dict[str, Any] | None = Field(None, description="vLLM's compilation settings")
    hf_overrides: dict[str, Any] | None = Field(None, description="changes to the checkpoint's config.json")

    @model_validator(mode="before")
    @classmethod
    def _lift(cls, values: Any) -> Any:
        """Typed as an argument or an override, a key of ours counts as typed in its own place."""
        return _lifted(_lifted(values, "vllm_kwargs", None), "hf_overrides", ("head_dtype",))

    @property
    def further(self) -> dict[str, Any]:
        """The arguments of vLLM that have no field here."""
        return dict(self.model_extra or {})


class SamplingSection(Section):
    """How tokens are sampled."""

    temperature: float = Field(1.0, ge=0, description="temperature of sampling; 0 is greedy")
    top_p: float = Field(1.0, gt=0, le=1, description="smallest share of probability to sample from")
    top_k: int = Field(-1, ge=-1, description="number of most probable tokens to sample from; -1 for all")
    max_new_tokens: int = Field(128, ge=1, description="most tokens to generate")
    min_new_tokens: int = Field(0, ge=0, description="fewest tokens to generate; stop tokens and strings wait until then")
    stop_strings: tuple[str, ...] = Field((), description="texts that end a generation; they stay part of it")
    stop_token_ids: tuple[int, ...] = Field((), description="tokens that end a generation, besides the model's own")
    ignore_eos: bool = Field(False, description="generate on after the end of sequence")


class TokenizerSection(Section):
    """How texts become tokens."""

    add_special_tokens: Literal["always", "never", "once"] = Field(
        "once",
        description="special tokens around a text prompt: always, never, or once, which is not again around a text that begins "
        "with BOS already",
    )


class TrainSection(Section):
    """What quirks need to know of the trainer."""

    backend: Literal["fsdp2", "megatron"] = Field("fsdp2", description="the trainer's parallelism")
    tensor_parallel_size: int = Field(1, ge=1, description="the trainer's tensor-parallel ranks")
    context_parallel_size: int = Field(1, ge=1, description="the trainer's context-parallel ranks")
    sequence_parallel: bool = Field(
        False, description="the trainer shards activations along the sequence over its tensor-parallel ranks"
    )
    sequence_packing: bool = Field(False, description="the trainer packs several sequences into one row")
    attn_implementation: Literal["eager", "flash_attention_2", "sdpa"] | None = Field(
        None, description="the trainer's attention; the trainer's choice if left open"
    )
    framework: Framework | None = Field(None, description="the program that trains, whose options advice names")
    dtype: Literal["bfloat16", "float16", "float32"] | None = Field(
        None, description="dtype of the trainer's weights, and of its forward pass without autocast; the engine's if left open"
    )
    trainable_dtype: Literal["bfloat16", "float16", "float32"] | None = Field(
        None, description="dtype of the weights that the optimizer updates (an adapter's, of LoRA); train.dtype if left open"
    )
    autocast: Literal["none", "bfloat16", "float16"] | None = Field(
        None,
        description="dtype of the trainer's products under autocast (mixed precision); that of its weights if none or open",
    )
    head_dtype: HeadDtype | None = Field(None, description="dtype of the trainer's language-model head and logits")

    @model_validator(mode="before")
    @classmethod
    def _typed_null(cls, values: Any) -> Any:
        """A null that is typed means no autocast; what is not typed is not known."""
        is_null = isinstance(values, dict) and values.get("autocast", "") is None
        return {**values, "autocast": "none"} if is_null else values


class ParallelSection(Section):
    """How the ranks of a `worker.WorkerGroup` belong together."""

    dp_strategy: Literal["actors", "engine", "independent"] | None = Field(
        None,
        description="data-parallel ranks as one engine per actor, all in one vLLM data-parallel group (actors), as one engine "
        "that owns its ranks (engine), or as engines that share nothing (independent)",
    )
    expert_parallel_size: int | None = Field(
        None,
        ge=1,
        description="ranks that share the experts of a MoE model; the engine's flag and sizes decide if left open",
    )
    distinct_seeds: bool = Field(
        True,
        description="every engine of a group has a seed of its own, engine.seed + its rank; with one seed, engines return "
        "the same samples for the same prompts",
    )


class ClusterSection(Section):
    """The machines, and what a `worker.WorkerGroup` requests from Ray on them."""

    num_nodes: int = Field(1, ge=1, description="number of nodes")
    gpus_per_node: int | None = Field(None, ge=1, description="GPUs of each node; left open on a platform without")
    address: str | None = Field(None, description="address of a running Ray cluster; Ray starts in this process if left open")
    placement: Literal["pack", "spread"] = Field(
        "pack", description="engines close together (pack), or on as many nodes as possible (spread)"
    )
    cpus_per_engine: float = Field(1.0, gt=0, description="CPUs that Ray reserves for each engine")
    start_timeout_s: float = Field(600.0, gt=0, description="seconds until every engine must be up")


class RefitSection(Section):
    """How new weights come from the trainer."""

    scope: Literal["parameters", "state_dict"] = Field(
        "parameters",
        description="what a refit sends: named parameters only, or the whole state dict with its persistent buffers",
    )
    transport: Literal["ipc_zmq", "collective"] = Field(
        "ipc_zmq", description="how refit_async and verify_refit_async send a model of this process"
    )
    clear_cache: bool = Field(
        True, description="drop the KV cache at a refit: requests in flight are computed again under the new weights"
    )
    timeout_s: float = Field(120.0, gt=0, description="seconds to wait for the trainer at each step of a transfer")
    buffer_mb: int = Field(
        512, ge=1, description="size of a transfer's buffers in MiB; there are two, and they grow to the largest tensor"
    )
    verify_every: int = Field(
        0,
        ge=0,
        description="after how many refits the recorded copies are compared with what the model's loaders would write; "
        "0 for the first time alone",
    )
    finite: bool = Field(
        True,
        description="refuse weights that hold NaN or infinite values; if false they are taken, with a warning that names them",
    )


class RequestSection(Section):
    """A request's limits."""

    timeout_s: float | None = Field(None, gt=0, description="seconds after which a rollout request is given up")


class ServerSection(Section):
    """The OpenAI-compatible server of the worker."""

    enabled: bool = Field(False, description="start it with the engine")
    host: str | None = Field(
        None,
        min_length=1,
        description="address to listen on; if left open 127.0.0.1, or 0.0.0.0 if cluster.num_nodes is above 1 and rl_routes is "
        "false, because other nodes must reach it then",
    )
    port: int = Field(0, ge=0, le=65535, description="port to listen on; 0 for any free one")
    api_key: SecretStr | None = Field(
        None, description="the key; if left open VLLM_API_KEY of the environment, else a new random one at each start"
    )
    rl_routes: bool = Field(
        False,
        description="add vLLM's routes for trainers (weight updates, pause, sleep, LoRA); who has their key can replace the "
        "weights",
    )
    rl_api_key: SecretStr | None = Field(
        None, description="the key of those routes; if left open a new random one at each start"
    )
    served_model_name: str | None = Field(
        None, min_length=1, description="the model's name in requests and replies; model.path if left open"
    )
    chat_template: str | None = Field(
        None, min_length=1, description="file of a chat template, or the template itself; the tokenizer's own if left open"
    )
    tool_parser: str | None = Field(None, min_length=1, description="vLLM's parser of tool calls, by its name")
    reasoning_parser: str | None = Field(None, min_length=1, description="vLLM's parser of reasoning, by its name")
    validation_temperature: float | None = Field(
        None,
        ge=0,
        description="temperature that a request may ask for in a rollout besides sampling.temperature: for validation, on "
        "whose samples are not trained on",
    )
    validation_top_p: float | None = Field(None, gt=0, le=1, description="top-p of validation; sampling.top_p if left open")

    @field_validator("api_key", "rl_api_key", mode="before")
    @classmethod
    def _key_for_a_header(cls, value: Any) -> Any:
        """Our own words, because pydantic's would quote the key."""
        text = value.get_secret_value() if isinstance(value, SecretStr) else value
        if text is not None and (not isinstance(text, str) or not _HEADER_TEXT.fullmatch(text)):
            raise ValueError("must be a text of visible ASCII characters without spaces (quote a number); it is not shown here")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.rl_routes and self.rl_api_key is not None:
            raise ValueError("there is an rl_api_key but rl_routes is false; set rl_routes: true, or take the key away")
        if self.rl_api_key is not None and self.rl_api_key == self.api_key:
            raise ValueError("rl_api_key and api_key are the same; who may generate could replace the weights")
        return self


class QuirksSection(Section):
    """Switches: names of quirks, flags or distributions, ``third-party``, ``all``."""

    disable: tuple[str, ...] = Field((), description="to turn off")
    force: tuple[str, ...] = Field((), description="to turn on, whatever their match and version ranges say")
    locked: str | None = Field(None, description="lock file (quirks lock) that the loaded quirks must agree with")
