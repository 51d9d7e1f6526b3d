"""The source of a plugin with one quirk."""

from __future__ import annotations

#: What a good third-party quirk looks like; `%` stands for its id.
_QUIRK = '''
"""Example models go wrong with CUDA graphs.

What happens: they do.

Evidence: none, this is a test.
"""

from quirks_core import *

DECLARATION = dict(
    id="%",
    title="Example models go wrong",
    flag="enforce_eager",
    match=model_type("example"),
    adjustments=Default("engine.enforce_eager", True),
    severity=Severity.SLOW,
    references=report("https://example.org/1"),
    examples=[yes("example"), no("other"), unknown()],
)
'''


def declared(quirk_id: str, *, before: str = "", name: str = "QUIRK", **changes: str) -> str:
    """Returns the source of a module with one quirk, with changes to its declaration as source."""
    changed = "".join(f"DECLARATION[{key!r}] = {value}\n" for key, value in changes.items())
    return _QUIRK.replace("%", quirk_id) + f"{before}\n{changed}{name} = Quirk(**DECLARATION)\n"
