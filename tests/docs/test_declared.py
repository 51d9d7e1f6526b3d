"""What the pages say of a quirk's models is for people."""

from __future__ import annotations

import re

from declared import models

from quirks_core.plugins.registry import Registry


def test_no_page_names_models_by_a_regular_expression():
    named = {name for item in Registry.load().loaded for name in models(item.quirk)}

    assert "any if its name is that of a GGUF file" in named
    assert [name for name in named if re.search(r"[\\$^*+?|]", name)] == []
