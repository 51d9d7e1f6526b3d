"""Declares at once, and asks the server for facts."""

import threading

from quirks_core import Advise, Quirk, Severity, hookimpl, model_type, report


@hookimpl
def quirks_declare() -> list[Quirk]:
    """Declares one."""
    return [
        Quirk(
            id="slow/advice",
            title="Acme's server knows more",
            flag="sleep",
            match=model_type("acme_moe"),
            adjustments=Advise("ask the server"),
            severity=Severity.NOISE,
            references=report("https://example.org/acme/4"),
        )
    ]


@hookimpl
def quirks_facts() -> dict[str, object]:
    """Never returns."""
    threading.Event().wait()
    return {}
