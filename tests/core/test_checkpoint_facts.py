"""What a tokenizer and a generation_config.json say is read as JSON when it is asked for, and unknown if it cannot be told."""

from __future__ import annotations

import json

import pytest

from quirks_core.configuration.config import GenerationConfig
from quirks_core.facts.checkpoint import CHECKPOINT_FACTS, Checkpoint
from quirks_core.facts.context import RunContext
from quirks_core.facts.unknown import UNKNOWN

BOS, EOS = {"id": 1, "content": "<s>"}, {"id": 2, "content": "</s>"}


def first(token):
    """A post-processor that puts a token in front."""
    return {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A"}}]}


@pytest.fixture
def checkpoint(tmp_path):
    """Writes a model folder: its tokenizer's settings and tokenizer.json, and further files."""

    def write(settings=None, fast=None, files=(), **config):
        folder = tmp_path / "model"
        folder.mkdir(exist_ok=True)
        content = {"tokenizer_config.json": settings, "tokenizer.json": fast, "config.json": config, **dict(files)}
        for name, values in content.items():
            if values is not None:
                text = values if isinstance(values, str) else json.dumps(values)
                (folder / name).write_text(text, encoding="utf-8")
        return Checkpoint(str(folder), None, None, config)

    return write


def fast(vocab=3, merges=True, **parts):
    """A tokenizer.json as the library tokenizers orders it."""
    model = {"type": "BPE", "vocab": {f'"{number}"': number for number in range(vocab)}}
    model |= {"merges": [["a", "b"]]} if merges else {}
    return {"version": "1.0", "added_tokens": [BOS, EOS], "post_processor": None, **parts, "model": model}


STEPS = [{"type": "Split", "pattern": {"Regex": "[0-9]"}}, {"type": "Split", "pattern": {"String": " "}}, {"type": "ByteLevel"}]
SEQUENCE, OTHER = {"type": "Sequence", "pretokenizers": STEPS}, {"type": "Metaspace"}
UNIGRAM = {"added_tokens": [], "model": {"type": "Unigram", "vocab": [["a", 0.0], ["b", -1.0]], "unk_id": 0}}
NAMED = [{"name": "tool", "template": "{{ x }}"}, {"name": "b", "template": "{{ bos_token }}"}]


@pytest.mark.parametrize(
    ("settings", "file", "facts"),
    [
        ({"tokenizer_class": "LlamaTokenizerFast"}, fast(pre_tokenizer=SEQUENCE), {"class": "LlamaTokenizerFast"}),
        ({}, fast(pre_tokenizer=SEQUENCE), {"is_byte_level": True, "pre_tokenizers": ["Split", "Split", "ByteLevel"]}),
        ({}, fast(pre_tokenizer=SEQUENCE), {"split_patterns": ["[0-9]"]}),
        ({}, fast(decoder=SEQUENCE), {"is_byte_level": True, "pre_tokenizers": [], "class": None}),
        ({}, fast(pre_tokenizer=OTHER, post_processor={"type": "ByteLevel"}), {"is_byte_level": False}),
        ({}, fast(pre_tokenizer=OTHER), {"pre_tokenizers": ["Metaspace"]}),
        # The largest id counts, whatever tokens look like.
        ({}, fast(vocab=8), {"vocab_size": 8, "unknown_ids": 42}),
        ({}, fast(vocab=8, merges=False), {"vocab_size": 8, "unknown_ids": 42}),
        ({}, fast(vocab=8, added_tokens=[{"id": 40, "content": "<far>"}]), {"vocab_size": 41, "unknown_ids": 9}),
        ({}, fast(vocab=2), {"vocab_size": 3, "unknown_ids": 47}),
        ({}, UNIGRAM, {"vocab_size": 2, "unknown_ids": 48}),
        ({"added_tokens_decoder": {"9": {"content": "<x>"}}}, UNIGRAM, {"vocab_size": 10, "unknown_ids": 40}),
        # The template writes BOS by its name or by its text.
        ({"chat_template": "{{ bos_token }}{{ x }}"}, None, {"template_adds_bos": True}),
        ({"chat_template": "<s>{{ x }}"}, None, {"template_adds_bos": True}),
        ({"chat_template": NAMED}, None, {"template_adds_bos": True}),
        ({"chat_template": "{{ x }}"}, None, {"template_adds_bos": False}),
        ({}, None, {"template_adds_bos": False}),
    ],
)
def test_the_facts_of_a_tokenizer_are_those_of_its_files(checkpoint, settings, file, facts):
    found = checkpoint({"bos_token": "<s>", **settings}, file, vocab_size=50)

    assert {name: found.fact(f"tokenizer.{name}") for name in facts} == facts


def test_what_of_a_checkpoint_counts_before_all_else(checkpoint):
    """A template in a file of its own; the rows of the language model; a file as it is now."""
    rows = [({"vocab_size": 9, "text_config": {"vocab_size": 5}}, 2), ({"vocab_size": 1}, 0), ({"vocab_size": None}, UNKNOWN)]

    assert [checkpoint({}, fast(), **config).fact("tokenizer.unknown_ids") for config, _ in rows] == [ids for _, ids in rows]
    assert [checkpoint({}, fast(vocab=count)).fact("tokenizer.vocab_size") for count in (3, 30)] == [3, 30]
    settings, files = {"bos_token": "<s>", "chat_template": "{{ x }}"}, {"chat_template.jinja": "{{- bos_token }}"}
    assert checkpoint(settings, files=files).fact("tokenizer.template_adds_bos") is True


@pytest.mark.parametrize(
    ("settings", "file", "adds"),
    [
        ({}, fast(post_processor=first("<s>")), True),
        (
            {"bos_token": {"content": "<s>"}},
            fast(post_processor={"type": "Sequence", "processors": [{"type": "ByteLevel"}, first("<s>")]}),
            True,
        ),
        ({}, fast(post_processor=first("[CLS]")), False),
        ({"add_bos_token": True}, fast(), False),
        ({"add_bos_token": False}, fast(post_processor=first("<s>")), True),
        ({"bos_token": None, "add_bos_token": True}, fast(post_processor=first("<s>")), False),
        ({"add_bos_token": True}, None, True),
        ({"add_bos_token": False}, None, False),
        ({}, None, UNKNOWN),
    ],
)
def test_the_tokenizer_adds_bos_if_its_post_processor_does(checkpoint, settings, file, adds):
    """Whatever its settings say; they decide where there is no tokenizer.json."""
    assert checkpoint({"bos_token": "<s>", **settings}, file).fact("tokenizer.adds_bos") is adds


@pytest.mark.parametrize(
    ("generation", "stops"),
    [
        (None, [7]),
        ({"eos_token_id": 3}, [3]),
        ({"eos_token_id": [5, 3]}, [3, 5]),
        ("{", UNKNOWN),
    ],
)
def test_tokens_that_end_a_sample_are_those_that_vllm_reads(checkpoint, generation, stops):
    assert checkpoint(files={"generation_config.json": generation}, eos_token_id=7).fact("model.stop_token_ids") == stops


_HEADER = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
_SHARD = len(_HEADER).to_bytes(8, "little") + _HEADER + bytes.fromhex("0000803f ffff7f7f")  # 1 and the largest float32


@pytest.mark.parametrize(
    ("size", "beyond"),
    [(len(_SHARD), 1), (0, UNKNOWN), (4, UNKNOWN), (8, UNKNOWN), (20, UNKNOWN), (len(_SHARD) - 1, UNKNOWN)],
)
def test_weights_are_counted_unless_their_file_is_cut_off(checkpoint, tmp_path, size, beyond):
    model = checkpoint()
    (tmp_path / "model" / "model.safetensors").write_bytes(_SHARD[:size])

    assert model.fact("model.weights_beyond_float16") == beyond


def test_facts_of_a_missing_tokenizer_are_absent_not_unknown(checkpoint):
    names = [name for name in CHECKPOINT_FACTS if name.startswith("tokenizer.")]

    assert {checkpoint().fact(name) for name in names} == {None}
    assert {checkpoint(files={"tokenizer.model": "binary"}).fact(name) for name in names} == {UNKNOWN}
    assert checkpoint("[]").fact("tokenizer.adds_bos") is UNKNOWN
    assert Checkpoint("/no/such/folder", None, None, {}).fact("tokenizer.adds_bos") is UNKNOWN
    assert Checkpoint("folder", None, None, {}).fact("model.stop_token_ids") is UNKNOWN


def test_a_run_reads_the_facts_of_its_own_tokenizer_late(checkpoint, tmp_path):
    model = checkpoint({"bos_token": "<s>"}, fast(post_processor=first("<s>")), model_type="qwen3")
    other = tmp_path / "other"
    other.mkdir()
    (other / "tokenizer_config.json").write_text("{}", encoding="utf-8")

    own = RunContext.gather(GenerationConfig.parse({"model": model.model}), environ={})
    theirs = RunContext.gather(GenerationConfig.parse({"model": {"path": model.model, "tokenizer": str(other)}}), environ={})

    assert own.model_dump_json() == theirs.model_dump_json()
    assert "adds_bos" not in own.model_dump_json()
    copied = theirs.model_copy(update={"extra": {}})
    assert [context.fact("tokenizer.adds_bos") for context in (own, theirs, copied)] == [True, False, False]
