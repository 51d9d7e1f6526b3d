"""The mark of tests that read what comes with an engine; `make check-core` runs the others where there is none."""

from importlib.util import find_spec

import pytest

HAS_VLLM = find_spec("vllm") is not None
needs_vllm = pytest.mark.skipif(not HAS_VLLM, reason="needs vLLM")
