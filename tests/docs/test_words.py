"""A quirk's page is in words: what it does, when, on which versions, and what its examples are."""

from __future__ import annotations

import re

import pages
import pytest

from quirks_core import Default, Fact, Require, described, model_type, package, setting, typed
from quirks_core.cli.main import main
from quirks_core.cli.words import condition, sentence
from quirks_core.declaration.flags import Kind
from quirks_core.plugins.registry import Registry

SCOPE = typed("refit.scope") & setting("refit.scope").one_of("parameters")
QUIRK = Registry.load().find("gemma4-layer-scalar").quirk
every_page = pytest.mark.parametrize(("name", "page"), pages.quirk_pages().items(), ids=lambda value: str(value)[:40])


@pytest.mark.parametrize(
    ("match", "words"),
    [
        (SCOPE, "the user sets `refit.scope` to `parameters`"),
        (~SCOPE, "the user does not set `refit.scope` to `parameters`"),
        (~(SCOPE | Fact("model.is_moe").is_true()),
         "the user does not set `refit.scope` to `parameters` and the model is dense"),
        (~(typed("engine.dtype") & ~(typed("engine.seed") | model_type("llama"))),
         "the user leaves `engine.dtype` open, or the user sets `engine.seed`, or the model is of type `llama`"),
        (~described(SCOPE, "it is so", "it is not so") & typed("engine.seed"), "it is not so and the user sets `engine.seed`"),
        (model_type("llama", "gemma3", "qwen3"), "the model is of type `llama`, `gemma3` or `qwen3`"),
        (package("vllm", introduced="0.27"), "the version of vLLM is >= 0.27"),
        (setting("parallel.expert_parallel_size").above(Fact("parallel.replica_size")),
         "`parallel.expert_parallel_size` is above `parallel.replica_size`"),
        (setting("engine.generate_from_dummy").is_set(), "the engine is our worker's"),
        (~setting("engine.data_parallel_size").above(1), "`engine.data_parallel_size` is at most `1`"),
        (setting("engine.kv_cache_dtype").matches("^fp8"), "`engine.kv_cache_dtype` begins with `fp8`"),
        (~setting("engine.all2all_backend").matches("^(deepep|moonep)"),
         "`engine.all2all_backend` does not begin with `deepep` or `moonep`"),
        (Fact("recipe").matches("deepscaler"), "`recipe` contains `deepscaler`"),
        (Fact("recipe").matches("a.b"), "`recipe` fits the pattern `a.b`"),
    ],
    ids=lambda value: str(value)[:30],
)  # fmt: skip
def test_a_condition_is_said_in_words(match, words):
    assert condition(match) == words


def test_an_adjustment_is_a_sentence_that_says_what_becomes_of_the_users_own_value():
    sentences = [
        sentence(QUIRK, Default("engine.seed", 3, when=typed("engine.dtype"))),
        sentence(QUIRK, Require("engine.load_format", "auto", instead_of="dummy")),
        sentence(QUIRK, Require("engine.max_num_seqs", at_most=8)),
    ]

    assert sentences == [
        "If the user sets `engine.dtype`: sets `engine.seed` to `3`, unless the user sets it.",
        "Sets `engine.load_format` to `auto`; a run in which the user sets it to `dummy` is refused.",
        "Limits `engine.max_num_seqs` to `8`; a run in which the user sets it otherwise is refused.",
    ]


@every_page
def test_no_page_shows_the_notation_of_a_condition_or_a_setting_of_our_worker_alone(name, page):
    done = page.partition("## What it does")[2].partition("\n## ")[0]

    assert re.search(r"\((true|false|a value|no value|other than .*|[<>]=? .*)\)|not \(|\(context\)", done) is None, name
    assert "generate_from_dummy" not in page
    assert "the pattern" not in done, name


@every_page
def test_a_page_needs_few_clauses_for_the_runs_that_it_concerns(name, page):
    """More are put into words by `described`; `quirks explain` shows each condition."""
    concerns = page.partition("| concerns | ")[2].partition("\n")[0]

    assert len(re.findall(r" and |, or ", concerns)) <= 8, f"{name}: {concerns}"


@every_page
def test_a_page_has_one_range_of_versions(name, page):
    """That of its declaration; the newest release whose source was read is the same for all quirks."""
    assert re.findall(r"\b0\.\d\d(?:\.\d+)? (?:to|until|through) 0\.\d\d\b", page) == [], name


def test_a_range_in_the_match_of_a_feature_is_the_range_of_its_page():
    for name in ("coalesced-outputs", "decode-slots"):
        assert "| versions | vllm >= 0.26.0, < 0.33.1 (examined from 0.26 on) |" in (pages.quirk_pages()[f"{name}.md"])


def test_nine_in_ten_workarounds_act_in_an_engine_that_another_program_starts_without_help_of_its_trainer():
    workarounds = [item for item in Registry.load().loaded if item.quirk.kind is Kind.WORKAROUND]

    advising = sorted(item.quirk.id for item in workarounds if not pages.acts_alone(item))

    assert advising == ["inkling-experts-refit", "longrope-short-sequences", "sleep-kv-cache-size"]
    assert len(advising) <= len(workarounds) / 10


@every_page
def test_an_example_is_in_words(name, page):
    examples = page.partition("## Examples")[2].partition("\n## ")[0]

    assert [notation for notation in ("packages.", "model.config.", "` = ") if notation in examples] == [], name
    assert [row for row in examples.splitlines() if re.match(r"\| yes \|.*\|\s*\|$", row)] == [], name


@pytest.mark.parametrize("name", ["longrope-short-sequences", "rope-scaling-override-theta"])
def test_quirks_show_joins_the_lines_of_a_paragraph_in_which_one_begins_with_a_name(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "4000")
    main(["show", name])
    documentation = capsys.readouterr().out.partition("What happens:")[2]

    assert [text for text in documentation.split("\n\n") if "\n" in text.strip()] == []


def test_quirks_show_has_the_sentences_of_the_page(capsys):
    main(["show", "gemma4-layer-scalar"])
    text = " ".join(capsys.readouterr().out.split())

    assert "runs in which the model is of type `gemma4`, `gemma4_text` or `gemma4_unified`" in text
    assert "sets `refit.scope` to `state_dict`; a run in which the user sets it otherwise is refused." in text
