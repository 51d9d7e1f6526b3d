"""What a refit will send is agreed on before a model is touched, and both sides lay it into buffers alike."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from worker.errors import RefitRejectedError
from worker.refit.weights.manifest import ALIGNMENT, Manifest, TensorSpec, in_order

DTYPES = ["bool", "uint8", "int8", "int64", "float16", "bfloat16", "float32", "float64", "complex64", "float8_e4m3fn"]

SPECS = st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 9), max_size=3)), min_size=1, max_size=30).map(
    lambda found: tuple(TensorSpec(f"t{index}", dtype, tuple(shape)) for index, (dtype, shape) in enumerate(found))
)


def manifest(**tensors: tuple[str, tuple[int, ...]]) -> Manifest:
    return Manifest(tuple(TensorSpec(name, dtype, shape) for name, (dtype, shape) in tensors.items()))


def test_what_was_announced_is_accepted_in_any_order():
    manifest(a=("float32", (2,)), b=("int8", ())).check(manifest(b=("int8", ()), a=("float32", (2,))))


def test_everything_that_is_wrong_is_in_one_error(messages):
    announced = manifest(
        kept=("float32", (2, 2)), lost=("float32", (1,)), reshaped=("float32", (2, 3)), retyped=("bfloat16", (4,))
    )
    sent = Manifest(
        (
            *manifest(kept=("float32", (2, 2)), reshaped=("float32", (3, 2)), retyped=("float32", (4,))).tensors,
            TensorSpec("kept", "float32", (2, 2)),
            TensorSpec("stray", "int8", (1,)),
        )
    )

    with pytest.raises(RefitRejectedError) as caught:
        sent.check(announced)
    messages(caught.value)


CHECKPOINT = Manifest(manifest(w=("bfloat16", (4, 1, 2)), packed=("int32", (2,))).tensors, announced=False)


@pytest.mark.parametrize(
    ("name", "dtype", "shape", "fits"),
    [
        ("w", "int32", (4, 1, 2), False),
        ("w", "bfloat16", (5, 1, 2), False),
        ("w", "float32", (4, 2), True),
        ("w", "bfloat16", (2, 4), True),
        ("packed", "int64", (2,), False),
        ("packed", "float32", (2,), False),
        ("packed", "int32", (2,), True),
        ("new", "int64", (2,), False),
        ("new", "float16", (9,), True),
    ],
)
def test_a_tensor_may_differ_from_the_checkpoint_s_in_form_alone(name, dtype, shape, fits):
    with nullcontext() if fits else pytest.raises(RefitRejectedError, match=f"{name} "):
        manifest(**{name: (dtype, shape)}).check(CHECKPOINT)


@pytest.mark.parametrize(
    ("shape", "dtype"), [((2, 3), torch.bfloat16), ([2, 3], "torch.bfloat16"), (torch.Size([2, 3]), "bfloat16")]
)
def test_a_trainer_announces_tensors_in_any_of_their_forms(shape, dtype):
    announced = Manifest.parse({"a": (shape, dtype)})

    assert announced == manifest(a=("bfloat16", (2, 3))) == Manifest.of([("a", torch.zeros(2, 3, dtype=torch.bfloat16))])


@pytest.mark.parametrize("value", ["float32", ((2, 3), "float33"), ((2, 3), "nn"), ((-1,), "int8"), (("x",), "int8"), 7])
def test_exactly_the_wrong_lines_of_an_announcement_are_named(value):
    with pytest.raises(RefitRejectedError, match=r"state_dict_info\['odd'\] must be \(shape, dtype\).*\['two'\]") as caught:
        Manifest.parse({"odd": value, "fine": ((1,), "int8"), "two": ((1,), "int9")})
    assert "'fine'" not in str(caught.value)
    with pytest.raises(RefitRejectedError, match="announces no tensors"):
        Manifest.parse({})


@given(SPECS, st.integers(1, 4000))
def test_chunks_cover_every_tensor_once_within_the_buffer(specs, wanted):
    whole = Manifest(specs)
    size = whole.buffer_size(wanted)

    chunks = list(whole.chunks(size))

    assert [spec for chunk in chunks for spec, _ in chunk] == list(specs)
    assert all(chunks)
    for chunk in chunks:
        assert chunk[0][1] == 0
        assert all(offset % ALIGNMENT == 0 for _, offset in chunk)
        ends = [offset + spec.nbytes for spec, offset in chunk]
        assert all(end <= start for end, (_, start) in zip(ends, chunk[1:], strict=False))
        assert ends[-1] <= size


@given(SPECS, st.integers(1, 4000))
def test_a_buffer_is_as_large_as_wanted_or_as_a_tensor_needs(specs, wanted):
    whole = Manifest(specs)
    largest = max(spec.nbytes for spec in specs)

    assert largest <= whole.buffer_size(wanted) <= max(wanted, largest, ALIGNMENT)
    assert sum(1 for _ in whole.chunks(whole.buffer_size(1 << 40))) == 1


@pytest.mark.parametrize(
    ("tensors", "found"),
    [
        ([], "the trainer yields nothing"),
        ([("b", torch.zeros(2))], r"the trainer yields b float32 \[2\]"),
        ([("a", torch.zeros(3, dtype=torch.int8))], r"the trainer yields a int8 \[3\]"),
    ],
)
def test_a_trainer_that_strays_from_its_manifest_is_told_where(tensors, found):
    with pytest.raises(RefitRejectedError, match=rf"{found} .*where its manifest has a float32 \[2\]"):
        list(in_order(tensors, Manifest((TensorSpec("a", "float32", (2,)),))))
