"""The declaration of a quirk: everything wrong with it is said at once, where it stands is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from quirks_core import (
    ABSENT,
    Advise,
    Affected,
    DeclarationError,
    Default,
    Fact,
    ModelFlag,
    PairedRun,
    Patch,
    Quirk,
    Require,
    Severity,
    StaticProbe,
    environment,
    model_type,
    package,
    platform,
    purpose,
    report,
    setting,
)
from quirks_core.quirk import Location

MakeQuirk = Callable[..., Quirk]


def test_all_mistakes_are_reported_at_once() -> None:
    with pytest.raises(DeclarationError) as error:
        Quirk(
            id="Not An Id",
            title="",
            flag="load_fromat",
            match="qwen3",
            adjustments=(),
            severity="bad",
            references=(),
        )

    message = str(error.value)
    expected = (
        "lower-case words",
        "title is empty",
        "did you mean 'load_format'",
        "not str",
        "no adjustments",
        "no references",
    )
    assert [part for part in (*expected, "'bad' is not a severity") if part not in message] == []


@pytest.mark.parametrize("quirk_id", ["a", "gemma-dummy-load", "my.dist/rope-scaling", "v1_runtime", "x2-y3"])
def test_an_id_is_lower_case_words_with_at_most_one_slash(make_quirk: MakeQuirk, quirk_id: str) -> None:
    assert make_quirk(id=quirk_id).id == quirk_id


@pytest.mark.parametrize("quirk_id", ["", "A", "a b", "-a", "a-", "a--b", "a/b/c", "a,b", "a\n"])
def test_any_other_id_is_refused(make_quirk: MakeQuirk, quirk_id: str) -> None:
    with pytest.raises(DeclarationError, match="the id must be"):
        make_quirk(id=quirk_id)


def test_a_fact_without_a_comparison_is_no_match(make_quirk: MakeQuirk) -> None:
    with pytest.raises(DeclarationError, match=r"match must be made by quirks_core\.match, not Fact"):
        make_quirk(match=setting("engine.seed"))


@pytest.mark.parametrize("field", ["affected", "references", "evidence", "adjustments"])
def test_a_part_of_the_wrong_type_is_refused(make_quirk: MakeQuirk, field: str) -> None:
    with pytest.raises(DeclarationError, match=r"'0\.9\.2'"):
        make_quirk(**{field: "0.9.2"})


def test_the_error_names_the_quirk(make_quirk: MakeQuirk) -> None:
    with pytest.raises(DeclarationError, match="quirk 'my-quirk': no adjustments"):
        make_quirk(id="my-quirk", adjustments=())


@pytest.mark.parametrize("written", [Advise("x"), [Advise("x")], (Advise("x"),)])
def test_a_single_item_or_a_list_will_do_for_a_tuple(make_quirk: MakeQuirk, written: object) -> None:
    assert make_quirk(adjustments=written).adjustments == (Advise("x"),)


def test_the_flag_is_kept_under_its_canonical_name(make_quirk: MakeQuirk) -> None:
    assert make_quirk(flag="LOAD_FORMAT").flag == ModelFlag.LOAD_FORMAT


def test_a_quirk_is_frozen(make_quirk: MakeQuirk) -> None:
    quirk = make_quirk()

    with pytest.raises(FrozenInstanceError):
        quirk.title = "another"


def test_the_location_is_file_and_line_of_the_declaration() -> None:
    quirk = Quirk(  # the location is this line
        id="here",
        title="Here",
        flag=ModelFlag.LOGPROBS,
        match=purpose("rollout"),
        adjustments=Advise("look"),
        severity=Severity.NOISE,
        references=report("https://example.org"),
    )

    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    assert "the location is this line" in lines[quirk.location.line - 1]
    assert quirk.location.file.endswith("test_quirk.py")


def test_the_location_starts_at_the_package_so_that_it_reads_the_same_everywhere(
    write_modules: Callable[[dict[str, str]], None],
) -> None:
    declaration = """
        from quirks_core import Advise, Quirk, Severity, purpose, report

        QUIRK = Quirk(
            id="far",
            title="Far",
            flag="logprobs",
            match=purpose("rollout"),
            adjustments=Advise("look"),
            severity=Severity.NOISE,
            references=report("https://example.org"),
        )
    """
    write_modules({"fake_far/__init__.py": "", "fake_far/deep/__init__.py": "", "fake_far/deep/quirk.py": declaration})

    from fake_far.deep.quirk import QUIRK

    assert str(QUIRK.location) == "fake_far/deep/quirk.py:4"


def test_equality_ignores_the_location(make_quirk: MakeQuirk) -> None:
    assert make_quirk(location=Location("a.py", 1)) == make_quirk(location=Location("b.py", 2))


def test_equality_sees_everything_else(make_quirk: MakeQuirk) -> None:
    assert make_quirk(title="One") != make_quirk(title="Two")


@pytest.mark.parametrize("kind", [Default, Require])
def test_an_adjustment_of_an_unknown_slot_is_an_error_with_the_nearest_name(kind: Callable[..., object]) -> None:
    with pytest.raises(DeclarationError, match=r"did you mean 'engine\.load_format'"):
        kind("engine.load_fromat", "auto")


@pytest.mark.parametrize("kind", [Default, Require])
def test_an_adjustment_value_that_the_slot_cannot_take_is_an_error(kind: Callable[..., object]) -> None:
    with pytest.raises(DeclarationError, match="takes a value of type bool"):
        kind("engine.enforce_eager", "yes")


def test_the_slot_of_a_value_function_is_checked_too() -> None:
    with pytest.raises(DeclarationError, match="unknown slot"):
        Default("engine.nothing", lambda context: context.purpose)


@pytest.mark.parametrize("text", ["vllm.module", "vllm.module:", ":attribute", ""])
def test_a_patch_names_module_and_attribute(text: str) -> None:
    with pytest.raises(DeclarationError, match="not of the form"):
        Patch(text, replacement="mine:function", expects=(ABSENT,))


def test_a_patch_names_the_source_it_was_written_against() -> None:
    with pytest.raises(DeclarationError, match="name the fingerprints"):
        Patch("vllm.module:attribute", wrapper="mine:function", expects=())


def test_a_probe_with_a_broken_pattern_is_refused_where_it_is_declared() -> None:
    with pytest.raises(DeclarationError, match="is no pattern"):
        StaticProbe("vllm.envs", "(", found_means_affected=True)


@pytest.mark.parametrize("sources", [{}, {"wrapper": "mine:a", "replacement": "mine:b"}])
def test_a_patch_has_either_a_wrapper_or_a_replacement(sources: dict[str, str]) -> None:
    with pytest.raises(DeclarationError, match="give either a wrapper or a replacement"):
        Patch("vllm.module:attribute", expects="0" * 64, **sources)


@pytest.mark.parametrize("kind", ["wrapper", "replacement"])
def test_a_patch_names_module_and_attribute_of_its_code_too(kind: str) -> None:
    with pytest.raises(DeclarationError, match="'mine' is not of the form"):
        Patch("vllm.module:attribute", expects="0" * 64, **{kind: "mine"})


def test_what_is_absent_cannot_be_wrapped() -> None:
    with pytest.raises(DeclarationError, match="what is absent cannot be wrapped; give a replacement"):
        Patch("vllm.module:attribute", wrapper="mine:a", expects=("0" * 64, ABSENT))


def test_a_single_fingerprint_will_do_for_a_tuple() -> None:
    assert Patch("vllm.module:attribute", wrapper="mine:a", expects="0" * 64).expects == ("0" * 64,)


@pytest.mark.parametrize("quirk_id", ["all", "third-party", "logprobs", "load_format"])
def test_an_id_that_a_switch_could_mistake_is_refused(make_quirk: MakeQuirk, quirk_id: str) -> None:
    with pytest.raises(DeclarationError, match=f"quirk {quirk_id!r}"):
        make_quirk(id=quirk_id)


@pytest.mark.parametrize("field", ["supersedes", "examples"])
def test_a_new_part_of_the_wrong_type_is_refused(make_quirk: MakeQuirk, field: str) -> None:
    with pytest.raises(DeclarationError, match=f"3 in {field} is of the wrong type"):
        make_quirk(**{field: 3})


def test_one_id_will_do_for_several_that_are_superseded(make_quirk: MakeQuirk) -> None:
    assert make_quirk(supersedes="old").supersedes == ("old",)


def test_ranges_of_one_package_that_overlap_are_refused(make_quirk: MakeQuirk) -> None:
    with pytest.raises(DeclarationError, match="overlap"):
        make_quirk(affected=(Affected("vllm", fixed="0.9"), Affected("vllm", introduced="0.8")))


def test_ranges_that_touch_do_not_overlap(make_quirk: MakeQuirk) -> None:
    ranges = (Affected("vllm", fixed="0.9"), Affected("vllm", introduced="0.9"), Affected("torch", fixed="9"))

    assert make_quirk(affected=ranges).affected == ranges


@pytest.mark.parametrize("text", ["mine", "mine:", ":run", ""])
def test_a_paired_run_names_module_and_function(text: str) -> None:
    with pytest.raises(DeclarationError, match=r"not of the form 'package\.module:function'"):
        PairedRun(text, "seen")


@pytest.mark.parametrize(
    ("condition", "answer"),
    [
        (purpose("rollout") & setting("engine.seed").is_set(), False),
        (environment("VLLM_USE_V1").is_set(), False),
        (environment("HOME").is_set(), True),
        (platform("cpu"), True),
        (model_type("gemma3"), True),
        (Fact("acme.nodes").above(1), True),
        (package("vllm", fixed="0.9"), True),
    ],
)
def test_a_quirk_knows_whether_some_run_leaves_it_open(make_quirk: MakeQuirk, condition: object, answer: bool) -> None:
    assert make_quirk(match=condition).can_be_unknown is answer
    assert make_quirk(match=condition, affected=Affected("vllm", fixed="0.9")).can_be_unknown
