"""Finds a model's files and reads JSON among them, never through remote code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from quirks_core.base.errors import UsageError

_CONFIG = "config.json"
#: Where a configuration states how its weights are quantised.
QUANTIZATION_KEYS = ("quantization_config", "compression_config")
#: Where composite configurations keep that of the language model; those of Qwen's omni models do so twice.
_TEXT = ("thinker_config", "text_config", "llm_config", "language_config")
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")


def config_file(model: str, revision: str | None = None) -> Path:
    """Returns the path of a model's ``config.json``; of a hub id, that of the newest commit that can be had.

    Raises:
        UsageError: There is no such folder or file, or the hub cannot be reached.
    """
    if (file := checkpoint_file(model, _CONFIG, revision)) is None:
        raise UsageError(f"model folder {model!r} has no config.json; point --model at the folder that holds it")
    return file


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
