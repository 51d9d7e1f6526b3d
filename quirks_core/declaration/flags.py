"""What a quirk is filed under: its kind, and the behaviour that it adjusts."""

from __future__ import annotations

import re
from enum import StrEnum, auto

from quirks_core.base.errors import UsageError, nearest

#: The distribution whose quirks are built in.
BUILT_IN = "model-quirks"


class ModelFlag(StrEnum):
    """The behaviour that a quirk adjusts; a user can switch off all quirks of one flag."""

    ATTENTION = auto()
    COMPILATION = auto()
    CONTEXT_PARALLEL = auto()
    DP_EP_STRATEGY = auto()
    DTYPE = auto()
    ENFORCE_EAGER = auto()
    ENVIRONMENT = auto()
    KV_CACHE = auto()
    LM_HEAD_DTYPE = auto()
    LOAD_FORMAT = auto()
    LOGPROBS = auto()
    LORA = auto()
    MODEL_CONFIG = auto()
    MOE_BACKEND = auto()
    MULTIMODAL = auto()
    PREFIX_CACHE = auto()
    RUNTIME = auto()
    SEQUENCE_PACKING = auto()
    SEQUENCE_PARALLEL = auto()
    SLEEP = auto()
    SPECULATIVE = auto()
    THROUGHPUT = auto()
    TIMEOUT = auto()
    TOKENIZER = auto()
    WEIGHT_SYNC = auto()


class Kind(StrEnum):
    """What a quirk is."""

    WORKAROUND = auto()  #: it cures a defect, in a range of versions, until evidence retires it
    RULE = auto()  #: it follows a limit or definition of vLLM or a trainer, and refuses, advises or sets what works
    FEATURE = auto()  #: throughput, or a default of our own configuration

    def conclusion(self, word: str) -> str:
        """Returns a conclusion of any kind in the words of this one: a workaround is NEEDED, a rule or feature HOLDS."""
        ours, others = (0, 1) if self is Kind.WORKAROUND else (1, 0)
        return {pair[others]: pair[ours] for pair in _CONCLUSIONS}.get(word, word)


#: The conclusions of workarounds, each with that of rules and features.
_CONCLUSIONS = (("NEEDED", "HOLDS"), ("NOT NEEDED", "DOES NOT HOLD"))
_NAMES = frozenset(flag.value for flag in ModelFlag)
#: A third party may name a behaviour of its own as ``distribution:name``.
_OWN_FLAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*:[a-z0-9_]+")


def folder_of(module: str) -> str:
    """Returns the name of a module's folder, which is the flag of a quirk in it that states none."""
    return module.rpartition(".")[0].rpartition(".")[2]


def flag_name(flag: str) -> str:
    """Returns the canonical name of a flag.

    Args:
        flag: A `ModelFlag`, its name in any case, or a third party's ``distribution:name``.

    Raises:
        UsageError: No such flag; the message names the nearest one.
    """
    lowered = flag.lower()
    if lowered in _NAMES:
        return lowered
    if _OWN_FLAG.fullmatch(flag):
        return flag
    raise UsageError(f"unknown flag {flag!r}{nearest(lowered, _NAMES)}")
