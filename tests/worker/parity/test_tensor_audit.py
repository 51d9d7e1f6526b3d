"""Where a model's tensors come from, seen while they are written."""

from __future__ import annotations

import torch

from worker.parity.tensor_audit import _poison, _Writes


def test_a_write_is_credited_to_the_tensor_whose_memory_is_read():
    whole, scalar, computed, untouched = (torch.zeros(*shape) for shape in ((4, 3), (1,), (3,), (2,)))
    weights = [("a", torch.ones(2, 3)), ("b", torch.full((2, 3), 2.0)), ("c", torch.tensor(5.0)), ("d", torch.ones(3))]
    writes = _Writes()

    with writes:
        for name, tensor in writes.named(weights):
            if name in "ab":
                whole.narrow(0, 2 * "ab".index(name), 2).copy_(tensor.narrow(1, 0, 3))
            elif name == "c":
                scalar.data.copy_(tensor.view(1))
            else:
                computed.data.copy_(tensor + 1)

    found = {place: list(names) for place, names in writes.into.items()}
    assert found[whole.untyped_storage().data_ptr()] == ["a", "b"]
    assert found[scalar.untyped_storage().data_ptr()] == ["c"]
    assert found[computed.untyped_storage().data_ptr()] == []
    assert untouched.untyped_storage().data_ptr() not in found


def test_memory_that_nobody_writes_holds_nan_while_an_audit_refits():
    _poison(True)
    try:
        found = torch.empty_strided((64,), (1,))
    finally:
        _poison(False)

    assert bool(found.isnan().all())
    assert not torch.are_deterministic_algorithms_enabled()
