"""Every built-in quirk keeps the contract of the kit; a new one is covered as soon as it is registered."""

from __future__ import annotations

from quirks_core.declaration.flags import BUILT_IN
from quirks_core.plugins.finder import discover
from quirks_core.testing.contract import QuirkContract


def _contract(name: str, quirk: object) -> type[QuirkContract]:
    title = "".join(part.capitalize() for part in name.split("-"))
    return type(f"Test{title}", (QuirkContract,), {"quirk": quirk, "distribution": BUILT_IN, "__module__": __name__})


for _plugin in discover():
    if _plugin.distribution == BUILT_IN:
        _made = _contract(_plugin.name, _plugin.entry_point.load())
        globals()[_made.__name__] = _made
