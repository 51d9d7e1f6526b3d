"""What a command cannot do is said before anything runs, with exit code 2: to a reader, and in JSON where that was asked for.

More of these errors, with their whole texts, are in ``test_bad_input.py``.
"""

from __future__ import annotations

import shlex
import sys

import pytest
from installed import needs_vllm

MIGRATE = "migrate --to PYTHON --prompts PROMPTS --model MODEL --from"
NO_NAME, TAKEN = "is no name of a distribution", "cannot be used"
OTHERS = "what stands before the slash is the distribution's name, "
#: Errors of the parser, which come with the usage.
OF_THE_PARSER = [
    ("no-such-verb", "invalid choice: 'no-such-verb'"),
    ("plam", "did you mean 'plan'?"),
    ("list --api-kye SECRET", "unrecognized arguments: --api-kye"),
    ("explain", "the following arguments are required: ID"),
    ("show", "the following arguments are required: ID"),
    ("plan --purpose train", "argument --purpose: invalid choice: 'train'"),
    ("plan --purpose serv", "did you mean 'serve'?"),
    ("plan --modle m", "did you mean '--model'?"),
    ("plan --asume=vllm==1", "did you mean '--assume'?"),
    ("--strict plan", "write options after the command"),
    ("prove", "one of the arguments ID --all --changed is required"),
    ("prove cp-vlm --all", "--all: not allowed with argument ID"),
    ("prove cp-vlm --jobs=0", "is not a whole number above 0"),
    ("prove cp-vlm --timeout=0", "is not a number of seconds above 0"),
    ("bisect --timeout soon -- true", "'soon' is not a number of seconds above 0"),
]
#: Errors of the commands.
OF_COMMANDS = [
    ("plan --model /no/such/folder", "does not exist"),
    ("plan --set engin.seed=1", "or a configuration with a 'model' key; engin: unknown key; did you mean 'engine'?"),
    ("plan --model MODEL -- vllm serve MODEL", "leave out --model"),
    ("plan --model MODEL --set platform.gpu.capability=80", "it is a fact, no setting; write --assume gpu==…"),
    ("plan --model MODEL --vllm 0.9,new", "--vllm: 'new' is not a version"),
    ("plan --model MODEL --vllm 0.9,,0.11", "--vllm: '' is not a version"),
    ("plan --model MODEL --vllm 0.9 --assume vllm==0.9", "give the versions with --vllm"),
    ("plan --model MODEL --vllm 0.9 --assume vlm==0.9", "did you mean 'vllm'?"),
    ("plan --model MODEL --vllm 0.9 --disable v1-runtme", "did you mean 'v1-runtime'?"),
    ("bisect -- no-such-command", "command 'no-such-command' is not found, or is not executable"),
    ("bisect -- /", "command '/' is not found, or is not executable"),
    ("bisect --disable v1-runtme -- true", "did you mean 'v1-runtime'?"),
    ("fingerprint", "give a TARGET, or --write DIST"),
    ("fingerprint --write no-dist", "'no-dist'"),
    ("fingerprint pluggy.PluginManager", "is not of the form package.module:Class.attribute"),
    ("fingerprint pluggy:NoSuch.method", "pluggy has no NoSuch"),
    ("lock --output no-such-folder/quirks.lock", "cannot be written"),
    ("prove cp-vml", "did you mean 'cp-vlm'"),
    ("prove cp-vlm --output /nowhere/report.json", "/nowhere/report.json cannot be written"),
    ("new --folder made 'acme quirks'", NO_NAME),
    *((f"new --folder made {name}", TAKEN) for name in ("json", "class", "model-quirks")),
    ("new --folder made acme-quirks --id 'Not An Id'", "the id must be lower-case words"),
    ("new --folder made acme-quirks --id others/one", f"{OTHERS}'acme-quirks'"),
    ("new --folder made acme-quirks --id v1-runtime", "by model-quirks 0.1.0; try 'acme-quirks/v1-runtime'"),
    ("new --builtin acme/one", f"{OTHERS}'model-quirks'"),
    ("new --builtin v1-runtime", "'v1-runtime' is taken by model-quirks 0.1.0; try another name"),
]
#: Errors of commands that need an engine's packages.
OF_ENGINES = [
    ("plan --trainer worker -- vllm serve MODEL", "leave one of them out"),
    ("audit", "no model: give --model"),
    ("audit here --assume vllm==0.26.0", "this command runs the installed one"),
    *(("parity compare" + " here" * number, "takes two dumps") for number in (0, 1, 3)),
    (f"{MIGRATE} no/python", "'no/python' is no Python interpreter"),
    (f"{MIGRATE} 0.30", "'0.30' is no Python interpreter"),
    (f"{MIGRATE} 0.30 --profile float23", "did you mean 'float32'"),
    (f"{MIGRATE} 0.30 --threshold max_abs_delta=high", "the limit must be a finite number"),
    (f"{MIGRATE} 0.30 --prompts no/file", "prompts no/file cannot be read"),
    (f"{MIGRATE} 0.30 --assume vllm==0.30.0", "name them with --from and --to"),
    (f"{MIGRATE} 0.30 --set train.dtpye=float32", "did you mean 'dtype'"),
    (f"{MIGRATE} 0.30 --output /dev/null/folder", "--output /dev/null/folder cannot be made"),
    ("migrate --from no/python --to PYTHON --model MODEL", "texts need a tokenizer"),
    ("weights 127.0.0.1:9", "nothing answers at http://127.0.0.1:9"),
    ("weights", "nothing answers at http://localhost:8000"),
    ("weights 4194304999", "is no process on this machine"),
    ("weights 1 --checkpoint here", "--checkpoint needs the server's address"),
    ("weights ftp://host", "name one as http://host:8000"),
]
ROWS = [
    *((*row, "usage: quirks") for row in OF_THE_PARSER),
    *((*row, "error: ") for row in OF_COMMANDS),
    *(pytest.param(*row, "error: ", marks=needs_vllm) for row in OF_ENGINES),
]


@pytest.mark.parametrize(("line", "words", "first"), ROWS)
def test_what_cannot_be_done_is_one_error_before_anything_runs(quirks, model, tmp_path, monkeypatch, line, words, first):
    (tmp_path / "prompts.jsonl").write_text('{"prompt_token_ids": [1, 2]}\n')
    monkeypatch.chdir(tmp_path)
    places = {"MODEL": str(model(vocab_size=8)), "PROMPTS": "prompts.jsonl", "PYTHON": sys.executable}
    verb, *rest = (places.get(word, word) for word in shlex.split(line))

    shown, as_json = quirks(verb, *rest), quirks(verb, "--json", *rest)

    assert (shown.code, shown.out, shown.err.startswith(first)) == (2, "", True)
    assert (as_json.code, as_json.err, as_json.json.keys()) == (2, "", {"error", "notes", "refusals"})
    assert words in " ".join(shown.err.split())
    assert words in as_json.json["error"]
    assert "SECRET" not in shown.out + shown.err + as_json.out
    assert not (tmp_path / "made").exists()


def test_json_that_another_program_is_asked_for_is_not_ours(quirks):
    outcome = quirks("bisect", "--no-such-option", "--", "program", "--json")

    assert (outcome.code, outcome.out) == (2, "")
    assert "unrecognized arguments" in outcome.err
