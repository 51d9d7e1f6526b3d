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
import json, torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from peft import LoraConfig, get_peft_model
from quirks_core.facts.trainers import TRAINERS
from quirks_core.hook.trainer_process import precision, sampling

space = {"__name__": "trl.generation", "precision": precision, "sampling": sampling, "trainer": TRAINERS["trl"]}
exec(
    "class Generation:\\n    def start(self, **variables):\\n        return precision(trainer, variables) | sampling(trainer)",
    space,
)

def read(model=None, word=None, sampled=(None, None), **variables):
    caller = space["Generation"]()
    caller.top_p, caller.top_k = sampled
    caller.model = torch.nn.Linear(8, 8) if model is None else model
    AcceleratorState._reset_state(True)
    if word is not None:
        Accelerator(cpu=True, mixed_precision=word)
    return {slot: list(one) for slot, one in caller.start(**variables).items()}

base = torch.nn.Sequential(torch.nn.Linear(8, 8)).to(torch.bfloat16)
found = {word: read(word=word) for word in ("no", "bf16", "fp16")}
found["lora"] = read(get_peft_model(base, LoraConfig(r=2, target_modules=["0"])), "bf16")
found["variable"] = read(ACCELERATE_MIXED_PRECISION="fp16")
found["nothing"] = read("no model")
found["sampled"] = read("no model", sampled=(0.9, 0))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def read():
    """What is read of each case: value and source by slot."""
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize(("word", "autocast"), [("no", "none"), ("bf16", "bfloat16"), ("fp16", "none")])
def test_autocast_is_that_of_accelerate(read, word, autocast):
    """Accelerate takes fp16 on a CPU, and then computes in the dtype of the weights."""
    assert read[word]["train.autocast"] == [autocast, "accelerate's state"]


def test_the_dtypes_are_those_of_the_callers_model(read):
    dtype = ["float32", "Generation.model"]
    assert {**read["no"], "train.autocast": 0} == {"train.autocast": 0, "train.dtype": dtype, "train.trainable_dtype": dtype}


def test_an_adapter_has_a_dtype_of_its_own(read):
    assert (read["lora"]["train.dtype"][0], read["lora"]["train.trainable_dtype"][0]) == ("bfloat16", "float32")


def test_without_an_accelerator_the_launchers_variable_counts(read):
    assert read["variable"]["train.autocast"] == ["float16", "ACCELERATE_MIXED_PRECISION"]


def test_what_cannot_be_read_is_missing(read):
    assert read["nothing"] == {}


def test_sampling_is_that_of_the_object_that_starts_the_engine(read):
    assert read["sampled"] == {"sampling.top_p": [0.9, "Generation.top_p"], "sampling.top_k": [0, "Generation.top_k"]}
