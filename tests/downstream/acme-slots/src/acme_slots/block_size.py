"""Acme's router sends requests to the engine that has their prefix, and counts prefixes in blocks of 32 tokens.

What happens: with blocks of another size it finds no prefix again, and every prompt is computed anew.

What this changes: ``engine.block_size``, an argument of vLLM.

When it can go: when the router reads the size from the engine.

Evidence: the router's logs.
"""

from quirks_core import ModelFlag, Quirk, Require, Severity, model_type, no, report, unknown, yes

QUIRK = Quirk(
    id="acme-slots/block-size",
    title="Acme's prefix router counts in blocks of 32 tokens",
    flag=ModelFlag.KV_CACHE,
    match=model_type("qwen3"),
    adjustments=Require("engine.block_size", 32, remedy="set engine.block_size: 32, or leave it open"),
    severity=Severity.SLOW,
    references=report("https://example.org/acme/21"),
    examples=[yes("qwen3"), no("llama"), unknown()],
)
