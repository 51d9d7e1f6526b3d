"""The wrapper that ``lora-unread-settings`` puts around the reader of ``adapter_config.json``."""

import math
from collections.abc import Callable
from typing import Any

__all__ = ["wrap_from_dict"]

#: What changes an adapter's effect, and vLLM has no field for before 0.32.0.
_PATTERNS = ("rank_pattern", "alpha_pattern")
_UNREAD = (
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
        unread = [] if _has_one_scale(config_dict) else [name for name in _PATTERNS if config_dict.get(name)]
        unread += [name for name in _UNREAD if config_dict.get(name)]
        init = config_dict.get("init_lora_weights")
        if isinstance(init, str) and init.lower() not in _PLAIN_INITS:
            unread.append(f"init_lora_weights={init!r}")
        if unread:
            raise ValueError(f"this vLLM ignores these settings of the LoRA adapter: {', '.join(unread)}")
        return from_dict(cls, config_dict)

    return from_dict_or_refuse


def _has_one_scale(config: dict[str, Any]) -> bool:
    """Whether the patterns give each module the scale that vLLM gives to all; PEFT's EVA writes such."""
    ranks, alphas = (config.get(name) or {} for name in _PATTERNS)
    root = math.sqrt if config.get("use_rslora") else float
    pairs = [(alphas[name], rank) for name, rank in ranks.items() if name in alphas]
    return len(pairs) == len(ranks) == len(alphas) and all(
        math.isclose(alpha / root(rank), config["lora_alpha"] / root(config["r"])) for alpha, rank in pairs
    )
