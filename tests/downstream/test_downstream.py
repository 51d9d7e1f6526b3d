"""A third party's package, installed by pip in an environment of its own, and used from outside only."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Environment

HERE = Path(__file__).parent
#: Seconds; what hangs is given up after them, and nothing else comes near them.
LIMIT = {"MODEL_QUIRKS_TIME_LIMIT_S": "2"}
BUILT_IN = sorted(point.name for point in entry_points(group="model_quirks") if point.value.startswith("quirks_plugins."))


def states(plan: dict[str, Any]) -> dict[str, str]:
    """The state of every quirk of a plan."""
    return {verdict["id"]: verdict["state"] for verdict in plan["verdicts"]}


def lines(file: Path) -> list[str]:
    """The lines of a file that may not be there."""
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where the packages write down that they were imported; a file that they make."""
    return tmp_path / "imports.log"


# Discovery


def test_installed_plugins_are_listed_and_none_is_imported(installed: Callable[..., Environment], log: Path) -> None:
    environment = installed("acme-engine", "acme-quirks", "acme-broken", "acme-slow")

    listed = environment.quirks("list", "--json", ACME_IMPORT_LOG=str(log))

    assert listed.code == 0
    found = {(row["distribution"], row["version"], row["id"]) for row in listed.json if row["distribution"] != "model-quirks"}
    assert found >= {
        ("acme-quirks", "2.1.0", "acme-eager"),
        ("acme-quirks", "2.1.0", "acme-site"),
        ("acme-broken", "0.0.7", "broken-import"),
        ("acme-slow", "0.1.0", "slow-import"),
    }
    assert lines(log) == []


def test_the_log_of_imports_would_show_an_import(acme: Environment, log: Path) -> None:
    acme.quirks("plan", "--model", acme.model("llama"), ACME_IMPORT_LOG=str(log))

    assert lines(log) == ["acme_quirks"]


def test_a_person_sees_the_same_list(acme: Environment) -> None:
    listed = acme.quirks("list")

    assert listed.code == 0
    for text in ("acme-eager", "acme-quirks", "2.1.0", "acme_quirks.eager"):
        assert text in listed.out


# What works


def test_a_third_partys_quirk_takes_part_in_a_plan(acme: Environment) -> None:
    plan = acme.quirks("plan", "--model", acme.model("acme_moe"), "--json")

    assert plan.code == 0
    assert states(plan.json)["acme-eager"] == "active"
    assert plan.json["changes"].items() >= {"engine.enforce_eager": True, "engine.dtype": "float32"}.items()


def test_a_contrary_value_is_refused_in_the_third_partys_words(acme: Environment) -> None:
    typed = acme.quirks("plan", "--model", acme.model("acme_moe"), "--set", "engine.enforce_eager=false", "--json")

    (refusal,) = typed.json["refusals"]
    assert typed.code == 1
    assert (refusal["slot"], refusal["remedy"]) == ("engine.enforce_eager", "leave engine.enforce_eager open")
    assert refusal["quirks"][0]["distribution"] == "acme-quirks"


def test_show_names_distribution_file_and_documentation(acme: Environment) -> None:
    shown = acme.quirks("show", "acme-eager", "--json").json

    assert shown["distribution"] == "acme-quirks 2.1.0"
    assert shown["location"].startswith("acme_quirks/eager.py:")
    assert "Acme's MoE" in shown["documentation"]


def test_facts_of_the_plugin_decide_about_its_quirks(acme: Environment) -> None:
    model = acme.model("llama")

    one = acme.quirks("plan", "--model", model, "--json").json
    three = acme.quirks("plan", "--model", model, "--json", ACME_RACKS="3", ACME_QUEUE="test").json

    assert one["context"]["extra"] == {"acme-quirks.racks": 1, "acme-quirks.queue": "night", "acme-quirks.model": "llama"}
    assert [states(one)[name] for name in ("acme-quirks/timeout", "acme-quirks/queue")] == ["not_matched", "not_matched"]
    assert [states(three)[name] for name in ("acme-quirks/timeout", "acme-quirks/queue")] == ["active", "active"]
    assert three["changes"]["request.timeout_s"] == 2700.0


def test_the_digest_is_the_same_in_every_process(acme: Environment) -> None:
    model = acme.model("acme_gemma")

    digests = {acme.quirks("plan", "--model", model, "--json", PYTHONHASHSEED=seed).json["digest"] for seed in ("1", "2")}

    assert len(digests) == 1


def test_the_packages_own_tests_pass(acme: Environment, tmp_path: Path) -> None:
    shutil.copytree(HERE / "acme-quirks" / "tests", tmp_path / "tests")

    run = acme.run("-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path / "tests")

    assert run.code == 0, run.out
    assert "passed" in run.out


@pytest.mark.skipif(find_spec("quirks_core.cli.validate") is None, reason="quirks validate is not there yet")
def test_validate_finds_nothing_wrong_with_a_good_distribution(acme: Environment) -> None:
    validated = acme.quirks("validate", "acme-quirks", "--json")

    assert validated.code == 0, validated.out


@pytest.mark.skipif(find_spec("quirks_core.cli.validate") is None, reason="quirks validate is not there yet")
def test_validate_names_what_is_broken_in_a_distribution(installed: Callable[..., Environment]) -> None:
    validated = installed("acme-broken").quirks("validate", "acme-broken", "--json")

    assert validated.code == 3
    assert "acme_telemetry" in validated.out


# What is broken

BROKEN = {
    "broken-import": ("acme_broken.imports:QUIRK", "No module named 'acme_telemetry'"),
    "broken-declaration": ("acme_broken.declaration:QUIRK", "no adjustments; no references"),
    "broken-slot": ("acme_broken.slot:QUIRK", "unknown slot 'engine.load_fromat'; did you mean 'engine.load_format'?"),
    "broken-hook": ("acme_broken.hook", "FileNotFoundError: quirks.yaml"),
    "broken-type": ("acme_broken.type", "'acme-eager', which is no Quirk"),
    "gemma4-layer-scalar": ("acme_broken.taken:QUIRK", "quirk id 'gemma4-layer-scalar' is taken by model-quirks"),
}


@pytest.fixture(scope="module")
def broken(installed: Callable[..., Environment]) -> Environment:
    """The environment of somebody who has a package with broken plugins."""
    return installed("acme-engine", "acme-quirks", "acme-broken")


def test_every_broken_plugin_is_one_row_with_distribution_version_entry_point_and_error(broken: Environment) -> None:
    doctor = broken.quirks("doctor", "--json")

    assert doctor.code == 3
    rows = [row["message"] for row in doctor.json if row["level"] == "error" and "acme-broken" in row["message"]]
    assert len(rows) == len(BROKEN)
    for name, (entry_point, words) in BROKEN.items():
        (row,) = [row for row in rows if row.startswith(f"plugin {name!r} of acme-broken 0.0.7 ({entry_point}) is broken: ")]
        assert words in row


def test_the_others_work_beside_broken_plugins(broken: Environment, acme: Environment) -> None:
    beside = broken.quirks("plan", "--model", broken.model("acme_moe"), "--json")
    alone = acme.quirks("plan", "--model", acme.model("acme_moe"), "--json")

    assert beside.code == 0
    assert beside.json["changes"] == alone.json["changes"]
    assert states(beside.json).keys() - states(alone.json).keys() == {"grumbling"}
    for name in BROKEN:
        assert any(warning.startswith(f"plugin {name!r} of acme-broken") for warning in beside.json["warnings"])


def test_other_hooks_that_fail_are_warnings_with_the_plugins_name(broken: Environment) -> None:
    plan = broken.quirks("plan", "--model", broken.model("acme_moe"), "--json").json

    assert states(plan)["grumbling"] == "active"
    (warning,) = [warning for warning in plan["warnings"] if "no answer from the scheduler" in warning]
    assert "quirks_facts of acme-broken:grumbling" in warning


@pytest.mark.parametrize(("arguments", "variables"), [(["--strict"], {}), ([], {"MODEL_QUIRKS_STRICT": "1"})])
def test_strict_makes_every_broken_plugin_fatal_at_once(
    broken: Environment, arguments: list[str], variables: dict[str, str]
) -> None:
    plan = broken.quirks("plan", "--model", broken.model("llama"), "--json", *arguments, **variables)

    assert plan.code == 3
    for name in BROKEN:
        assert f"plugin {name!r} of acme-broken 0.0.7" in plan.json["error"]


def test_strict_holds_for_the_plugins_that_are_loaded_only(broken: Environment) -> None:
    plan = broken.quirks("plan", "--model", broken.model("llama"), "--strict", "--disable", "distribution:acme-broken")

    assert plan.code == 0


# Conflicts and replacements


@pytest.fixture(scope="module")
def rivals(installed: Callable[..., Environment]) -> Environment:
    """The environment of somebody with two packages that require different values."""
    return installed("acme-engine", "acme-quirks", "acme-rival")


def test_a_conflict_names_both_quirks_distributions_versions_places_and_the_switch(rivals: Environment) -> None:
    plan = rivals.quirks("plan", "--model", rivals.model("acme_moe"), "--json")

    (refusal,) = plan.json["refusals"]
    assert (plan.code, refusal["kind"], refusal["slot"]) == (1, "conflict", "engine.dtype")
    for words in ("acme-eager (acme-quirks 2.1.0, acme_quirks/eager.py:", "rival-dtype (acme-rival 0.3.0, acme_rival/"):
        assert words in refusal["reason"]
    assert "'float32'" in refusal["reason"]
    assert "'bfloat16'" in refusal["reason"]
    assert "--disable acme-eager" in refusal["switch"]
    assert "--disable rival-dtype" in refusal["switch"]


@pytest.mark.parametrize(
    ("off", "dtype"), [("acme-eager", "bfloat16"), ("rival-dtype", "float32"), ("distribution:Acme_Rival", "float32")]
)
def test_the_switch_that_the_conflict_names_settles_it(rivals: Environment, off: str, dtype: str) -> None:
    plan = rivals.quirks("plan", "--model", rivals.model("acme_moe"), "--disable", off, "--json")

    assert (plan.code, plan.json["changes"]["engine.dtype"]) == (0, dtype)


def test_a_quirk_replaces_a_built_in_one_and_the_plan_shows_both(acme: Environment) -> None:
    plan = acme.quirks("plan", "--model", acme.model("gemma4"), "--json").json

    verdicts = {verdict["id"]: verdict for verdict in plan["verdicts"]}
    assert verdicts["acme-layer-scalar"]["state"] == "active"
    assert verdicts["gemma4-layer-scalar"]["state"] == "superseded"
    assert "acme-layer-scalar (acme-quirks 2.1.0, acme_quirks/layer_scalar.py:" in verdicts["gemma4-layer-scalar"]["because"]


def test_explain_says_what_replaces_a_quirk(acme: Environment) -> None:
    explained = acme.quirks("explain", "gemma4-layer-scalar", "--model", acme.model("gemma4"))

    assert "gemma4-layer-scalar is replaced" in explained.out
    assert "superseded by acme-layer-scalar (acme-quirks 2.1.0" in explained.out


def test_the_built_in_quirk_is_back_when_its_replacement_is_off(acme: Environment) -> None:
    plan = acme.quirks("plan", "--model", acme.model("gemma4"), "--json", MODEL_QUIRKS_DISABLE="acme-layer-scalar").json

    assert states(plan)["acme-layer-scalar"] == "disabled"
    assert states(plan)["gemma4-layer-scalar"] == "active"


def test_two_distributions_may_have_entry_points_of_one_name(installed: Callable[..., Environment]) -> None:
    environment = installed("acme-engine", "acme-quirks", "zeta-quirks")

    plan = environment.quirks("plan", "--model", environment.model("acme_moe"), "--json", ACME_RACKS="2").json

    assert states(plan)["acme-quirks/timeout"] == "active"
    assert states(plan)["zeta/advice"] == "active"


def test_an_id_that_two_distributions_claim_is_nobodys_and_the_rows_name_both(installed: Callable[..., Environment]) -> None:
    environment = installed("acme-engine", "acme-quirks", "zeta-quirks")

    doctor = environment.quirks("doctor", "--json")

    assert doctor.code == 3
    rows = sorted(row["message"] for row in doctor.json if row["subject"] == "acme-eager" and row["level"] == "error")
    assert len(rows) == 2
    assert "of acme-quirks 2.1.0" in rows[0]
    assert "taken by zeta-quirks 1.0.0 (zeta_quirks/__init__.py:" in rows[0]
    assert "of zeta-quirks 1.0.0" in rows[1]
    assert "taken by acme-quirks 2.1.0 (acme_quirks/eager.py:" in rows[1]


def test_switching_one_of_the_two_distributions_off_gives_the_id_to_the_other(installed: Callable[..., Environment]) -> None:
    environment = installed("acme-engine", "acme-quirks", "zeta-quirks")
    model = environment.model("acme_moe")

    plan = environment.quirks("plan", "--model", model, "--disable", "distribution:zeta-quirks", "--json").json

    (verdict,) = [verdict for verdict in plan["verdicts"] if verdict["id"] == "acme-eager"]
    assert (verdict["distribution"], verdict["state"]) == ("acme-quirks", "active")


# What hangs


@pytest.fixture(scope="module")
def slow(installed: Callable[..., Environment]) -> Environment:
    """The environment of somebody whose plugins hang."""
    return installed("acme-engine", "acme-quirks", "acme-slow")


def test_what_hangs_is_given_up_and_named_with_the_limit(slow: Environment) -> None:
    plan = slow.quirks("plan", "--model", slow.model("acme_moe"), "--json", **LIMIT)

    assert states(plan.json)["acme-eager"] == "active"
    limit = "did not return within 2 s (MODEL_QUIRKS_TIME_LIMIT_S raises the limit)"
    for who in (
        "plugin 'slow-import' of acme-slow 0.1.0 (acme_slow.at_import:QUIRK) is broken: ",
        "plugin 'slow-declare' of acme-slow 0.1.0 (acme_slow.at_declare) is broken: ",
        "quirks_facts of acme-slow:slow-facts failed: ",
    ):
        assert any(who in warning and limit in warning for warning in plan.json["warnings"]), plan.json["warnings"]


def test_a_distribution_that_is_off_is_not_even_imported(slow: Environment, log: Path) -> None:
    # Without the switch this would wait for the limit, an hour, three times.
    off = {"MODEL_QUIRKS_DISABLE": "distribution:acme-slow", "MODEL_QUIRKS_TIME_LIMIT_S": "3600"}

    plan = slow.quirks("plan", "--model", slow.model("acme_moe"), "--json", ACME_IMPORT_LOG=str(log), **off)

    assert (plan.code, lines(log)) == (0, ["acme_quirks"])
    skipped = [warning for warning in plan.json["warnings"] if "was not loaded" in warning]
    assert len(skipped) == 3
    assert all("'distribution:acme-slow' in the environment (MODEL_QUIRKS_DISABLE)" in warning for warning in skipped)


def test_without_third_parties_exactly_the_built_in_quirks_are_left(slow: Environment, log: Path) -> None:
    limit = {"MODEL_QUIRKS_TIME_LIMIT_S": "3600"}

    plan = slow.quirks(
        "plan", "--model", slow.model("acme_moe"), "--disable", "third-party", "--json", ACME_IMPORT_LOG=str(log), **limit
    )

    assert (plan.code, lines(log)) == (0, [])
    assert sorted(states(plan.json)) == BUILT_IN


# Lock


@pytest.fixture(scope="module")
def changing(make_environment: Callable[[], Environment], wheels: Path) -> Environment:
    """An environment of its own, in which one test installs and uninstalls."""
    environment = make_environment()
    environment.pip("install", "--no-index", "--no-deps", next(wheels.glob("acme_rival-*")))
    return environment


def test_a_lock_holds_until_a_package_comes_or_goes(changing: Environment, wheels: Path, tmp_path: Path) -> None:
    lock, model = str(tmp_path / "quirks.lock"), changing.model("acme_moe")
    assert changing.quirks("lock", "--output", lock).code == 0

    same = changing.quirks("plan", "--model", model, "--locked", lock, "--json")
    changing.pip("uninstall", "--yes", "acme-rival")
    gone = changing.quirks("plan", "--model", model, "--locked", lock, "--json")
    changing.pip("install", "--no-index", "--no-deps", next(wheels.glob("acme_rival-*")), next(wheels.glob("zeta_quirks-*")))
    more = changing.quirks("plan", "--model", model, "--json", MODEL_QUIRKS_LOCKED=lock)

    assert same.code == 0
    assert (gone.code, more.code) == (1, 1)
    assert "rival-dtype of acme-rival 0.3.0 is not loaded" in gone.json["error"]
    assert "acme-eager of zeta-quirks 1.0.0 is not in the lock file" in more.json["error"]
    assert "rival-dtype" not in more.json["error"]


# Patches

PATCHING = """
    import json, sys
    from quirks_core import Registry, RunContext
    from quirks_core.apply import apply
    from quirks_core.bootstrap import bootstrap
    from quirks_core.receipt import collect
    from worker import GenerationConfig

    def tried():
        from acme_engine.sampler import Sampler, scaled
        from acme_engine.server import serve
        found = []
        for attempt in (lambda: scaled([1.0, 2.0], 0.0), lambda: serve([1.0, 2.0], 0.0), lambda: Sampler().pick([3.0, 3.0]),
                        lambda: Sampler().seed(7), lambda: scaled([4.0], 2.0)):
            try:
                found.append(attempt())
            except (AttributeError, ZeroDivisionError) as error:
                found.append(type(error).__name__)
        return found

    if {imported}:
        import acme_engine.server
    registry = Registry.load()
    plan = registry.resolve(RunContext.gather(GenerationConfig.parse({{"model": {model!r}}})))
    applied = apply(plan)
    bootstrap()
    pending = "acme_engine.sampler" not in sys.modules
    patched = tried()
    receipt = collect(applied.folder, plan.digest, {{__import__("os").getpid(): "driver"}})
    troubles = registry.observe(plan, receipt)
    applied.undo()
    print(json.dumps({{"pending": pending, "patched": patched, "undone": tried(), "digest": plan.digest, "troubles": troubles,
                      "effects": [effect.model_dump() for ack in receipt.processes for effect in ack.effects]}}))
"""


@pytest.mark.parametrize("imported", [True, False], ids=["before", "after"])
def test_a_package_is_patched_whether_it_is_imported_before_or_after_and_undo_restores_it(
    acme: Environment, tmp_path: Path, imported: bool
) -> None:
    script = PATCHING.format(imported=imported, model=str(acme.model("acme_gemma")))

    seen = acme.script(script, ACME_LOG=str(tmp_path / "log"))

    assert seen["pending"] is not imported
    assert seen["patched"] == [[1.0, 2.0], [1.0, 2.0], 0, 7, [2.0]]
    assert seen["undone"] == ["ZeroDivisionError", "ZeroDivisionError", 1, "AttributeError", [2.0]]
    assert {effect["slot"]: effect["pending"] for effect in seen["effects"] if "acme" in effect["slot"]} == {
        f"patch.acme_engine.sampler:{name}": False for name in ("scaled", "Sampler.pick", "Sampler.seed")
    }


def test_the_observer_sees_the_plan_and_the_receipt(acme: Environment, tmp_path: Path) -> None:
    script = PATCHING.format(imported=True, model=str(acme.model("acme_gemma")))

    seen = acme.script(script, ACME_LOG=str(tmp_path / "log"))

    assert [json.loads(line) for line in lines(tmp_path / "log")] == [{"plan": seen["digest"], "processes": 1}]
    assert seen["troubles"] == []


def test_an_observer_that_fails_is_named_and_the_others_see(broken: Environment, tmp_path: Path) -> None:
    script = PATCHING.format(imported=True, model=str(broken.model("acme_gemma")))

    seen = broken.script(script, ACME_LOG=str(tmp_path / "log"))

    (trouble,) = seen["troubles"]
    assert "quirks_observe of acme-broken:grumbling failed: ConnectionError" in trouble
    assert len(lines(tmp_path / "log")) == 1


def test_a_target_that_changed_is_refused_with_the_lines_that_are_new(acme: Environment, tmp_path: Path) -> None:
    shutil.copytree(HERE / "acme-engine" / "src", tmp_path, dirs_exist_ok=True)
    sampler = tmp_path / "acme_engine" / "sampler.py"
    sampler.write_text(sampler.read_text(encoding="utf-8").replace("logit / temp", "2 * logit / temp"), encoding="utf-8")

    plan = acme.with_site(tmp_path).quirks("plan", "--model", acme.model("acme_gemma"), "--json")

    (refusal,) = plan.json["refusals"]
    assert (plan.code, refusal["kind"]) == (1, "drift")
    assert "+     return [2 * logit / temperature for logit in logits]" in refusal["reason"]
    assert "acme-engine 1.4.2" in refusal["reason"]
    assert "upgrade acme-quirks" in refusal["remedy"]
