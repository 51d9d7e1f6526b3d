"""The example that trainer authors copy from: its arithmetic, and the whole run as a user starts it."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import fork_server
import pytest
import torch
from programs import run_python
from script_modules import load_script

_ROOT = Path(__file__).parents[2]
_SCRIPT = _ROOT / "examples" / "grpo_tiny.py"
#: What the example needs on top of the rest; installed with the extra `examples`.
_DRAWS = pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="needs the extra 'examples' (matplotlib)")


@pytest.fixture(scope="module")
def grpo() -> ModuleType:
    return load_script(_SCRIPT)


def _batch(rows: list[list[int]], prompt: int, width: int) -> dict[str, torch.Tensor]:
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    lengths = torch.tensor([len(row) for row in rows])
    return {"output_ids": ids, "unpadded_sequence_lengths": lengths, "generation_lengths": lengths - prompt}


def test_advantages_are_standardised_within_each_group(grpo):
    reward = torch.rand(12, generator=torch.Generator().manual_seed(0))
    reward[4:8] += 5  # a prompt that is easy for all is no advantage

    advantage = grpo.advantages(reward, 4).view(3, 4)

    assert torch.allclose(advantage.mean(dim=1), torch.zeros(3), atol=1e-5)
    assert torch.allclose(advantage.std(dim=1), torch.ones(3), atol=1e-2)
    assert torch.equal(advantage.argsort(dim=1), reward.view(3, 4).argsort(dim=1))


def test_clipping_stops_only_the_good_direction(grpo):
    far = torch.tensor([[0.5], [-0.5], [0.5], [-0.5]])  # ratios of 1.65 and 0.61, both outside the clip
    new = far.clone().requires_grad_()
    advantage = torch.tensor([1.0, 1.0, -1.0, -1.0])

    grpo.grpo_loss(new, torch.zeros(4, 1), advantage, torch.ones(4, 1, dtype=torch.bool)).backward()

    assert new.grad is not None
    assert new.grad[:, 0].sign().tolist() == [0, -1, 1, 0]  # descent raises the logprobs of what was better


def test_only_tokens_of_the_response_get_a_gradient(grpo):
    batch = _batch([[9, 8, 7, 6, 5], [9, 8, 7, 6, 5, 4, 3]], prompt=4, width=8)
    new = torch.zeros(2, 7, requires_grad=True)

    mask = grpo.response_mask(batch)
    grpo.grpo_loss(new, torch.zeros(2, 7), torch.ones(2), mask).backward()

    assert mask.int().tolist() == [[0, 0, 0, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1, 0]]
    assert new.grad is not None
    assert torch.equal(new.grad != 0, mask)


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        ([2, 3, 2, 3, 2, 3, 2, 3], 1.0),
        ([1, 3, 5, 7, 9, 1, 3, 5], 0.0),
        ([2, 3, 2, 3, 0], 0.5),  # ends early: four right, the end counts for nothing
        ([0], 0.0),
    ],
)
def test_the_reward_is_the_share_of_tokens_that_alternate(grpo, response, reward):
    batch = _batch([[1, 2, 4, 1, *response]], prompt=4, width=12)

    assert grpo.rewards(batch).tolist() == [reward]


@pytest.mark.parametrize("shift", [0.1, float("nan")])
def test_different_logprobs_stop_the_run(grpo, shift):
    old = torch.full((1, 4), -1.0)
    mask = torch.tensor([[False, True, True, True]])

    with pytest.raises(grpo.MismatchError, match="does not sample from the policy that is trained"):
        grpo.check_logprobs(old + shift, old, mask)


@pytest.mark.engine
@_DRAWS
@pytest.mark.usefixtures("worker_in_core")
def test_the_reward_rises_and_the_rollout_agrees(tmp_path):
    from PIL import Image

    done = run_python(_SCRIPT, "--json", "--output", "plot.png", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    rewards = [step["reward"] for step in result["steps"]]
    assert [step["step"] for step in result["steps"]] == list(range(1, 31))
    assert sum(rewards[:3]) / 3 < 0.6  # a coin's toss
    assert sum(rewards[-3:]) / 3 > 0.8
    assert result["rise"] == pytest.approx(sum(rewards[-6:]) / 6 - sum(rewards[:6]) / 6)
    assert max(step["difference_mean"] for step in result["steps"]) < 1e-5
    assert max(step["difference_max"] for step in result["steps"]) < 1e-3
    assert len({step["difference_mean"] for step in result["steps"]}) > 1  # it was really compared each time
    assert "the reward rose" in done.stderr
    with Image.open(tmp_path / "plot.png") as image:
        image.load()
        assert image.format == "PNG"
        assert image.size == (800, 600)
        assert len(image.convert("RGB").getcolors(maxcolors=1 << 20) or []) > 10  # lines and text, not a blank page


@pytest.mark.engine
@pytest.mark.usefixtures("worker_in_core")
def test_logprobs_before_the_temperature_end_the_run_at_once(grpo, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["grpo_tiny.py", "--json"])
    monkeypatch.setenv("MODEL_QUIRKS_DISABLE", "rollout-logprobs-processed")
    threads = torch.get_num_threads()
    fork_server.start()

    with fork_server.instead_of_spawning():
        code = grpo.main()
    torch.set_num_threads(threads)

    printed = capsys.readouterr()
    assert (code, printed.out) == (1, "")
    assert "error: the logprobs of rollout and trainer differ by" in printed.err
    assert "engine.logprobs_mode" in printed.err
    assert "step   1" not in printed.err
    assert not list(tmp_path.iterdir())
