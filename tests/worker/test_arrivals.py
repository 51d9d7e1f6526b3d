"""What an engine should have of a trainer's model, and what follows from what it has."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Shard, distribute_tensor

from quirks_core.base.errors import UsageError
from quirks_core.ledger.account import COMPUTES, Entry
from worker.refit import Arrivals, digest, trl_callback
from worker.refit.weights.digest import digests, form
from worker.refit.weights.expected import common, expected

transformers = pytest.importorskip("transformers")
PREFIX = "model.layers.0.self_attn"


@pytest.fixture
def policy(tiny_checkpoint):
    return transformers.AutoModelForCausalLM.from_pretrained(tiny_checkpoint("qwen3"), dtype=torch.float32)


@torch.no_grad()
def train(model, *, only=""):
    """One step of an optimizer."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and only in name:
            parameter.add_(torch.randn_like(parameter) * 1e-3)


@torch.no_grad()
def engine(model, *, number=1, packed=(), taken=None, rank=0, **more):
    """What an engine has of a model: fused, and some of it packed away; and what its loaders took of another one."""
    held = {}
    for name, parameter in model.named_parameters():
        words = name.split(".")
        if words[-2] == "q_proj":
            parts = [model.get_parameter(name.replace("q_proj", part)) for part in ("q_proj", "k_proj", "v_proj")]
            name, parameter = name.replace("q_proj", "qkv_proj"), torch.cat(parts)
        elif words[-2] == "gate_proj":
            parts = [parameter, model.get_parameter(name.replace("gate_proj", "up_proj"))]
            name, parameter = name.replace("gate_proj", "gate_up_proj"), torch.cat(parts)
        elif words[-2] in ("k_proj", "v_proj", "up_proj"):
            continue
        if name.endswith(packed):
            name, parameter = name.removesuffix(".weight") + COMPUTES, parameter.sum()
        held[name] = parameter
    found = digests(held.items(), whole=False)
    forms = {name: form(tensor) for name, tensor in held.items() if not name.endswith(COMPUTES)}
    received = {} if taken is None else digests(taken.named_parameters(), whole=False)
    values = {"digests": found, "forms": forms, "received": received, **more}
    return [Entry(number=number, way="raw", rank=rank, **values)]


def test_every_update_of_a_whole_model_arrives_with_a_norm(policy):
    arrivals = Arrivals()
    first = arrivals.compare(engine(policy, number=0), digest(policy))
    before = copy.deepcopy(policy)
    train(policy)

    second = arrivals.compare(engine(policy), digest(policy))

    for found in (first, second):
        assert (found.status, found.share, found.missing, found.incomparable, found.verdict) == ("arrived", 1, (), (), "")
    assert "layers.0.self_attn.qkv_proj.weight" in second.arrived
    assert (first.changed_share, second.changed_share) == (None, 1)
    pairs = zip(policy.parameters(), before.parameters(), strict=True)
    exact = math.sqrt(sum(float((one - other).detach().double().square().sum()) for one, other in pairs))
    assert second.update_norm == pytest.approx(exact, rel=0.1)


def test_the_weights_in_the_engine_are_dated_by_their_step(policy):
    states = []
    for _ in range(3):
        states.append((engine(policy, number=len(states) + 1), digest(policy)))
        train(policy)
    late, lenient = Arrivals(), Arrivals(behind=1)
    late.compare(*states[0])
    lenient.compare(*states[0])

    late.compare(states[0][0], states[1][1])
    found = late.compare(states[1][0], states[2][1])

    assert (found.share, found.age) == (0, 1)
    assert "the engine has the trainer's weights of 1 step ago" in found.verdict
    assert (lenient.compare(states[0][0], states[1][1]).age, lenient.compare(states[2][0], states[2][1]).age) == (1, 0)


def test_what_nothing_shows_is_undecided(policy):
    arrivals = Arrivals()
    for number in range(3):
        found = arrivals.compare(engine(policy, number=number, packed="o_proj.weight"), digest(policy))
        assert found.incomparable == ("layers.0.self_attn.o_proj.weight", "layers.1.self_attn.o_proj.weight")
        assert (found.status, found.verdict, len(found.arrived)) == ("undecided", "", 17)
        train(policy)
    assert "17 of 19 tensors are the trainer's, 2 cannot be compared" in str(found)


def test_a_packed_layer_that_changes_past_its_loader_is_named(policy):
    (entry,) = engine(policy, packed="_proj.weight", taken=policy)
    name = f"{PREFIX}.o_proj.weight"
    arrivals = Arrivals()
    arrivals.compare([entry], digest(policy))

    found = arrivals.compare([entry.model_copy(update={"received": entry.received | {name: ""}})], digest(policy))

    assert (found.status, found.missing) == ("missing", (common(name),))


def test_bytes_that_were_the_trainers_have_to_be_so_again(policy):
    """A loader that took the trainer's tensor may compute something else of it, and has done so from the start."""
    other = copy.deepcopy(policy)
    train(other, only="layers.0.self_attn.o_proj")
    late, early = Arrivals(), Arrivals()
    late.compare(engine(policy, taken=policy), digest(policy))

    named, undecided = (one.compare(engine(other, taken=policy, number=2), digest(policy)) for one in (late, early))

    assert (named.status, named.missing) == ("missing", ("layers.0.self_attn.o_proj.weight",))
    assert (undecided.status, undecided.incomparable) == ("undecided", named.missing)


def test_names_of_a_trainers_module_were_taken_by_nobody(policy):
    held = engine(policy, packed="_proj.weight", taken=policy)[0]
    received = {f"base_model.{name}": digest for name, digest in held.received.items()}

    found = Arrivals().compare([held.model_copy(update={"received": received})], digest(policy))

    assert (found.status, len(found.incomparable)) == ("undecided", 8)


def test_one_rank_that_lacks_an_update_is_named(policy):
    old = copy.deepcopy(policy)
    train(policy, only="o_proj")
    rows = [*engine(policy, taken=policy, packed="_proj.weight"), *engine(old, taken=old, packed="_proj.weight", rank=1)]

    found = Arrivals().compare(rows, digest(policy))

    assert found.missing == ("layers.0.self_attn.o_proj.weight", "layers.1.self_attn.o_proj.weight")


def test_an_adapter_is_merged_for_the_digest_not_in_the_model(policy):
    peft = pytest.importorskip("peft")
    base = copy.deepcopy(policy)
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "down_proj"], modules_to_save=["norm"], init_lora_weights=False)
    model = peft.get_peft_model(policy, config)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    found = digest(model)

    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())
    model.merge_adapter()
    merged = digest(model)
    model.unmerge_adapter()
    assert found.digests == merged.digests
    assert found.digests.keys() == digest(base).digests.keys()
    changed = {name for name in found.digests if found.digests[name] != digest(base).digests[name]}
    assert changed == {
        f"layers.{layer}.{name}.weight"
        for layer in range(2)
        for name in ("self_attn.q_proj", "self_attn.qkv_proj", "mlp.down_proj")
    }


def test_a_sharded_model_has_the_digests_of_the_whole_one(policy, mesh):
    from torch.distributed.fsdp import fully_shard

    whole = digest(policy)
    fully_shard(policy, mesh=mesh)

    assert digest(policy).digests == whole.digests


def has(found, name, tensor):
    """Whether an engine may have these bytes under this name."""
    return digests([("it", tensor)], whole=False)["it"] in found.digests[name]


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_split_layer_has_the_digests_of_each_ranks_part(ranks):
    parts = {f"{PREFIX}.{name}.weight": torch.randn(rows, 8) for name, rows in (("q_proj", 16), ("k_proj", 4), ("v_proj", 4))}
    query, key, value = parts.values()

    found = expected(parts.items(), tensor_parallel_size=ranks)

    for rank in range(ranks):
        for count in (ranks, ranks // 2):  # as many ranks as heads of keys, and two ranks for each
            rows = [query.chunk(ranks)[rank], *(one.chunk(count)[rank * count // ranks] for one in (key, value))]
            assert has(found, f"{common(PREFIX)}.qkv_proj.weight", torch.cat(rows))
    found = expected([("down_proj.weight", query)], tensor_parallel_size=ranks)
    assert all(has(found, "down_proj.weight", part) for dim in (0, 1) for part in query.chunk(ranks, dim))


def test_a_vocabulary_is_filled_up_with_rows_of_zeros():
    table = torch.randn(100, 4)

    found = expected([("model.embed_tokens.weight", table)])

    assert has(found, "embed_tokens.weight", torch.cat([table, torch.zeros(28, 4)]))


def experts():
    names = ("gate_proj", "up_proj", "down_proj")
    shapes = {"gate_proj": (3, 4), "up_proj": (3, 4), "down_proj": (4, 3)}
    prefix = "model.layers.0.mlp.experts"
    return {f"{prefix}.{number}.{name}.weight": torch.randn(shapes[name]) for number in range(2) for name in names}


def stacked(items):
    """The experts of a layer as vLLM stacks them."""
    gates, ups, downs = (torch.stack(list(items.values())[part::3]) for part in range(3))
    return {"layers.0.mlp.experts.w13_weight": torch.cat([gates, ups], 1), "layers.0.mlp.experts.w2_weight": downs}


def test_a_rank_need_not_have_taken_other_ranks_experts():
    """A layer lays them out in its own way, and is wrapped for LoRA."""
    items = experts()
    of_one = [{name: one for name, one in items.items() if f".experts.{number}." in name} for number in range(2)]
    held = {f"model.layers.0.mlp.experts.base_layer.{name}_weight": "its own" for name in ("w13", "w2")}

    rows = [
        Entry(number=1, rank=rank, way="transfer", digests=held, received=digests(some.items(), whole=False))
        for rank, some in enumerate(of_one)
    ]

    assert Arrivals().compare(rows, expected(items.items())).status == "arrived"
    assert Arrivals().compare(rows[:1], expected(items.items())).status != "arrived"


def test_experts_that_were_the_trainers_have_to_be_so_again():
    """What was copied has not passed a loader, and an engine may lay experts out in another way than the trainer."""
    items, late, early = experts(), Arrivals(), Arrivals()
    wrong = {name: tensor + 1 if "down_proj" in name else tensor for name, tensor in items.items()}

    def entry(held, number):
        return [Entry(number=number, rank=0, way="transfer", digests=digests(stacked(held).items(), whole=False))]

    late.compare(entry(items, 1), expected(items.items()))
    named, undecided = (one.compare(entry(wrong, 2), expected(items.items())) for one in (late, early))

    assert (named.status, named.missing) == ("missing", ("layers.0.mlp.experts.w2_weight",))
    assert (undecided.status, undecided.incomparable) == ("undecided", named.missing)


def test_digests_of_samples_and_of_every_byte_are_not_compared(policy):
    with pytest.raises(UsageError, match=r"digest\(model, whole=True\)"):
        Arrivals().compare(engine(policy), digest(policy, whole=True))


@pytest.mark.parametrize("is_sharded", [True, False])
def test_a_rank_that_looks_no_more_still_gathers_with_the_others(monkeypatch, mesh, is_sharded):
    model, made = nn.Linear(2, 2), []
    if is_sharded:
        model.weight = nn.Parameter(distribute_tensor(model.weight.detach(), mesh, [Shard(0)]))
    monkeypatch.setattr(trl_callback, "digest", lambda *_, **__: made.append(1) or object())

    _two_steps(model)

    assert len(made) == 1 + is_sharded


def test_a_model_that_has_no_digest_ends_the_comparison_alone(caplog):
    """Another library keeps it in parts."""
    model = nn.Linear(2, 2)
    model.weight.ds_id = 1

    _two_steps(model)

    assert [record.levelname for record in caplog.records if "DeepSpeed ZeRO-3" in record.message] == ["ERROR"]


def _two_steps(model):
    """Calls TRL's callback for two steps; the engine has no ledger."""
    llm = SimpleNamespace(llm_engine=SimpleNamespace(vllm_config=SimpleNamespace(additional_config={})))
    trainer = SimpleNamespace(
        model=model,
        args=SimpleNamespace(gradient_accumulation_steps=1),
        accelerator=SimpleNamespace(scaler=None),
        vllm_generation=SimpleNamespace(mode="colocate", llm=llm),
    )
    callback, state = trl_callback.LedgerCallback(trainer), SimpleNamespace(global_step=1)
    for _ in range(2):
        callback.on_step_begin(None, state, None)
        callback.on_step_end(None, state, None)
