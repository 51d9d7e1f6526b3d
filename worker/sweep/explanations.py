"""Why rows of the sweep are not right: a quirk, a text for upstream, or a limit of the engine."""

from __future__ import annotations

from collections.abc import Mapping

#: By kind, Markdown for a page in docs. Rows that a quirk refuses explain themselves.
EXPLANATIONS: Mapping[str, str] = {}
