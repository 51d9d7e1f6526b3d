"""acme-engine before 1.5 divides by a temperature of zero, picks the last of equal logits, and cannot be seeded.

What happens: a greedy request ends in ZeroDivisionError, ties go to another token than the trainer's.
What this changes: two functions of acme-engine, and one method that it lacks.
When it can go: with acme-engine 1.5.
"""

from quirks_core import (
    ABSENT,
    Affected,
    Answer,
    Example,
    ModelFlag,
    Patch,
    Quirk,
    Severity,
    StaticProbe,
    fix,
    model_type,
    report,
)

_GEMMA = {"model_type": "acme_gemma"}

QUIRK = Quirk(
    id="acme-sampler",
    title="acme-engine's sampler cannot be greedy",
    flag=ModelFlag.LOGPROBS,
    match=model_type("acme_gemma"),
    affected=Affected("acme-engine", fixed="1.5"),
    adjustments=(
        Patch(
            "acme_engine.sampler:scaled",
            wrapper="acme_quirks.wrappers:greedy_at_zero",
            expects="61dfdf8757be9f6281577245ea2119c2a0c625f1c545017a4807b07f2c859c97:9e386b34e7027e4cdd",
            reason="acme-engine has no setting for greedy sampling",
        ),
        Patch(
            "acme_engine.sampler:Sampler.pick",
            replacement="acme_quirks.wrappers:first_of_equals",
            expects="5a01acf37d5c1bd7c543762c07206a0a9a00c20bec99703439e1d2567764f032:b5804408500d52ea66",
            reason="the trainer picks the first of equal logits",
        ),
        Patch(
            "acme_engine.sampler:Sampler.seed",
            replacement="acme_quirks.wrappers:seed",
            expects=ABSENT,
            reason="the trainer seeds every sampler",
        ),
    ),
    severity=Severity.CRASH,
    references=(report("https://example.org/acme/8"), fix("https://example.org/acme/9")),
    evidence=StaticProbe("acme_engine.sampler", r"temperature == 0", found_means_affected=False),
    examples=(
        Example(answer=Answer.YES, config=_GEMMA, packages={"acme-engine": "1.4.2"}),
        Example(answer=Answer.NO, config=_GEMMA, packages={"acme-engine": "1.5"}),
        Example(answer=Answer.UNKNOWN, config=_GEMMA),
    ),
    since="2.1",
)
