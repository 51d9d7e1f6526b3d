"""Where a model's tensors come from, seen while they are written."""

from __future__ import annotations

import pytest
import torch

from worker.lab.audit.tensor_audit import TensorAudit, _Writes


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


@pytest.fixture(params=[(False, False, True), (True, False, False), (True, True, True)])
def mode(request):
    """Torch's deterministic mode as an engine may have it: on, only warning, filling memory."""
    before = state()
    put(*request.param)
    yield request.param
    put(*before)


def state():
    on, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    return on, warns, torch.utils.deterministic.fill_uninitialized_memory


def put(on, warns, fills):
    torch.use_deterministic_algorithms(on, warn_only=warns)
    torch.utils.deterministic.fill_uninitialized_memory = fills


def test_unwritten_memory_holds_nan_only_while_an_audit_refits(mode):
    audit = TensorAudit(None, torch.device("cpu"))

    for _ in range(2):
        audit.step("poison", torch.nn.Module())
    found = torch.empty_strided((64,), (1,))
    audit.step("release", torch.nn.Module())

    assert bool(found.isnan().all())
    assert state() == mode
