"""Environment variables: which ones can be set, and which ones no quirk may read or set."""

from __future__ import annotations

import re

from quirks_core.base.errors import shown

#: Endings of words that mark the name of a secret: ``HF_TOKEN``, ``VLLM_API_KEY``, ``NGC_APIKEY``.
_SECRET = ("CREDENTIAL", "CREDENTIALS", "KEY", "KEYS", "PASSWD", "PASSWORD", "SECRET", "SECRETS", "TOKEN")
#: Variables that decide which code Python, the dynamic linker, a shell or vLLM runs.
_CODE = re.compile(r"PATH|PYTHON.*|LD_.*|DYLD_.*|BASH_ENV|ENV|VLLM_PLUGINS")
#: Variables that keep torch from compiling, if they are 1.
COMPILATION_SWITCHES = ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE")
#: Our own switches: a quirk that sets them would switch quirks on or off.
_OURS = "MODEL_QUIRKS_"


def is_secret(name: str) -> bool:
    """Returns whether a variable's name looks like that of a secret."""
    return any(word.endswith(_SECRET) for word in name.upper().split("_"))


def reason_to_refuse(name: str) -> str | None:
    """Returns why no quirk may read or set a variable; None if one may."""
    if is_secret(name):
        return f"env.{name}: the name looks like that of a secret, and plans are kept and shown"
    if _CODE.fullmatch(name):
        return f"env.{name} chooses the code that runs, which is the user's to choose"
    if name.startswith(_OURS):
        return f"env.{name} is a switch of model-quirks itself"
    return problem_of_variable(name, "")


def problem_of_variable(name: str, value: str) -> str | None:
    """Returns why the operating system would not take a variable; None if it would."""
    if not name or "=" in name or "\0" in name:
        return f"{shown(name)} cannot be the name of an environment variable"
    return f"the value of {name} holds a null character" if "\0" in value else None
