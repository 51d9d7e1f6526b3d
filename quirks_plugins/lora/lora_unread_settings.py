"""Before vLLM 0.32.0, adapter settings that vLLM does not know are ignored: the adapter is applied at the wrong strength.

What happens: an adapter with ``rank_pattern`` or ``alpha_pattern`` gets one scale, alpha by rank, for all its modules, so that
those to which the patterns give another are applied too strongly or too weakly. An activated LoRA acts on every token, and the
base weights that PiSSA, OLoRA, CorDA or LoftQ changed are not changed. Nothing is logged. ``PEFTHelper.from_dict`` drops every
key of ``adapter_config.json`` that vLLM has no field for. vLLM 0.32.0 applies the patterns and refuses the other settings.

In a request for an adapter that is not loaded the error ends the engine, as other errors of an adapter do.

When it can go: when vLLM 0.31 is no longer supported. vLLM 0.16.0 and 0.20.0 do not have the fields either.
"""

import json
import math
from collections.abc import Callable
from typing import Any

from quirks_core import Affected, Patch, Quirk, Severity, StaticProbe, no, report, setting, unknown, yes
from quirks_plugins.kit import Lab, Outcome
from quirks_plugins.lora.evidence import ENGINE, greedy, write_adapter
from quirks_plugins.runs import LORA

QUIRK = Quirk(
    id="lora-unread-settings",
    title="Settings of a LoRA adapter that vLLM does not know are ignored, and it is applied at the wrong strength",
    match=setting("engine.enable_lora").is_true(),
    affected=Affected("vllm", introduced="0.26.0", fixed="0.32.0"),
    adjustments=Patch(
        "vllm.lora.peft_helper:PEFTHelper.from_dict",
        wrapper="quirks_plugins.lora.lora_unread_settings:wrap_from_dict",
        expects=("da1727e6cc35",),
        reason="the settings are in the adapter's file, which no setting of the engine checks",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=report("axolotl-ai-cloud/axolotl/pull/3673"),
    evidence=StaticProbe("vllm.lora.peft_helper", r"rank_pattern: dict", found_means_affected=False),
    examples=[
        yes("qwen3", LORA, vllm="0.31.0", patches="PEFTHelper.from_dict"),
        yes("qwen3", LORA, vllm="0.26.0", purpose="serve"),
        no("qwen3", vllm="0.31.0"),
        no("qwen3", LORA, vllm="0.32.0"),
        unknown("qwen3", LORA, vllm="0.25.1"),
    ],
)


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


async def scenario(lab: Lab) -> Outcome:
    """An adapter with an alpha of its own for some modules is applied with it, or refused."""
    plain, other = (write_adapter(lab.folder / name, seed=1) for name in ("plain", "pattern"))
    file = other / "adapter_config.json"
    changed = {**json.loads(file.read_text(encoding="utf-8")), "alpha_pattern": {"q_proj": 64}}
    file.write_text(json.dumps(changed), encoding="utf-8")
    measure, expected = "an adapter with an alpha_pattern", "refused, or other tokens than without it"
    async with lab.worker(lab.checkpoint("qwen3"), ENGINE) as worker:
        engine = lab.engine(worker)
        first = await greedy(engine, plain, load=True)
        try:
            got = await greedy(engine, other, load=True, number=2)
        except Exception as error:  # the core's errors arrive as vLLM's own type
            if "alpha_pattern" not in str(error):
                raise
            return Outcome(True, measure, "refused", expected)
    return Outcome(got != first, measure, "the same tokens as without it" if got == first else "other tokens", expected)
