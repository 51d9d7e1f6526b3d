"""Everything before the engine starts needs none of the heavy packages."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "statement",
    [
        "import quirks_core",
        "import worker",
        "import quirks_core.cli",
        "import quirks_core.bootstrap",
        "from quirks_core import Registry; assert Registry.load().loaded",
    ],
)
def test_no_heavy_package_is_imported(statement: str) -> None:
    program = f"import sys\n{statement}\nprint(sorted({{'torch', 'vllm', 'ray', 'transformers'}} & sys.modules.keys()))"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


def test_every_public_name_is_there() -> None:
    program = "import quirks_core as q\nprint([n for n in q.__all__ if not hasattr(q, n)], q.__all__ == sorted(q.__all__))"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.startswith("[]")
