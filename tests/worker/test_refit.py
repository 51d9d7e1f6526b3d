"""The trainer's side of a refit: which tensors are sent, and the file that carries them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from worker.errors import RefitRejectedError
from worker.refit import Manifest, RefitScope, tensors, write
from worker.refit.transport.files import _DTYPES, FileStream, held


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


@pytest.mark.parametrize("form", [RefitScope, str])
def test_a_refit_of_parameters_leaves_buffers_out_and_one_of_the_state_dict_sends_the_persistent_ones(form):
    assert names(Tiny(), form("parameters")) == ["linear.weight"]
    assert sorted(names(Tiny(), form("state_dict"))) == ["layer_scalar", "linear.weight"]
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


def test_tensors_that_share_memory_are_written_under_each_name(tmp_path):
    model = Tied()

    write(model.state_dict().items(), tmp_path / "weights.safetensors")

    read = load_file(tmp_path / "weights.safetensors")
    assert torch.equal(read["embed.weight"], model.embed.weight)
    assert torch.equal(read["head.weight"], model.embed.weight)


def test_every_dtype_and_shape_arrives_as_it_was(tmp_path):
    sent = {name: torch.ones(2, 3).to(getattr(torch, name)) for name in _DTYPES.values()}
    sent |= {"scalar": torch.tensor(1.5), "none": torch.zeros(0, 3), "empty": torch.zeros(0, 3)}
    write(sent.items(), tmp_path / "w.safetensors")

    with FileStream(tmp_path / "w.safetensors", Manifest.of(sorted(sent.items()))) as stream:
        got = dict(stream)

    assert got.keys() == sent.keys()
    for name, tensor in sent.items():
        assert (got[name].dtype, got[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(got[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))


def test_a_checkpoint_is_described_by_those_of_its_files_that_can_be_read(tmp_path):
    write([("a", torch.ones(2, 3))], tmp_path / "one.safetensors")
    write([("b", torch.ones(1).int())], tmp_path / "two.safetensors")
    (tmp_path / "three.safetensors").write_bytes(b"broken")

    assert held(tmp_path) == Manifest.parse({"a": ((2, 3), "float32"), "b": ((1,), "int32")})
    assert not held(tmp_path).announced
    assert held(tmp_path / "absent").tensors == ()


def test_a_file_that_is_not_there_or_not_whole_or_not_as_announced_is_rejected_before_anything_is_loaded(tmp_path):
    file = tmp_path / "w.safetensors"
    with pytest.raises(RefitRejectedError, match=r"no file .* must share the file system"):
        FileStream(file, None)
    write([("a", torch.ones(100))], file)
    with pytest.raises(RefitRejectedError, match=r"1 different: a is float32 \[100\], announced as float32 \[99\]"):
        FileStream(file, Manifest.of([("a", torch.ones(99))]))
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(RefitRejectedError, match="is not a complete safetensors file"):
        FileStream(file, None)


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
