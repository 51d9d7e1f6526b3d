"""The trainer's path: its logprobs are those of one row at a time, whatever the batch, the weights and the dtype."""

from __future__ import annotations

import json
import math
import shutil
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.functional import linear

from worker.lab.kit.lab import PROMPTS, Generated
from worker.lab.parity import scoring
from worker.lab.parity.records import Sample, Scoring
from worker.lab.parity.scoring import token_logprobs, truncated
from worker.lab.parity.trainer import Trainer, TrainerLoadError, TrainerOptions

KINDS = ("llama", "qwen3", "qwen3_moe", "gemma3", "apertus")
FLOAT32 = TrainerOptions(dtype="float32")
#: Nats. A kernel sums in an order that depends on the CPU, on the batch and on the row's place in it, so logprobs of the same
#: row are equal bit for bit in the same batch only.
NOISE = 1e-4


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint):
    return lambda kind: str(tiny_checkpoint(kind))


@pytest.fixture(scope="module")
def qwen3(checkpoint) -> Trainer:
    """A trainer with the checkpoint's weights and perturbed ones; tests leave it with the checkpoint's."""
    trainer = Trainer.load(checkpoint("qwen3"), FLOAT32)
    trainer.perturb("b", scale=0.3)
    return trainer


def sample(index: int = 0, tokens: int = 24, **scoring) -> Sample:
    """One of the lab's prompts with tokens that do not matter."""
    made = tuple((31 * position + 7 * index + 3) % 500 for position in range(tokens))
    return Sample(prompt=PROMPTS[index], tokens=made, rollout=(0.0,) * tokens, scoring=Scoring(**scoring))


def scored(trainer: Trainer, samples: Sequence[Sample], options: TrainerOptions | None = None) -> list[tuple[float, ...]]:
    return [row.trainer for row in trainer.score(samples, options)]


def flat(rows: Iterable[Iterable[float]]) -> list[float]:
    return [value for row in rows for value in row]


def logits_of(model, row: Sample) -> torch.Tensor:
    """[G, V] logits for the sample's tokens, by one plain forward pass."""
    with torch.no_grad():
        return model(torch.tensor([[*row.prompt, *row.tokens]]), use_cache=False).logits[0, len(row.prompt) - 1 : -1]


# ---- what it computes


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_batch_score_as_in_a_plain_forward_pass(kind: str, quirk_lab, checkpoint) -> None:
    trainer = Trainer.load(checkpoint(kind), FLOAT32)
    rows = [sample(number, temperature=0.7) for number in range(3)]

    reference = quirk_lab.rescored(trainer.model, [Generated(row.tokens, ()) for row in rows], 0.7)

    assert flat(scored(trainer, rows)) == pytest.approx(flat(row.logprobs for row in reference), abs=NOISE)


def test_rows_of_a_batch_are_scored_as_each_one_alone(qwen3: Trainer) -> None:
    """Each by its own sampling; nothing else of a sample changes."""
    rows = [sample(0), sample(0, temperature=0.5), sample(0, top_k=3), sample(0, top_p=0.4), sample(1, 9), sample(0, 0)]

    together = qwen3.score(rows)

    assert [row.model_copy(update={"trainer": ()}) for row in together] == rows
    assert [len(row.trainer) for row in together] == [24, 24, 24, 24, 9, 0]
    assert len({row.trainer[0] for row in together[:4]}) == 4
    alone = flat(flat(scored(qwen3, [row])) for row in rows)
    assert flat(row.trainer for row in together) == pytest.approx(alone, abs=NOISE)


@pytest.mark.parametrize(("top_k", "top_p"), [(5, 1.0), (-1, 0.7), (20, 0.5), (-1, 1.0)])
def test_truncation_keeps_what_vllms_sampler_keeps(top_k: int, top_p: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of vLLM's import
        from vllm.v1.sample.ops import topk_topp_sampler
    # The one without Triton, which takes no tensor on the CPU.
    sampler = getattr(topk_topp_sampler, "apply_top_k_top_p_pytorch", topk_topp_sampler.apply_top_k_top_p)
    logits = 3 * torch.randn(64, 400, generator=torch.Generator().manual_seed(0))
    logits[:, 7] = logits[:, 3]  # a tie
    k = torch.full((64,), 400 if top_k == -1 else top_k, dtype=torch.int32)
    kept = sampler(logits.clone(), k if top_k != -1 else None, torch.full((64,), top_p) if top_p < 1 else None)

    found = truncated(logits, kept.argmax(-1), top_k, top_p)

    assert torch.equal(found, kept)
    assert kept.isinf().any() == (top_k not in (-1, 400) or top_p < 1)


def test_the_sampled_token_stays_in_though_truncation_drops_it() -> None:
    logits = torch.tensor([[4.0, 3.0, 2.0, 1.0]])

    (logprob,) = token_logprobs(logits, torch.tensor([3]), Scoring(top_k=2)).tolist()

    assert logprob == pytest.approx(1 - math.log(math.exp(4) + math.exp(3) + math.exp(1)))


# ---- weights


def test_the_weights_in_use_survive_perturbing_and_scoring(qwen3: Trainer) -> None:
    """Bit for bit."""
    original = {name: row.clone() for name, row in qwen3.model.state_dict().items()}

    qwen3.perturb("c", scale=0.5)
    scored(qwen3, [sample(weights=(("b", 0, 24),))])
    held = qwen3.label
    qwen3.use("b")
    other = qwen3.model.get_output_embeddings().weight.detach().clone()
    qwen3.use("a")

    assert held == "a"
    assert all(torch.equal(row, original[name]) for name, row in qwen3.model.state_dict().items())
    assert not torch.equal(other, qwen3.model.get_output_embeddings().weight)


def test_the_noise_depends_on_the_scale_alone(checkpoint) -> None:
    trainer = Trainer.load(checkpoint("llama"), FLOAT32)
    name, parameter = max(trainer.model.named_parameters(), key=lambda row: row[1].numel())
    original = parameter.detach().clone()
    steps = {}
    for label, options in {"b": {}, "same": {}, "large": {"scale": 0.2}}.items():
        trainer.perturb(label, **options)
        trainer.use(label)
        steps[label] = trainer.model.get_parameter(name).detach() - original

    assert torch.equal(steps["b"], steps["same"])
    assert steps["b"].std() / original.std() == pytest.approx(0.02, rel=0.05)
    assert steps["large"].std() / original.std() == pytest.approx(0.2, rel=0.05)


@pytest.mark.parametrize(("kind", "same"), [("llama_tied", {"rotary"}), ("apertus", {"beta", "eps"})])
def test_perturbing_touches_neither_ties_nor_buffers(kind: str, same: set[str], checkpoint) -> None:
    trainer = Trainer.load(checkpoint(kind), FLOAT32)
    model = trainer.model
    parameters = {name: row.detach().clone() for name, row in model.named_parameters()}
    buffers = {name: row.clone() for name, row in model.named_buffers()}

    trainer.perturb("b")
    trainer.use("b")

    tied = model.get_input_embeddings().weight.data_ptr() == model.get_output_embeddings().weight.data_ptr()
    assert tied == model.config.tie_word_embeddings == (kind == "llama_tied")
    assert [name for name, row in model.named_parameters() if torch.equal(row, parameters[name])] == []
    assert [name for name, row in model.named_buffers() if not torch.equal(row, buffers[name])] == []
    assert all(any(part in name for name in buffers) for part in same)


def test_each_span_is_scored_by_its_own_weights(qwen3: Trainer) -> None:
    old, new = sample(weights=(("a", 0, 24),)), sample(weights=(("b", 0, 24),))
    mixed = sample(weights=(("a", 0, 10), ("b", 10, 24)))

    by_old, by_new, by_both, by_default = scored(qwen3, [old, new, mixed, sample()])

    assert by_old != pytest.approx(by_new, abs=0.1)
    assert by_both == pytest.approx((*by_old[:10], *by_new[10:]), abs=NOISE)
    assert by_default == pytest.approx(by_old, abs=NOISE)


# ---- dtype, attention, head


def test_another_dtype_scores_the_same_weights(qwen3: Trainer) -> None:
    rows = [sample(weights=(("b", 0, 24),))]
    bfloat16 = replace(FLOAT32, dtype="bfloat16")

    exact, rounded = scored(qwen3, rows)[0], scored(qwen3, rows, bfloat16)[0]
    again = scored(qwen3, rows)[0]

    assert rounded != exact == again
    assert rounded == pytest.approx(exact, abs=0.5)
    assert rounded != pytest.approx(scored(qwen3, [sample()], bfloat16)[0], abs=0.5), "these are the checkpoint's weights"
    assert {row.dtype for row in qwen3.model.parameters()} == {torch.float32}
    qwen3.use("a")


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("gemma3", TrainerOptions(dtype="bfloat16")),
        ("llama_tied", TrainerOptions(dtype="bfloat16")),
        ("qwen3", TrainerOptions(dtype="float32", autocast="bfloat16")),
    ],
    ids=["bfloat16", "tied", "autocast"],
)
def test_a_float32_head_multiplies_in_float32(kind: str, options: TrainerOptions, checkpoint) -> None:
    """What the model computed in its own dtype, or in autocast's."""
    trainer = Trainer.load(checkpoint(kind), options)
    row = sample()

    (plain,) = scored(trainer, [row], options)
    (exact,) = scored(trainer, [row], replace(options, head_dtype="float32"))

    model = trainer.model if options.autocast else trainer._second.module
    seen = []
    handle = model.get_output_embeddings().register_forward_hook(lambda _, inputs, output: seen.append((inputs[0], output)))
    with torch.autocast("cpu", torch.bfloat16, enabled=bool(options.autocast)):
        logits_of(model, row)
    handle.remove()
    hidden, product = seen[0]
    expected = linear(hidden.float(), model.get_output_embeddings().weight.float())[0, len(row.prompt) - 1 : -1]
    chosen = expected.log_softmax(-1)[torch.arange(24), torch.tensor(row.tokens)]
    assert product.dtype == torch.bfloat16, "the head is itself again"
    assert exact == pytest.approx(chosen.tolist(), abs=NOISE)
    assert max(abs(a - b) for a, b in zip(plain, exact, strict=True)) > 1e-4
    assert scored(trainer, [row], replace(options, head_dtype="model")) == [plain]


def test_a_step_holds_weights_gradients_and_activations(qwen3: Trainer) -> None:
    weights = sum(row.nbytes for row in qwen3.model.parameters())

    (seconds, short), (_, long) = (scoring.step(qwen3.model, [sample()] * rows) for rows in (1, 8))

    assert seconds > 0
    assert 2 * weights < short < long
    assert all(row.grad is None for row in qwen3.model.parameters())


# ---- what cannot be loaded or scored


def test_a_checkpoint_that_lacks_tensors_is_refused(checkpoint, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    shutil.copytree(checkpoint("qwen3"), tmp_path, dirs_exist_ok=True)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})

    with pytest.raises(TrainerLoadError, match=r"missing in .*: model\.layers\.1\.mlp\.up_proj\.weight$"):
        Trainer.load(str(tmp_path), FLOAT32)


def test_code_that_comes_with_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    code = 'from pathlib import Path\nPath(__file__).with_name("ran").touch()\n'
    (tmp_path / "theirs.py").write_text(code, encoding="utf-8")
    config = {"model_type": "theirs", "auto_map": {"AutoConfig": "theirs.Config", "AutoModelForCausalLM": "theirs.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")

    with pytest.raises(TrainerLoadError, match="trust_remote_code"):
        Trainer.load(str(tmp_path), FLOAT32)

    assert not list(tmp_path.glob("ran"))
