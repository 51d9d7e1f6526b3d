"""The trainer's side of a refit: which tensors are sent, and the file that carries them."""

from __future__ import annotations

import json
import os
import stat
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from worker.refit import RefitScope, tensors, write


class Tiny(nn.Module):
    """A parameter, a persistent buffer, and a buffer that no checkpoint holds."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2, bias=False)
        self.register_buffer("layer_scalar", torch.tensor(1.5))
        self.register_buffer("cache", torch.zeros(3), persistent=False)


class Tied(nn.Module):
    """An embedding whose matrix is the head's too."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(4, 2)
        self.head = nn.Linear(2, 4, bias=False)
        self.head.weight = self.embed.weight


def names(model: nn.Module, scope: RefitScope | str) -> list[str]:
    """The names that a refit sends."""
    return [name for name, _ in tensors(model, scope)]


def test_a_refit_of_parameters_leaves_every_buffer_out():
    assert names(Tiny(), RefitScope.PARAMETERS) == ["linear.weight"]


def test_a_refit_of_the_state_dict_sends_persistent_buffers_and_no_others():
    assert sorted(names(Tiny(), RefitScope.STATE_DICT)) == ["layer_scalar", "linear.weight"]


def test_the_scope_may_be_a_plan_s_plain_text():
    assert names(Tiny(), "parameters") == names(Tiny(), RefitScope.PARAMETERS)


def test_an_unknown_scope_is_an_error():
    with pytest.raises(ValueError, match="everything"):
        names(Tiny(), "everything")


@pytest.mark.parametrize("scope", RefitScope)
def test_a_tied_parameter_is_sent_once_under_its_first_name(scope):
    assert names(Tied(), scope) == ["embed.weight"]


def test_tensors_are_detached_contiguous_and_share_the_model_s_memory():
    model = Tiny()

    sent = dict(tensors(model, RefitScope.STATE_DICT))

    assert not any(tensor.requires_grad for tensor in sent.values())
    assert all(tensor.is_contiguous() for tensor in sent.values())
    assert sent["linear.weight"].data_ptr() == model.linear.weight.data_ptr()


def test_a_transposed_parameter_is_sent_contiguous_with_its_values():
    model = nn.Linear(3, 2, bias=False)
    model.weight = nn.Parameter(torch.arange(6.0).reshape(3, 2).t())

    ((_, sent),) = tensors(model, RefitScope.PARAMETERS)

    assert sent.is_contiguous()
    assert torch.equal(sent, model.weight)


def test_the_file_holds_what_was_sent(tmp_path):
    model = Tiny()

    write(tensors(model, RefitScope.STATE_DICT), tmp_path / "weights.safetensors")

    read = load_file(tmp_path / "weights.safetensors")
    assert torch.equal(read["linear.weight"], model.linear.weight)
    assert read["layer_scalar"].item() == 1.5


def test_the_file_is_safetensors_and_no_pickle(tmp_path):
    file = tmp_path / "weights.safetensors"

    write(tensors(Tiny(), RefitScope.STATE_DICT), file)

    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    assert json.loads(content[8 : 8 + length])["linear.weight"]["dtype"] == "F32"


def test_tensors_that_share_memory_are_written_under_each_name(tmp_path):
    model = Tied()

    write(model.state_dict().items(), tmp_path / "weights.safetensors")

    read = load_file(tmp_path / "weights.safetensors")
    assert torch.equal(read["embed.weight"], model.embed.weight)
    assert torch.equal(read["head.weight"], model.embed.weight)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64])
def test_dtypes_survive(tmp_path, dtype):
    write([("a", torch.ones(2, dtype=dtype))], tmp_path / "w.safetensors")

    assert load_file(tmp_path / "w.safetensors")["a"].dtype is dtype


@pytest.mark.parametrize("shape", [(), (0, 3)], ids=["scalar", "empty"])
def test_scalars_and_empty_tensors_survive(tmp_path, shape):
    write([("a", torch.zeros(shape)), ("b", torch.zeros(shape))], tmp_path / "w.safetensors")

    assert {tensor.shape for tensor in load_file(tmp_path / "w.safetensors").values()} == {torch.Size(shape)}


def test_only_the_owner_can_read_the_file(tmp_path):
    file = tmp_path / "w.safetensors"
    before = os.umask(0)

    try:
        write([("a", torch.ones(1))], file)
    finally:
        os.umask(before)

    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    file = tmp_path / "w.safetensors"
    write([("a", torch.ones(1))], file)

    def broken():
        yield "a", torch.zeros(1)
        raise RuntimeError("the trainer died")

    with pytest.raises(RuntimeError, match="the trainer died"):
        write(broken(), file)

    assert load_file(file)["a"].item() == 1.0
    assert list(tmp_path.iterdir()) == [file]


def test_a_disk_error_leaves_no_half_written_file(tmp_path):
    sparse = torch.ones(2).to_sparse()

    with pytest.raises(Exception, match="parse"):
        write([("a", sparse)], tmp_path / "w.safetensors")

    assert list(tmp_path.iterdir()) == []


def test_a_reader_of_the_old_file_keeps_its_content(tmp_path):
    file = tmp_path / "w.safetensors"
    write([("a", torch.ones(1))], file)
    old = file.open("rb")

    write([("a", torch.zeros(1))], file)

    with old:
        assert old.read() != Path(file).read_bytes()
    assert load_file(file)["a"].item() == 0.0


def test_two_tensors_of_one_name_are_an_error(tmp_path):
    with pytest.raises(ValueError, match="two tensors are called 'a'"):
        write([("a", torch.ones(1)), ("a", torch.ones(1))], tmp_path / "w.safetensors")
