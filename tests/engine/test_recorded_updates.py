"""Updates by vLLM's layerwise reload that are recorded and copied, beside the same ones that are not, without an engine."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from layers import QKV, Layer, Model, drawn, pack, padded, reloadable, third

from quirks_plugins.weight_sync import recorded_updates_patches as patches
from worker.errors import RefitError

CONFIG = SimpleNamespace(dtype=torch.float32)
SHAPES = QKV | {"embed__weight": (10, 4), "norm__weight": (4,), "packed__weight": (4, 4)}
#: All tensors but that of the layer that packs its weight.
COPIED = len(SHAPES) - 1


class Pair:
    """Two equal models; the first takes its updates as vLLM does, those of the second are recorded and copied."""

    def __init__(self, monkeypatch):
        from vllm.model_executor.model_loader.reload import layerwise

        from worker.refit.engine import reload, updates

        self._initialize = patches.wrap_initialize(layerwise.initialize_layerwise_reload)
        self._finalize = patches.wrap_finalize(layerwise.finalize_layerwise_processing)
        monkeypatch.setattr(reload, "initialize_layerwise_reload", self._initialize)
        monkeypatch.setattr(reload, "finalize_layerwise_reload", self._finalize)
        self.models = [
            reloadable(
                Model(
                    qkv=Layer(6, 4, loader=third, bias=True),
                    embed=Layer(12, 4, loader=padded),
                    norm=Layer(4),
                    packed=Layer(4, 4, process=pack),
                    head=Layer(12, 4),
                )
            )
            for _ in range(2)
        ]
        for model in self.models:
            model.head.weight = model.embed.weight  # it is tied
        self.models[1].load_state_dict(self.models[0].state_dict())
        self.updates = updates.Updates(self.models[1], CONFIG)

    @property
    def ways(self):
        """How many tensors of the last update were copied, and how many loaded."""
        return self.updates.copied, self.updates.loaded

    def open(self):
        """Begins an update of both models."""
        for model in self.models:
            self._initialize(model)

    def load(self, values, size=100, kind=list):
        """Gives tensors to both models, a few in each call."""
        pairs = list(values.items()) if isinstance(values, dict) else list(values)
        for first in range(0, len(pairs), size):
            for model in self.models:
                model.load_weights(kind(pairs[first : first + size]))

    def close(self):
        """Ends the update of both models."""
        for model in self.models:
            self._finalize(model, CONFIG)

    def update(self, values=None, **options):
        """One update of both models."""
        self.open()
        self.load(drawn(**SHAPES) if values is None else values, **options)
        self.close()

    def assert_equal(self):
        """Compares all tensors of the models, and what is packed."""
        one, other = ({**model.state_dict(), "what is packed": model.packed.packed} for model in self.models)
        assert one.keys() == other.keys()
        assert [name for name in one if not torch.equal(one[name], other[name])] == []


@pytest.fixture
def pair(monkeypatch):
    """The models after the update that is recorded."""
    made = Pair(monkeypatch)
    made.update()
    made.assert_equal()
    assert made.ways == (0, len(SHAPES))
    return made


@pytest.mark.parametrize("kind", [list, iter, tuple])
@pytest.mark.parametrize("size", [1, 3, 100])
def test_later_updates_copy_the_bits_that_vllm_would_load(pair, size, kind):
    for _ in range(3):
        pair.update(size=size, kind=kind)

        pair.assert_equal()
        assert pair.ways == (COPIED, 1)


def test_what_an_update_leaves_out_is_named_and_keeps_its_value(pair, caplog):
    model = pair.models[1]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    part = torch.randn(2, 4)
    pair._initialize(model)
    model.load_weights([("k.weight", part)])
    pair._finalize(model, CONFIG)

    expected = before | {"qkv.weight": torch.cat([before["qkv.weight"][:2], part, before["qkv.weight"][4:]])}
    assert [name for name, tensor in model.state_dict().items() if not torch.equal(tensor, expected[name])] == []
    assert pair.updates.missing == tuple(name.replace("__", ".") for name in SHAPES if name != "k__weight")
    assert "8 of 9 tensors did not come and keep their values: q.weight" in caplog.text


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("place", [0, len(SHAPES)], ids=["before", "after"])
def test_the_last_of_a_tensor_that_comes_twice_counts(pair, place, dtype):
    pairs, model = list(drawn(**SHAPES).items()), pair.models[1]
    pairs.insert(place, ("q.weight", torch.randn(2, 4).to(dtype)))
    pair._initialize(model)
    model.load_weights(pairs)
    pair._finalize(model, CONFIG)

    assert torch.equal(model.qkv.weight, torch.cat([dict(pairs)[f"{part}.weight"] for part in "qkv"]))


def perturb(plan):
    plan._copies["q.weight"], plan._copies["k.weight"] = plan._copies["k.weight"], plan._copies["q.weight"]


def test_wrong_copies_fail_until_the_next_update_mends_them(pair):
    perturb(pair.updates._plan)
    model = pair.models[1]
    pair._initialize(model)
    with pytest.raises(RefitError, match=r"do not do what the model's loaders do, in qkv\.weight"):
        model.load_weights(list(drawn(**SHAPES).items()))
    with pytest.raises(RefitError, match="an earlier part of this weight update failed"):
        model.load_weights(list(drawn(**SHAPES).items()))

    pair.update()
    pair.assert_equal()
    assert pair.ways == (0, len(SHAPES))


def test_copies_are_compared_again_after_a_number_of_updates(pair, monkeypatch):
    monkeypatch.setattr("worker.refit.engine.updates.CHECK_EVERY", 3)
    for _ in range(3):
        pair.update()
    perturb(pair.updates._plan)

    with pytest.raises(RefitError, match=r"in qkv\.weight"):
        pair.update()


def test_parameters_that_were_replaced_are_recorded_anew(pair):
    for model in pair.models:
        model.norm.weight.data = model.norm.weight.data.clone()
    ways = []
    for _ in range(2):
        pair.update()
        pair.assert_equal()
        ways.append(pair.ways)

    assert ways == [(0, len(SHAPES)), (COPIED, 1)]


def test_constants_that_the_memory_has_lost_are_written_again(pair):
    for model in pair.models:
        for parameter in model.parameters():
            parameter.data.fill_(7)

    pair.update()

    pair.assert_equal()
    assert torch.equal(pair.models[1].embed.weight[10:], torch.zeros(2, 4))


@pytest.mark.parametrize(
    ("last", "error"), [({"packed__weight": (4, 4)}, ""), ({"q__weight": (2, 3)}, "must match")], ids=["open", "failed"]
)
def test_after_an_update_that_nobody_ends_the_next_is_loaded(pair, last, error):
    model = pair.models[1]
    pair._initialize(model)
    with pytest.raises(RuntimeError, match=error) if error else nullcontext():
        model.load_weights(list(drawn(**QKV | last).items()))

    pair.update()
    pair.assert_equal()
    assert pair.ways == (0, len(SHAPES))


def test_a_first_update_that_is_a_part_is_not_copied_from(monkeypatch, caplog):
    pair = Pair(monkeypatch)
    pair.update({"norm.weight": torch.randn(4)})
    assert "4 parameters of the model got no value" in caplog.text
    pair.update()
    assert pair.ways == (0, len(SHAPES))
    pair.update()

    pair.assert_equal()
    assert pair.ways == (COPIED, 1)


def test_updates_of_changing_form_are_recorded_four_times(pair):
    for number in range(8):
        pair.update({name: tensor.to((torch.bfloat16, torch.float32)[number % 2]) for name, tensor in drawn(**SHAPES).items()})
        pair.assert_equal()

    assert pair.updates._recordings == 4
    assert pair.updates._plan is None


def test_a_load_outside_of_an_update_is_the_models_own(pair):
    pair.load({"norm.weight": torch.ones(4)})
    pair.assert_equal()
    pair.update()

    pair.assert_equal()
    assert pair.ways == (COPIED, 1)


def out_of_buffer(buffer, shapes):
    """What vLLM's ``packed_ipc_consumer`` does with a buffer that the trainer fills anew for the next call."""
    tensors = buffer.split([torch.Size(shape).numel() for shape in shapes.values()])
    return [(name, tensor.view(shape).clone()) for (name, shape), tensor in zip(shapes.items(), tensors, strict=True)]


def test_only_tensors_that_the_reload_keeps_are_cloned(pair, monkeypatch):
    """Of a buffer that is used again."""
    from worker.refit.engine.updates import unpacked

    shapes = {name.replace("__", "."): shape for name, shape in SHAPES.items()}
    buffer = torch.randn(sum(torch.Size(shape).numel() for shape in shapes.values()))
    expected, model = dict(out_of_buffer(buffer, shapes)), pair.models[1]

    pair._initialize(model)
    came = unpacked(out_of_buffer, buffer, shapes)
    assert {tensor.untyped_storage().data_ptr() for _, tensor in came} == {buffer.untyped_storage().data_ptr()}
    cloned = []
    monkeypatch.setattr(torch.Tensor, "clone", lambda tensor: cloned.append(tensor.data_ptr()) or torch.clone(tensor))
    model.load_weights(came)
    buffer.zero_()
    pair._finalize(model, CONFIG)

    assert cloned == [dict(came)["packed.weight"].data_ptr()]
    assert torch.equal(model.packed.packed, expected["packed.weight"].t())
    assert torch.equal(model.qkv.weight, torch.cat([expected[f"{part}.weight"] for part in "qkv"]))
