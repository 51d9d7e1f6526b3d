"""The wrapper that ``lora-unread-settings`` puts around the reader of ``adapter_config.json``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["wrap_from_dict"]

#: What changes an adapter's effect, and vLLM has no field for before 0.32.0.
_UNREAD = (
    "rank_pattern",
    "alpha_pattern",
    "lora_bias",
    "alora_invocation_tokens",
    "layer_replication",
    "use_bdlora",
    "use_qalora",
)
#: Ways to initialise an adapter that leave the base weights as they are; True and False are such, too.
_PLAIN_INITS = ("gaussian", "eva", "orthogonal", "mica", "lora_ga")


def wrap_from_dict(from_dict: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a `PEFTHelper.from_dict` that refuses settings which vLLM would drop."""

    def from_dict_or_refuse(cls: Any, config_dict: dict[str, Any]) -> Any:
        unread = [name for name in _UNREAD if config_dict.get(name)]
        init = config_dict.get("init_lora_weights")
        if isinstance(init, str) and init.lower() not in _PLAIN_INITS:
            unread.append(f"init_lora_weights={init!r}")
        if unread:
            raise ValueError(f"this vLLM ignores these settings of the LoRA adapter: {', '.join(unread)}")
        return from_dict(cls, config_dict)

    return from_dict_or_refuse
