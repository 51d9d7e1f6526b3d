"""What a command cannot do is one line before anything runs, with the nearest name and exit code 2; in JSON where asked."""

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
    ("plan --purpose serv", "did you mean 'serve'?"),
    ("plan --modle m", "did you mean '--model'?"),
    ("plan --asume=vllm==1", "did you mean '--assume'?"),
    ("--strict plan", "write options after the command"),
    ("prove", "one of the arguments ID --all --changed is required"),
    ("prove cp-vlm --all", "--all: not allowed with argument ID"),
    ("prove cp-vlm --jobs=0", "is not a whole number above 0"),
    ("prove cp-vlm --timeout=0", "is not a number of seconds above 0"),
    ("bisect --timeout soon -- true", "'soon' is not a number of seconds above 0"),
    ("run --purpose rolout -- no-such-program", "invalid choice: 'rolout'"),
]
#: Errors of the commands.
OF_COMMANDS = [
    ("plan", "no model: give --model FOLDER_OR_HUB_ID, or a configuration with a 'model' key"),
    ("plan --model /no/such/folder", "model folder '/no/such/folder' does not exist"),
    ("plan --model '~/no-such-folder'", "model folder '~/no-such-folder' does not exist"),
    ("plan --model a/b/c", "model folder 'a/b/c' does not exist"),
    ("plan --model prompts.jsonl", "is a file"),
    ("plan --model list", "list/config.json must hold a JSON object, not a list"),
    ("plan --model cut", "cut/config.json is not valid JSON"),
    ("plan --model .", "has no config.json; point --model at the folder that holds it"),
    ("plan --model MODEL --config none.yaml", "configuration none.yaml cannot be read: No such file or directory"),
    ("plan --model MODEL --config empty.yaml", "configuration empty.yaml is empty"),
    ("plan --model MODEL --config open.yaml", "configuration open.yaml is not valid YAML"),
    ("plan --model MODEL --config twice.yaml", "key 'engine' is written twice"),
    ("plan --model MODEL --config code.yaml", "could not determine a constructor for the tag 'tag:yaml.org,2002:python/"),
    ("plan --model MODEL --set engine.load_format", "write slot=value, for example engine.load_format=dummy"),
    ("plan --model MODEL --set engine.seed=[1", "'[1' is not valid YAML"),
    ("plan --model MODEL --set purpose=eval --set purpose.x=1", "'purpose' has no keys"),
    ("plan --model MODEL --set refit.transport=ipc_zqm", "not 'ipc_zqm'; did you mean 'ipc_zmq'?"),
    ("plan --model MODEL --disable ''", "an empty name in the command line (--disable); name a quirk, a flag"),
    ("plan --model MODEL --disable double-bs", "'double-bs' in the command line (--disable); did you mean 'double-bos'?"),
    ("plan --model MODEL --locked ''", "cannot be read"),
    ("plan --model MODEL --locked newer.lock", "newer.lock is no lock file; 'quirks lock' writes one"),
    ("plan --model MODEL --assume vllm", "write package==version, for example vllm==0.9.1, platform==cpu"),
    ("explain double-bos --model MODEL --disable double-bs", "(--disable); did you mean 'double-bos'?"),
    ("explain double-bs --model MODEL", "no quirk 'double-bs'; did you mean 'double-bos'?"),
    ("show double-bs", "no quirk 'double-bs'; did you mean 'double-bos'?"),
    ("plan --set engin.seed=1", "or a configuration with a 'model' key; engin: unknown key; did you mean 'engine'?"),
    ("plan --model MODEL -- vllm serve MODEL", "leave out --model"),
    ("plan --model MODEL --set platform.gpu.capability=80", "it is a fact, no setting; write --assume gpu==…"),
    ("plan --model MODEL --vllm 0.9,new", "--vllm: 'new' is not a version"),
    ("plan --model MODEL --vllm 0.9 --assume vllm==0.9", "give the versions with --vllm"),
    ("bisect -- /", "command '/' is not found, or is not executable"),
    ("bisect -- no-such-command", "command 'no-such-command' is not found, or is not executable"),
    ("bisect --disable double-bs -- true", "did you mean 'double-bos'?"),
    ("run", "no command; write it after --"),
    ("run --", "no command; write it after --"),
    ("run -- no-such-program", "no command 'no-such-program' on PATH"),
    ("run --set refit.scop=1 -- no-such-program", "did you mean 'refit.scope'"),
    ("run --report --require-receipt -- no-such-program", "leave one of the two out"),
    ("run --receipt /nowhere/r.json --require-receipt -- true", "name a regular file that can be written"),
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
    ("new --folder made acme-quirks --id double-bos", "by model-quirks 0.1.0; try 'acme-quirks/double-bos'"),
    ("new --builtin acme/one", f"{OTHERS}'model-quirks'"),
    ("new --builtin double-bos", "'double-bos' is taken by model-quirks 0.1.0; try another name"),
]
#: Errors of commands that need an engine's packages.
OF_ENGINES = [
    ("plan --model some/model", "config.json of 'some/model' cannot be read from the hub"),
    ("plan --model MODEL --set engine.load_fromat=auto", "no such engine argument; did you mean 'load_format'?"),
    ("plan --model MODEL --set engine.block_size=big", "engine.block_size takes a whole number, not 'big'"),
    ("plan --trainer worker -- vllm serve MODEL", "leave one of them out"),
    ("audit", "no model: give --model"),
    ("audit MODEL", "or start from random weights with --set engine.load_format=dummy"),
    ("audit here --assume vllm==0.26.0", "this command runs the installed one"),
    ("parity explain --model MODEL", "how the trainer computes is unknown: set train.dtype"),
    *(("parity compare" + " here" * number, "takes two dumps") for number in (0, 1, 3)),
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


#: What they read.
FILES = {
    "prompts.jsonl": '{"prompt_token_ids": [1, 2]}\n',
    "newer.lock": '{"format": 2, "quirks": []}',
    "empty.yaml": "",
    "open.yaml": "engine: [",
    "twice.yaml": "engine:\n  seed: 1\nengine: {}\n",
    "code.yaml": "model: !!python/object/apply:os.getcwd []\n",
    "list/config.json": "[]",
    "cut/config.json": "{",
}


@pytest.mark.parametrize(("line", "words", "first"), ROWS)
def test_what_cannot_be_done_is_one_error_before_anything_runs(quirks, model, tmp_path, monkeypatch, line, words, first):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("quirks_core.facts.model.unreachable", lambda: "nobody is asked")
    monkeypatch.setenv("COLUMNS", "2000")  # no message wraps, whatever it quotes
    places = {"MODEL": str(model(vocab_size=8)), "PROMPTS": "prompts.jsonl", "PYTHON": sys.executable}
    verb, *rest = (places.get(word, word) for word in shlex.split(line))

    shown, as_json = quirks(verb, *rest), quirks(verb, "--json", *rest)

    assert (shown.code, shown.out, shown.err.startswith(first)) == (2, "", True)
    assert (as_json.code, as_json.err, as_json.json.keys()) == (2, "", {"error", "notes", "refusals"})
    assert words in shown.err.splitlines()[-1]
    assert len(shown.err.splitlines()) == 1 or first != "error: "
    assert words in as_json.json["error"]
    assert "SECRET" not in shown.out + shown.err + as_json.out
    assert not (tmp_path / "made").exists()


def test_json_that_another_program_is_asked_for_is_not_ours(quirks):
    outcome = quirks("bisect", "--no-such-option", "--", "program", "--json")

    assert (outcome.code, outcome.out) == (2, "")
    assert "unrecognized arguments" in outcome.err
