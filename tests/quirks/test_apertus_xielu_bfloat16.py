"""xIELU is made in the dtype of the model."""

from __future__ import annotations

import pytest

from quirks_plugins.dtype.apertus_patches import wrap_init

#: The arguments of vLLM's xIELU, in their order.
NAMES = ("alpha_p_init", "alpha_n_init", "beta", "eps", "dtype")


@pytest.mark.parametrize(("dtype", "patched"), [("float32", True), ("float16", True), (None, True), ("bfloat16", False)])
def test_an_engine_in_bfloat16_is_left_alone(plan_for, dtype, patched):
    outcome = plan_for("apertus", {"engine.dtype": dtype} if dtype else {}, assume=("vllm==0.32.0",))

    assert outcome.patched == (["XIELU.__init__"] if patched else [])


@pytest.mark.parametrize(
    ("arguments", "named", "expected"),
    [
        ((), {}, "float64"),
        ((0.8, 0.8), {"eps": -1e-6}, "float64"),
        ((), {"dtype": "int8"}, "int8"),
        ((1, 2, 3, 4, "int8"), {}, "int8"),
    ],
)
def test_the_dtype_is_torchs_default_unless_the_caller_names_one(arguments, named, expected):
    torch = pytest.importorskip("torch")
    made = []

    def init(_self, *values, **options):
        made.append(str({**dict(zip(NAMES, values, strict=False)), **options}["dtype"]).removeprefix("torch."))

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        wrap_init(init)(None, *arguments, **named)
    finally:
        torch.set_default_dtype(before)
    assert made == [expected]
