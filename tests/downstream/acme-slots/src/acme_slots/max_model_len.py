"""Acme's Qwen3 was trained on 512 tokens, and its logprobs are noise beyond them.

What happens: rollouts go on past what the trainer can score.

What this changes: ``engine.max_model_len`` is at most 512; a shorter one that the user typed stays.

When it can go: with Acme's next checkpoint.

Evidence: Acme's training runs.
"""

from quirks_core import ModelFlag, Quirk, Require, Severity, model_type, no, report, unknown, yes

QUIRK = Quirk(
    id="acme-slots/max-model-len",
    title="Acme's Qwen3 knows no position beyond 512",
    flag=ModelFlag.LOGPROBS,
    match=model_type("qwen3"),
    adjustments=Require("engine.max_model_len", at_most=512),
    severity=Severity.WRONG_OUTPUT,
    references=report("https://example.org/acme/22"),
    examples=[yes("qwen3", {"engine.max_model_len": 4096}), yes("qwen3"), no("llama"), unknown()],
)
