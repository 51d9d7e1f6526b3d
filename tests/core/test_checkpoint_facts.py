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


@pytest.mark.parametrize("part", ["pre_tokenizer", "decoder"])
def test_a_tokenizer_is_byte_level_by_its_file(checkpoint, part):
    sequence = {"type": "Sequence", "pretokenizers": [{"type": "Split"}, {"type": "ByteLevel"}]}
    found = checkpoint({"tokenizer_class": "LlamaTokenizerFast"}, fast(**{part: sequence}))
    assert (found.fact("tokenizer.class"), found.fact("tokenizer.is_byte_level")) == ("LlamaTokenizerFast", True)
    plain = checkpoint({}, fast(pre_tokenizer={"type": "Metaspace"}, post_processor={"type": "ByteLevel"}))
    assert (plain.fact("tokenizer.class"), plain.fact("tokenizer.is_byte_level")) == (None, False)


def test_the_steps_of_a_tokenizer_are_those_of_its_file(checkpoint):
    steps = [
        {"type": "Split", "pattern": {"Regex": "[0-9]"}},
        {"type": "Split", "pattern": {"String": " "}},
        {"type": "ByteLevel"},
    ]
    found = checkpoint({}, fast(pre_tokenizer={"type": "Sequence", "pretokenizers": steps}))
    assert found.fact("tokenizer.pre_tokenizers") == ["Split", "Split", "ByteLevel"]
    assert found.fact("tokenizer.split_patterns") == ["[0-9]"]
    assert checkpoint({}, fast(pre_tokenizer={"type": "Metaspace"})).fact("tokenizer.pre_tokenizers") == ["Metaspace"]
    assert checkpoint({}, fast(pre_tokenizer=None)).fact("tokenizer.pre_tokenizers") == []


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
    ("settings", "files", "writes"),
    [
        ({"chat_template": "{{ bos_token }}{{ x }}"}, {}, True),
        ({"chat_template": "<s>{{ x }}"}, {}, True),
        ({"chat_template": [{"name": "tool", "template": "{{ x }}"}, {"name": "b", "template": "{{ bos_token }}"}]}, {}, True),
        ({"chat_template": "{{ x }}"}, {"chat_template.jinja": "{{- bos_token }}"}, True),
        ({"chat_template": "{{ x }}"}, {}, False),
        ({}, {}, False),
    ],
)
def test_the_chat_template_writes_bos_by_name_or_by_text(checkpoint, settings, files, writes):
    assert checkpoint({"bos_token": "<s>", **settings}, files=files).fact("tokenizer.template_adds_bos") is writes


UNIGRAM = {"added_tokens": [], "model": {"type": "Unigram", "vocab": [["a", 0.0], ["b", -1.0]], "unk_id": 0}}


@pytest.mark.parametrize(
    ("settings", "tokenizer", "size"),
    [
        ({}, fast(vocab=8), 8),
        ({}, fast(vocab=8, merges=False), 8),
        ({}, fast(vocab=8, added_tokens=[{"id": 40, "content": "<far>"}]), 41),
        ({}, fast(vocab=2), 3),
        ({}, UNIGRAM, 2),
        ({"added_tokens_decoder": {"9": {"content": "<x>"}}}, UNIGRAM, 10),
    ],
)
def test_the_largest_id_counts_whatever_tokens_look_like(checkpoint, settings, tokenizer, size):
    found = checkpoint(settings, tokenizer, vocab_size=50)

    assert (found.fact("tokenizer.vocab_size"), found.fact("tokenizer.unknown_ids")) == (size, 50 - size)


def test_unknown_ids_are_counted_by_rows_of_the_language_model(checkpoint):
    rows = [({"vocab_size": 9, "text_config": {"vocab_size": 5}}, 2), ({"vocab_size": 1}, 0), ({"vocab_size": None}, UNKNOWN)]

    assert [checkpoint({}, fast(), **config).fact("tokenizer.unknown_ids") for config, _ in rows] == [ids for _, ids in rows]


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


def test_facts_of_a_missing_tokenizer_are_absent_not_unknown(checkpoint):
    names = [name for name in CHECKPOINT_FACTS if name.startswith("tokenizer.")]

    assert {checkpoint().fact(name) for name in names} == {None}
    assert {checkpoint(files={"tokenizer.model": "binary"}).fact(name) for name in names} == {UNKNOWN}
    assert checkpoint("[]").fact("tokenizer.adds_bos") is UNKNOWN
    assert Checkpoint("/no/such/folder", None, None, {}).fact("tokenizer.adds_bos") is UNKNOWN
    assert Checkpoint("folder", None, None, {}).fact("model.stop_token_ids") is UNKNOWN


def test_a_file_that_changes_is_read_again(checkpoint):
    assert [checkpoint({}, fast(vocab=count)).fact("tokenizer.vocab_size") for count in (3, 30)] == [3, 30]


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
