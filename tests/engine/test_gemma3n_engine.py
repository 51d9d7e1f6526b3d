"""The per-layer embeddings of Gemma 3n are where CUDA graphs would read them (gemma3n-per-layer-embeddings)."""

from __future__ import annotations

import json

from programs import run_python

_PROGRAM = """
import json, sys
from pathlib import Path

from worker.lab.kit.lab import Lab, set_environment

set_environment()
from worker.lab.kit.checkpoints import build

lab = Lab(Path(sys.argv[1]))
model = build("gemma3n_text", lab.folder / "gemma3n")
expected, steps = lab.reference(model), []
with lab.llm(model) as llm:
    (text,) = llm.apply_model(lambda model: model.model)
    forward = text.forward

    def watched(*args, per_layer_inputs, **kwargs):
        steps.append((len(per_layer_inputs), per_layer_inputs.data_ptr()))
        return forward(*args, per_layer_inputs=per_layer_inputs, **kwargs)

    text.forward = watched
    outcome = lab.same_tokens(lab.greedy_of(llm), expected)
    print(json.dumps({"passed": outcome.passed, "got": outcome.got, "steps": steps}))
"""


def test_embeddings_of_every_step_have_one_address(tmp_path):
    done = run_python("-c", _PROGRAM, tmp_path)

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    sizes, addresses = map(set, zip(*found["steps"], strict=True))
    assert found["passed"], found["got"]
    assert len(sizes) > 1
    assert len(addresses) == 1
