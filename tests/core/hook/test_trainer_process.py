"""How a trainer computes is read from its own objects: accelerate's state, and the model of who starts an engine."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from installed import needs_vllm

pytestmark = needs_vllm  # and accelerate and peft, which come with our engine's environment

#: An object of TRL's package starts an engine; all cases in one process, which imports torch and accelerate once.
_SCRIPT = """
import json, os, torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from peft import LoraConfig, get_peft_model
from quirks_core.facts.trainers import TRAINERS
from quirks_core.hook.trainer_process import precision, sampling

space = {"__name__": "trl.generation", "precision": precision, "sampling": sampling, "trainer": TRAINERS["trl"]}
exec("class Generation:\\n    def start(self):\\n        return precision(trainer) | sampling(trainer)", space)

def read(model=None, word=None, sampled=(None, None)):
    caller = space["Generation"]()
    caller.top_p, caller.top_k = sampled
    caller.model = torch.nn.Linear(8, 8) if model is None else model
    AcceleratorState._reset_state(True)
    if word is not None:
        Accelerator(cpu=True, mixed_precision=word)
    return {slot: list(one) for slot, one in caller.start().items()}

base = torch.nn.Sequential(torch.nn.Linear(8, 8)).to(torch.bfloat16)
found = {word: read(word=word) for word in ("no", "bf16", "fp16")}
found["lora"] = read(get_peft_model(base, LoraConfig(r=2, target_modules=["0"])), "bf16")
found["nothing"] = read("no model")
found["sampled"] = read("no model", sampled=(0.9, 0))
os.environ["ACCELERATE_MIXED_PRECISION"] = "fp16"
found["variable"] = read()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def read():
    """What is read of each case: value and source by slot."""
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("case", "autocast", "dtype", "trainable"),
    [
        ("no", ["none", "accelerate's state"], "float32", "float32"),
        ("bf16", ["bfloat16", "accelerate's state"], "float32", "float32"),
        ("fp16", ["none", "accelerate's state"], "float32", "float32"),  # on a CPU, which then computes as the weights are
        ("lora", ["bfloat16", "accelerate's state"], "bfloat16", "float32"),
        ("variable", ["float16", "ACCELERATE_MIXED_PRECISION"], "float32", None),  # without an accelerator
    ],
)
def test_how_a_trainer_computes_is_read_from_its_own_objects(read, case, autocast, dtype, trainable):
    dtypes = {"train.dtype": dtype, "train.trainable_dtype": trainable}

    assert read[case] == {"train.autocast": autocast} | {name: [one, "Generation.model"] for name, one in dtypes.items() if one}


def test_sampling_is_that_of_the_object_that_starts_the_engine(read):
    """What cannot be read is missing."""
    assert read["sampled"] == {"sampling.top_p": [0.9, "Generation.top_p"], "sampling.top_k": [0, "Generation.top_k"]}
    assert read["nothing"] == {}
