"""A plugin of the same name as one of acme-quirks, with an id of its own."""

from quirks_core import Advise, Quirk, Severity, hookimpl, model_type, report


@hookimpl
def quirks_declare() -> list[Quirk]:
    """Declares one."""
    return [
        Quirk(
            id="zeta/advice",
            title="Acme's models need advice",
            flag="sleep",
            match=model_type("acme_moe"),
            adjustments=Advise("have a look at Zeta's notes"),
            severity=Severity.NOISE,
            references=report("https://example.org/zeta/2"),
        )
    ]
