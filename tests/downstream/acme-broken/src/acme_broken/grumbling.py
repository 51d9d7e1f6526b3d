"""Loads, and fails whenever it is asked for more."""

from quirks_core import Advise, Quirk, Severity, hookimpl, model_type, report


@hookimpl
def quirks_declare() -> list[Quirk]:
    """Declares one."""
    return [
        Quirk(
            id="grumbling",
            title="Acme's models are slow on Mondays",
            flag="sleep",
            match=model_type("acme_moe"),
            adjustments=Advise("come back tomorrow"),
            severity=Severity.NOISE,
            references=report("https://example.org/acme/7"),
        )
    ]


@hookimpl
def quirks_facts() -> dict[str, object]:
    """Raises."""
    raise ConnectionError("no answer from the scheduler")


@hookimpl
def quirks_observe() -> None:
    """Raises."""
    raise ConnectionError("no answer from the metrics server")
