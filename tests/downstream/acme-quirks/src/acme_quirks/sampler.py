"""acme-engine before 1.5 divides by a temperature of zero, picks the last of equal logits, and cannot be seeded.

What happens: a greedy request ends in ZeroDivisionError, ties go to another token than the trainer's.

What this changes: two functions of acme-engine, and one method that it lacks.

When it can go: with acme-engine 1.5.
"""

from quirks_core import Affected, ModelFlag, Patch, Quirk, Severity, StaticProbe, fix, model_type, no, report, unknown, yes

QUIRK = Quirk(
    id="acme-sampler",
    title="acme-engine's sampler cannot be greedy",
    flag=ModelFlag.LOGPROBS,
    match=model_type("acme_gemma"),
    affected=Affected("acme-engine", fixed="1.5"),
    adjustments=[
        Patch(
            "acme_engine.sampler:scaled",
            wrapper="acme_quirks.wrappers:greedy_at_zero",
            expects="61dfdf8757be",
            reason="acme-engine has no setting for greedy sampling",
        ),
        Patch(
            "acme_engine.sampler:Sampler.pick",
            replacement="acme_quirks.wrappers:first_of_equals",
            expects="5a01acf37d5c",
            reason="the trainer picks the first of equal logits",
        ),
        Patch(
            "acme_engine.sampler:Sampler.seed",
            adds="acme_quirks.wrappers:seed",
            reason="the trainer seeds every sampler",
        ),
    ],
    severity=Severity.CRASH,
    references=[report("https://example.org/acme/8"), fix("https://example.org/acme/9")],
    evidence=StaticProbe("acme_engine.sampler", r"temperature == 0", found_means_affected=False),
    examples=[
        yes("acme_gemma", packages={"acme-engine": "1.4.2"}),
        no("acme_gemma", packages={"acme-engine": "1.5"}),
        unknown("acme_gemma"),
    ],
)
