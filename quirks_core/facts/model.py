"""What a checkpoint's ``config.json`` says of the model that vLLM builds of it, read as vLLM reads it; no remote code runs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from quirks_core.base.errors import UsageError
from quirks_core.base.record import Record
from quirks_core.facts.unknown import UNKNOWN, Unknown

_CONFIG = "config.json"
#: Where a configuration states how its weights are quantised.
QUANTIZATION_KEYS = ("quantization_config", "compression_config")
#: Where composite configurations keep that of the language model; those of Qwen's omni models do so twice.
_TEXT = ("thinker_config", "text_config", "llm_config", "language_config")
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts")
_HEADS, _WIDTH = ("num_attention_heads", "n_head", "n_heads"), ("hidden_size", "n_embd", "d_model")
_HEAD_WIDTH = ("attention_head_dim", "head_dim", "hidden_size_per_head")
_MEDIA = ("vision_config", "audio_config", "vision_tower_config", "visual", "thinker_config")
#: How those architectures of vLLM 0.16 to 0.33 are named that take images or audio, and no others.
_TAKES_MEDIA = re.compile(
    "(?<!ChatGLM)ForConditionalGeneration$|VL|LM4V|R1V|OCR|Omni|Ovis|Audio|Realtime|MiniCPM[OV]|Molmo|ondream|Fuyu|Kimia|Cheers"
    "|Ultravox|Dasheng|Alpamayo|DiffusionGemma|RadioMBart|Dots3Note|DeepseekV41|Phi(3V|4MM|4Multimodal|4ForCausalLMV)"
)
#: What an architecture's name ends with, after that of the model.
_TASK = re.compile("(For[A-Z].*|LMHeadModel|ChatModel|Model)$")
#: Parts of names that a model type does not separate as its architecture's capitals do, or separates where that has none.
_SPELLED = {"mini_max": "minimax", "mi_mo": "mimo", "mo_e": "moe", "granite_moe_hybrid": "granitemoehybrid", "hyv": "hy_v"}
_MODELOPT = "hf_quant_config.json"
#: Characters of a model type at most; a longer text is none.
_LONGEST_NAME = 200


class ModelFacts(Record):
    """The content of a checkpoint's ``config.json``.

    Attributes:
        name: Hub id or folder name.
        path: What the user gave.
        config: The parsed ``config.json``, with the ``quantization_config`` that ModelOpt up to 0.29 writes beside it.
    """

    name: str
    path: str
    config: dict[str, Any]

    @classmethod
    def read(cls, model: str, revision: str | None = None) -> ModelFacts:
        """Reads the facts from a folder or a hub id.

        Raises:
            UsageError: No readable ``config.json``.
        """
        if (file := checkpoint_file(model, _CONFIG, revision)) is None:
            raise UsageError(f"model folder {model!r} has no config.json; point --model at the folder that holds it")
        folder, config = Path(model).expanduser(), read_config(file)
        if config.get("quantization_config") is None and (beside := _modelopt(model, revision)):
            config["quantization_config"] = beside
        return cls(name=folder.resolve().name if folder.is_dir() else model, path=model, config=config)

    @property
    def text_config(self) -> dict[str, Any]:
        """The language model's part of the configuration: ``text_config`` of a multimodal model, else the whole."""
        return text_config(self.config)

    @property
    def model_type(self) -> str | None:
        """``model_type``; None for a text that is too long for a name."""
        value = self.config.get("model_type")
        return value if isinstance(value, str) and len(value) <= _LONGEST_NAME else None

    @property
    def architectures(self) -> tuple[str, ...]:
        """``architectures``."""
        value = self.config.get("architectures")
        return tuple(str(name) for name in value) if isinstance(value, list) else ()

    @cached_property
    def model_types(self) -> tuple[str, ...]:
        """``model_type``, and the type that an architecture is named after where that is another model."""
        given = self.model_type
        built = (_type_of(name) for name in self.architectures)
        return tuple(dict.fromkeys([*filter(None, [given]), *(name for name in built if not _is_of(given, name))]))

    @property
    def num_experts(self) -> int | Unknown | None:
        """Number of routed experts of a MoE layer, the most of any layer.

        Returns:
            None for a dense model; `UNKNOWN` if the configuration gives no number, and either no model type or one of a MoE.
        """
        blocks = self.text_config.get("block_configs")
        several = [block for block in blocks if isinstance(block, dict)] if isinstance(blocks, list) else []
        parts = (self.config, self.text_config, *several)
        given = [part[key] for part in parts for key in _EXPERTS if part.get(key) is not None]
        if given:  # Ernie's configuration has a list, by layer
            counts = [count for item in given for count in (item if isinstance(item, list) else [item])]
            numbers = [count for count in counts if isinstance(count, int)]
            most = max(numbers, default=0)
            return most if most > 1 else None if len(numbers) == len(counts) else UNKNOWN
        names = " ".join((self.model_type or "", str(self.text_config.get("model_type")), *self.architectures))
        return UNKNOWN if self.model_type is None or "moe" in names.lower() else None

    @property
    def is_moe(self) -> bool:
        """The model is known to have more than one expert; the fact ``model.is_moe`` is unknown where the number is."""
        return isinstance(self.num_experts, int)

    @property
    def head_size(self) -> int | None:
        """Width of an attention head of the language model; None if the configuration has no number of such heads."""
        heads, width, given = (
            next((count for key in keys if isinstance(count := self.text_config.get(key), int) and count > 0), None)
            for keys in (_HEADS, _WIDTH, _HEAD_WIDTH)
        )
        return None if heads is None else given or (None if width is None else width // heads)

    @property
    def quantization(self) -> dict[str, Any]:
        """How the weights are quantised, by the first of the places where vLLM looks; empty if they are not.

        What ModelOpt nests in ``quantization`` is beside the other keys, and its ``quant_method`` is that of its algorithm.
        """
        parts = (self.config, self.text_config)
        stated = (part.get(key) for part in parts for key in QUANTIZATION_KEYS)
        found: dict[str, Any] = next((item for item in stated if isinstance(item, dict)), {})
        inner, producer = found.get("quantization"), found.get("producer")
        flat = {**found, **inner} if isinstance(inner, dict) else found
        if isinstance(producer, dict) and producer.get("name") == "modelopt" and flat.get("quant_algo"):
            return {**flat, "quant_method": "modelopt_fp4" if str(flat["quant_algo"]).upper() == "NVFP4" else "modelopt"}
        return flat

    @property
    def is_quantized(self) -> bool:
        """The weights are quantised."""
        return bool(self.quantization)

    @property
    def is_multimodal(self) -> bool:
        """The model accepts image or audio input: by the architecture that vLLM builds, or by what the configuration holds."""
        built = next(iter(self.architectures), "")
        if _TAKES_MEDIA.search(built) or built.endswith("ForCausalLM"):
            return bool(_TAKES_MEDIA.search(built))
        return any(self.config.get(key) for key in _MEDIA)


def _modelopt(model: str, revision: str | None) -> dict[str, Any] | None:
    try:
        file = checkpoint_file(model, _MODELOPT, revision)
        return None if file is None else read_config(file)
    except UsageError:  # the hub cannot be reached: vLLM then goes on without the file
        return None


def _type_of(architecture: str) -> str:
    """Returns the ``model_type`` of a model by the name of its class."""
    name = re.sub("(?<=[a-z0-9])(?=[A-Z])", "_", _TASK.sub("", architecture)).lower()
    for text, spelled in _SPELLED.items():
        name = name.replace(text, spelled)
    return name


def _is_of(model_type: str | None, built: str) -> bool:
    """Whether a type is that of a class, or of a part of such a model (``gemma3_text``)."""
    plain = re.sub("[-_]", "", model_type or "").lower()
    return plain == built.replace("_", "") or (model_type or "").startswith(f"{built}_")


def checkpoint_file(model: str, name: str, revision: str | None = None) -> Path | None:
    """Returns the path of one of a model's smaller files; None if it has no such file.

    Raises:
        UsageError: It cannot be read: there is no such folder, or the hub cannot be reached.
    """
    try:
        folder = Path(model).expanduser()
        if folder.is_dir():
            return file if (file := folder / name).is_file() else None
        is_file = folder.exists()
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError(f"model folder {model!r} cannot be read: {error}") from None
    if is_file:
        raise UsageError(f"model {model!r} is a file; give the folder that holds config.json, or a hub id")
    if model.startswith((".", "/", "~")) or model.count("/") != 1:
        raise UsageError(f"model folder {model!r} does not exist (and it is no hub id of the form organisation/name)")
    return _hub_file(model, name, revision)


def _hub_file(model: str, name: str, revision: str | None) -> Path | None:
    try:
        from huggingface_hub import hf_hub_download, try_to_load_from_cache
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
    except ImportError:
        raise UsageError(
            f"model {model!r} is no folder here, and reading it from the hub needs huggingface_hub: "
            "pip install huggingface_hub, or give a folder"
        ) from None
    # config.json is read first and brings the newest commit; what the cache then has, or knows to be absent, needs no request.
    cached = try_to_load_from_cache(model, name, revision=revision) if name != _CONFIG else None
    if cached is not None:
        return Path(cached) if isinstance(cached, str) else None
    why = unreachable()
    try:
        return Path(hf_hub_download(model, name, revision=revision, local_files_only=bool(why)))
    except LocalEntryNotFoundError as error:
        why = f"the hub cannot be reached, and the cache lacks it: {why}" if why else _first_line(error)
    except EntryNotFoundError:
        return None
    except Exception as error:  # access that is refused, a repository that does not exist
        why = _first_line(error)
    raise UsageError(f"{name} of {model!r} cannot be read from the hub: {why}")


@lru_cache(maxsize=1)
def unreachable() -> str:
    """Returns why the hub cannot be reached, empty if it can: one request without repetition answers for the whole process.

    Each request of the hub's own client is repeated for 25 s, and a model's facts are in half a dozen files.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except Exception as error:  # no network, no answer in time, or offline mode
        return _first_line(error)
    return ""


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def read_config(file: Path) -> dict[str, Any]:
    """Returns the parsed ``config.json``, or another file that holds a JSON object.

    Raises:
        UsageError: The file cannot be read, or does not hold a JSON object.
    """
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        what = "is not valid JSON" if isinstance(error, json.JSONDecodeError) else "cannot be read"
        raise UsageError(f"{file} {what}: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(config, dict):
        raise UsageError(f"{file} must hold a JSON object, not a {type(config).__name__}")
    return config


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the language model's part of a configuration, which may be the whole."""
    while inner := next((config[key] for key in _TEXT if isinstance(config.get(key), dict)), None):
        config = inner
    return config


def overridden(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a model's configuration with ``engine.hf_overrides`` in it, as vLLM's ``ModelConfig`` applies them.

    A mapping is merged into a configuration inside of the configuration (``text_config``), and replaces any other value.
    """
    merged = {
        key: _merged(config[key], value)
        for key, value in changes.items()
        if key.endswith("_config")
        and key not in QUANTIZATION_KEYS
        and isinstance(value, dict)
        and isinstance(config.get(key), dict)
    }
    return {**config, **changes, **merged}


def _merged(target: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    inner = {
        key: _merged(target[key], value)
        for key, value in changes.items()
        if isinstance(value, dict) and isinstance(target.get(key), dict)
    }
    return {**target, **changes, **inner}


def require_weights(model: str) -> None:
    """Makes sure that a model folder holds weights; a hub id is the engine's business.

    Raises:
        UsageError: The folder has none.
    """
    folder = Path(model).expanduser()
    if folder.is_dir() and not any(next(folder.glob(pattern), None) for pattern in _WEIGHTS):
        raise UsageError(
            f"model folder {model!r} has no weights ({', '.join(_WEIGHTS)}); "
            "add them, or start from random weights with --set engine.load_format=dummy"
        )
