"""Digests of tensors: equal for equal bytes, whatever the layout, and different for others."""

from __future__ import annotations

import pytest
import torch

from worker.refit.weights.digest import Digester, Standing, digests

DTYPES = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.uint8, torch.bool]


def digest(tensor, *, whole=True):
    return digests([("it", tensor)], whole=whole)["it"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3,), (7, 5), (64, 64), (1000, 333)])
def test_equal_bytes_have_equal_digests_in_every_layout(dtype, shape):
    tensor = torch.randint(0, 2, shape).to(dtype)
    larger = torch.zeros(len(tensor) + 1, *shape[1:], dtype=dtype)
    larger[1:] = tensor  # begins at an odd byte

    assert digest(tensor) == digest(larger[1:]) == digest(tensor.t().contiguous().t() if tensor.ndim == 2 else tensor.clone())


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("shape", [(4096, 4096), (8192, 1024), (896, 4864), (1024, 3072), (5120, 5120), (3584, 18944)])
@pytest.mark.parametrize("size", [64, 128])
def test_heads_that_change_places_change_a_digest(shape, size, whole):
    tensor = torch.randn(shape).bfloat16()
    found = [digest(tensor, whole=whole)]
    for first in range(0, 512, size):
        one, other = slice(first, first + size), slice(first + size, first + 2 * size)
        columns, rows = tensor.clone(), tensor.clone()
        columns[:, one], columns[:, other] = tensor[:, other], tensor[:, one]
        rows[one], rows[other] = tensor[other], tensor[one]
        found += [digest(columns, whole=whole), digest(rows, whole=whole)]

    assert len(set(found)) == len(found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_another_sign_changes_the_digest_of_a_few_values(dtype):
    tensors = [torch.randn(size).to(dtype) for size in (2, 8, 24, 96) for _ in range(1000)]

    assert all(digest(tensor) != digest(-tensor) for tensor in tensors)


@pytest.mark.parametrize(("size", "whole"), [(600_001, True), (500_001, False)])
def test_one_bit_anywhere_changes_the_digest(size, whole):
    """Up to 2 MiB of a sampled one, too; and so does another order."""
    tensor = torch.randn(size)
    assert digest(tensor.flip(0), whole=whole) != digest(tensor, whole=whole)
    for index in (0, 123_456, size // 2, size - 1):
        other = tensor.clone()
        other.view(torch.int32)[index] ^= 1

        assert digest(other, whole=whole) != digest(tensor, whole=whole)


def test_a_digest_does_not_depend_on_the_tensors_beside_it():
    tensors = {str(size): torch.randn(size) for size in (1, 2, 3, 1000, 0, 70_001)}

    together = digests(tensors.items())

    assert together == {name: digest(tensor) for name, tensor in tensors.items()}
    assert together["0"] == "0" * 32


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("shape", [(70, 3, 8), (5, 200, 333), (3, 1024, 1537), (3, 7, 5), (4, 1)])
def test_tensors_that_are_read_together_have_their_own_digests(shape, whole):
    """Of neighbours, of neighbours with gaps, and of those in another dtype."""
    memory = torch.randn(2 * shape[0], *shape[1:]).bfloat16()
    rows = memory.flatten(1)
    tensors = [*memory, *memory[::2], *memory.float(), memory[0, 0], *rows[:, :3], *rows[:, :4], *rows[:3, 0].double()]
    digester = Digester(whole=whole)

    digester.add_all([(str(number), tensor) for number, tensor in enumerate(tensors)])

    assert digester.result() == {str(number): digest(tensor, whole=whole) for number, tensor in enumerate(tensors)}


@pytest.mark.parametrize("whole", [True, False])
def test_standing_digests_are_fresh_ones_after_every_change(whole):
    memory = torch.randn(3, 600, 700)
    tensors = {
        "plain": memory[1],
        "with a last row": torch.randn(300_003, 7, dtype=torch.float64),
        "odd bytes": torch.randint(0, 2, (7,), dtype=torch.uint8),
        "misplaced": torch.randn(1001)[1:],
        "turned": memory[2].t(),
        "empty": torch.empty(0),
    }
    standing = Standing(whole=whole)
    assert standing.digests(tensors.items()) == digests(tensors.items(), whole=whole)

    before = standing.digests(tensors.items())
    for name in tensors.keys() - {"empty"}:
        tensors[name].copy_(tensors[name].flip(0))
    assert standing.digests(tensors.items()) == digests(tensors.items(), whole=whole) != before

    moved = {name: tensor.clone() for name, tensor in tensors.items()}
    assert standing.digests(moved.items()) == standing.digests(tensors.items())
