"""What a trainer asks of a live ``vllm serve`` under the hook: its side of the contract, and ``quirks weights``."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager

import httpx
import pytest
import torch
from patience import HUNG_S, until
from programs import free_port
from safetensors.torch import load_file, save_file

from quirks_core.base.errors import UsageError
from worker.refit import Contract, agree
from worker.refit.running import Server

OPTIONS = ("--dtype", "float32", "--enforce-eager")
DEVELOPMENT = {"VLLM_SERVER_DEV_MODE": "1", "OMP_NUM_THREADS": "1"}
#: What the server has; its requests set the rest.
AGREED = {"dtype": "float32", "head_dtype": "float32", "logprobs": "processed_logprobs", "scope": "parameters"}


@pytest.fixture(scope="module")
def served(programs, models, vllm, tmp_path_factory):
    """A server with quirks in force, and its file of receipts."""
    file = tmp_path_factory.mktemp("served") / "receipts.json"
    variables = DEVELOPMENT | {"MODEL_QUIRKS": "rollout", "MODEL_QUIRKS_RECEIPT": str(file)}
    variables["MODEL_QUIRKS_SET"] = "refit.scope=parameters;sampling.temperature=0.7"
    command = [vllm, "serve", models[0], "--served-model-name", "policy", *OPTIONS, *programs.small]
    with programs.server(*command, **variables) as server:
        yield server, file


def test_a_plain_server_answers_with_its_side_of_the_contract(served):
    server, _ = served
    mine = Contract(**AGREED, temperature=0.7, top_p=1, adapters=False)
    theirs = agree(server.url, mine)

    assert AGREED.items() <= theirs.known.items()
    assert (theirs.temperature, theirs.top_p, theirs.adapters) == (0.7, None, False)
    assert theirs.versions == mine.versions
    assert (len(theirs.plan), agree(server.url, theirs).digest) == (64, theirs.digest)
    for changes, words in (
        ({"temperature": 1.0, "top_p": 0.9}, "temperature: the trainer has 1.0, the engine 0.7"),
        ({"plan": "0" * 64}, f"plan: the trainer has {'0' * 64}, the engine {theirs.plan}"),
        ({"versions": {"torch": "2.0"}}, "torch: the trainer has 2.0, the engine "),
    ):
        with pytest.raises(UsageError, match=f"differ before the first rollout: {words}"):
            agree(server.url, Contract(**AGREED | {"temperature": 0.7} | changes))
    agree(server.url, Contract(**AGREED, temperature=1.0), requests={"temperature": 1.0})


def post(url, body):
    httpx.post(url, json=body, timeout=HUNG_S).raise_for_status()


def update(server, folder):
    """Loads a checkpoint into the running engine, and has it generate."""
    post(f"{server.url}/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})
    post(f"{server.url}/v1/completions", {"model": "policy", "prompt": [5, 6, 7], "max_tokens": 2})


def noisy(folder, into):
    """Writes a checkpoint with noise in all projections, and the rest as it is."""
    weights = load_file(folder / "model.safetensors")
    found = {name: torch.randn_like(one) if "_proj" in name else one for name, one in weights.items()}
    into.mkdir()
    save_file(found, into / "model.safetensors")
    return into


@contextmanager
def with_receipt(file, folder):
    """Starts a process that has the receipts of an engine as its own: one that is forked shows another environment."""
    copy, found = folder / "receipts.json", json.loads(file.read_text())
    with subprocess.Popen(["sleep", "3600"], env={"MODEL_QUIRKS_RECEIPT": str(copy)}) as process:  # noqa: S607 - every system has it
        copy.write_text(json.dumps({**found, "accounts": [{**one, "pid": process.pid} for one in found["accounts"]]}))
        yield process.pid
        process.kill()


def kinds(account):
    """Returns the kinds of the verdicts that hold now."""
    return {verdict.kind for verdict in account.problems}


def test_the_ledger_of_a_server_shows_which_checkpoint_it_runs(served, checkpoint, models, weights, tmp_path):
    (server, file), steps = served, models
    code, out, _ = weights(server.url, "--checkpoint", *steps, "--json")
    (found,) = json.loads(out)
    assert (code, found["runs"], found["status"]) == (0, [str(steps[0])], "arrived")
    assert [match["status"] for match in found["matches"]] == ["arrived", "missing", "missing"]
    assert found["account"]["updates"] == 0
    code, out, _ = weights(server.url, "--checkpoint", noisy(steps[0], tmp_path / "noisy"))
    assert (code, "does not run" in out, "8 are not: layers.0.mlp.down_proj" in " ".join(out.split())) == (1, True, True)
    for step in (steps[1], steps[2]):
        update(server, step)

    code, out, _ = weights(server.url, "--checkpoint", *steps)
    assert code == 0
    assert "ledger: 2 updates" in out
    assert f"runs {steps[2]}: " in out
    assert f"does not run {steps[0]}: " in out
    assert "19 of 19 tensors are the trainer's" in " ".join(out.split())
    with with_receipt(file, tmp_path) as pid:
        for target in (server.url, pid):
            code, out, _ = weights(target, "--json")
            (found,) = json.loads(out)
            assert (code, found["account"]["updates"], found["problems"]) == (0, 2, [])

    code, out, _ = weights(server.url, "--checkpoint", steps[1])
    assert code == 1
    for _ in range(2):
        update(server, steps[2])
    code, out, _ = weights(server.url)
    assert code == 0  # a note
    assert "unchanged: the last 2 updates up to 4 (reload) changed 0 of" in out
    assert "behind" not in kinds(Server(server.url).report_updates(4))
    assert "behind" in kinds(Server(server.url).report_updates(5))

    code, _, err = weights(server.url, "--checkpoint", checkpoint("llama_tied"))
    assert code == 2
    assert (
        "is of another architecture than the server's model: no tensor is equal, and it has no layers.0.self_attn.k_norm" in err
    )
    code, _, err = weights(server.url, "--checkpoint", tmp_path)
    assert code == 2
    assert "holds no safetensors files; name the folder of a checkpoint" in err


def test_without_a_ledger_the_error_says_how_to_start_it(programs, models, vllm, weights):
    command = [vllm, "serve", models[0], *OPTIONS, *programs.small]
    with programs.server(*command, **DEVELOPMENT) as server:
        for arguments in ((), ("--checkpoint", models[0])):
            code, _, err = weights(server.url, *arguments)
            assert (code, "the engine keeps no ledger: start it with MODEL_QUIRKS=rollout" in err) == (2, True)
        code, _, err = weights(server.program.pid)
        assert (code, "has no MODEL_QUIRKS_RECEIPT" in err) == (2, True)


def test_a_server_of_something_else_is_an_error(programs, weights):
    port = free_port()
    with programs.running(sys.executable, "-u", "-m", "http.server", str(port), "--bind", "127.0.0.1") as server:
        until(lambda: "Serving HTTP" in server.log.read_text(), "the server")
        code, _, err = weights(f"127.0.0.1:{port}")
    assert (code, "is no vllm serve: it has no /version" in err) == (2, True)
