"""A third party's package, installed by pip in an environment of its own, and used from outside only."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Environment

HERE = Path(__file__).parent


def states(plan: dict[str, Any]) -> dict[str, str]:
    """The state of every quirk of a plan."""
    return {verdict["id"]: verdict["state"] for verdict in plan["verdicts"]}


@pytest.fixture(scope="module")
def broken(installed: Callable[..., Environment]) -> Environment:
    """The environment of somebody who has a package with broken plugins."""
    return installed("acme-engine", "acme-quirks", "acme-broken")


def test_a_third_partys_command_stands_beside_the_built_in_ones(broken: Environment) -> None:
    shown, ran, absent, taken = (
        broken.quirks(*line, ACME_RACKS="7")
        for line in (["--help"], ["acme-racks", "--unit", "halls"], ["acme-telemetry", "--any", "x"], ["plan", "--help"])
    )

    assert "say how many racks this run spans" in shown.out
    assert "pip install acme_telemetry" in " ".join(shown.out.split())
    assert "show what applies to a run and why" in shown.out
    assert (ran.code, ran.out) == (0, "7 halls\n")
    assert (absent.code, absent.out) == (2, "")
    assert (
        "'quirks acme-telemetry' cannot be loaded from acme_broken.imports:COMMAND: acme_telemetry is not installed"
        in absent.err
    )
    assert "--model" in taken.out


def test_facts_of_the_plugin_decide_about_its_quirks(acme: Environment) -> None:
    one, three = acme.plan("llama"), acme.plan("llama", ACME_RACKS="3", ACME_QUEUE="test")

    assert one["context"]["extra"] == {"acme-quirks.racks": 1, "acme-quirks.queue": "night", "acme-quirks.model": "llama"}
    assert [states(one)[name] for name in ("acme-quirks/timeout", "acme-quirks/queue")] == ["not_matched", "not_matched"]
    assert [states(three)[name] for name in ("acme-quirks/timeout", "acme-quirks/queue")] == ["active", "active"]
    assert three["changes"]["request.timeout_s"] == 2700.0


def test_a_third_partys_package_passes_every_check(acme: Environment, tmp_path: Path) -> None:
    shutil.copytree(HERE / "acme-quirks" / "tests", tmp_path / "tests")

    tested = acme.run("-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path / "tests")
    validated = acme.quirks("validate", "--json")
    kept = acme.quirks("fingerprint", "--write", "acme-quirks", "--json")

    assert (tested.code, "passed" in tested.out) == (0, True), tested.out
    assert validated.code == 0
    assert [(row["name"], len(row["quirks"])) for row in validated.json["distributions"]] == [
        ("acme-quirks", 5),
        ("acme-slots", 3),
    ]
    assert {finding["level"] for finding in validated.json["findings"]} == {"note"}  # ids without their distribution's name
    assert kept.json["changed"] is False


def test_the_data_file_is_written_only_in_a_source_tree(installed: Callable[..., Environment], tmp_path: Path) -> None:
    environment = installed("zeta-quirks")
    shutil.copytree(HERE / "zeta-quirks", tmp_path / "zeta-quirks")
    source = tmp_path / "zeta-quirks" / "src" / "zeta_quirks" / "model_quirks.json"
    copy = Path(environment.script("import json, zeta_quirks; print(json.dumps(zeta_quirks.__path__[0]))"), source.name)

    refused = environment.quirks("fingerprint", "--write", "zeta-quirks")
    environment.pip("install", "--no-index", "--no-deps", "--no-build-isolation", "-e", tmp_path / "zeta-quirks")
    written = environment.quirks("fingerprint", "--write", "zeta-quirks", "--json")

    assert (refused.code, "pip install -e ." in refused.err, copy.exists()) == (2, True, False), refused
    assert written.json == {"file": str(source), "changed": True}
    assert "acme-eager" in source.read_text(encoding="utf-8")


# Slots that nobody has declared: an argument of vLLM, a bound on another one, and a variable of NCCL


@pytest.mark.parametrize(
    ("setting", "status"),
    [
        ("engine.vllm_kwargs.block_size=32", "already_set"),
        ("engine.block_size=16", "refused"),
        ("engine.max_model_len=256", "already_set"),
        ("env.NCCL_NVLS_ENABLE=1", "refused"),
    ],
)
def test_a_typed_value_must_meet_the_requirement(acme: Environment, setting: str, status: str) -> None:
    slot, _, value = setting.replace("vllm_kwargs.", "").partition("=")

    plan = acme.plan("qwen3", "--set", setting)

    (ledger,) = [item for item in plan["adjustments"] if item["slot"] == slot]
    assert (ledger["status"], [refusal["slot"] for refusal in plan["refusals"]]) == (status, [slot] * (status == "refused"))
    typed = plan["context"]["environment"] if slot.startswith("env.") else plan["context"]["settings"]
    assert str(typed[slot.removeprefix("env.")]) == value


# What is broken


def test_a_broken_plugin_does_not_disturb_the_others(broken: Environment, acme: Environment) -> None:
    beside, alone = broken.plan("acme_moe"), acme.plan("acme_moe", "--disable", "distribution:acme-slots")

    assert beside["changes"] == alone["changes"]
    assert states(beside)["grumbling"] == "active"
    plugin, facts = (note["text"] for note in beside["warnings"][:2])
    where, place = "plugin 'broken-import' of acme-broken 0.0.7 (acme_broken.imports:QUIRK)", "acme_broken/grumbling.py:25"
    assert plugin == f"{where} is broken: acme_broken/imports.py:3: ModuleNotFoundError: No module named 'acme_telemetry'"
    assert facts == f"quirks_facts of acme-broken:grumbling failed: {place}: ConnectionError: no answer from the scheduler"


# Conflicts and replacements


def test_a_conflict_names_both_quirks_with_their_switches(installed: Callable[..., Environment]) -> None:
    rivals = installed("acme-engine", "acme-quirks", "acme-rival")

    (refusal,) = rivals.plan("acme_moe")["refusals"]

    assert (refusal["kind"], refusal["slot"]) == ("conflict", "engine.dtype")
    assert [quirk["distribution"] for quirk in refusal["quirks"]] == ["acme-quirks", "acme-rival"]
    for off, dtype in (("acme-eager", "bfloat16"), ("rival-dtype", "float32"), ("distribution:Acme_Rival", "float32")):
        assert rivals.plan("acme_moe", "--disable", off)["changes"]["engine.dtype"] == dtype
        assert f"--disable {off}" in refusal["switch"] or ":" in off


def test_a_quirk_replaces_a_built_in_one_unless_it_is_off(acme: Environment) -> None:
    plan, without = acme.plan("gemma4"), acme.plan("gemma4", MODEL_QUIRKS_DISABLE="acme-layer-scalar")

    verdicts = {verdict["id"]: verdict for verdict in plan["verdicts"]}
    assert verdicts["acme-layer-scalar"]["state"] == "active"
    assert verdicts["gemma4-layer-scalar"]["state"] == "superseded"
    assert "acme-layer-scalar (acme-quirks 2.1.0, acme_quirks/layer_scalar.py:" in verdicts["gemma4-layer-scalar"]["because"]
    assert (states(without)["acme-layer-scalar"], states(without)["gemma4-layer-scalar"]) == ("disabled", "active")


# Patches

PATCHING = """
    import json, os, sys
    from quirks_core.apply import process
    from quirks_core.hook.in_force import in_force
    from quirks_core.configuration.config import GenerationConfig
    from quirks_core.plugins.planning import make_plan
    from quirks_core.plan.receipt import Receipt
    from quirks_core.plugins.registry import Registry

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
    plan = make_plan(GenerationConfig.parse({{"model": {model!r}}}), registry=registry)
    with in_force(plan):
        pending = "acme_engine.sampler" not in sys.modules
        patched = tried()
        receipt = Receipt(digest=plan.digest, processes=(process.acknowledgement(),))
        troubles = registry.observe(plan, receipt)
    print(json.dumps({{"pending": pending, "patched": patched, "undone": tried(), "digest": plan.digest, "troubles": troubles,
                      "effects": [effect.model_dump() for ack in receipt.processes for effect in ack.effects]}}))
"""


@pytest.mark.parametrize("imported", [True, False], ids=["before", "after"])
def test_a_package_is_patched_before_and_after_its_import(acme: Environment, tmp_path: Path, imported: bool) -> None:
    script = PATCHING.format(imported=imported, model=str(acme.model("acme_gemma")))

    seen = acme.script(script, ACME_LOG=str(tmp_path / "log"))

    assert seen["pending"] is not imported
    assert seen["patched"] == [[1.0, 2.0], [1.0, 2.0], 0, 7, [2.0]]
    assert seen["undone"] == ["ZeroDivisionError", "ZeroDivisionError", 1, "AttributeError", [2.0]]
    assert {effect["slot"]: effect["pending"] for effect in seen["effects"] if "acme" in effect["slot"]} == {
        f"patch.acme_engine.sampler:{name}": False for name in ("scaled", "Sampler.pick", "Sampler.seed")
    }
    observed = json.loads((tmp_path / "log").read_text(encoding="utf-8"))  # the observer has seen both
    assert (observed, seen["troubles"]) == ({"plan": seen["digest"], "processes": 1}, [])


# A trainer's own patches of vLLM


def test_a_trainers_sound_patches_are_dormant_where_not_needed(installed: Callable[..., Environment]) -> None:
    patches = installed("rl-patches")
    settings = ["engine.distributed_executor_backend=ray", "engine.speculative_config={method: eagle3, model: draft}"]
    options = [word for setting in settings for word in ("--set", setting)]
    active = {"0.27.0": 3, "0.28.0": 2, "0.29.0": 1, "0.33.0": 1}

    checked = patches.quirks("validate", "rl-patches", "--json")
    planned = patches.quirks(
        "plan", "--model", patches.model("llama"), *options, "--vllm", ",".join(active), "--json", VLLM_PORT="7000"
    ).json

    assert checked.code == 0, checked.out + checked.err
    rows = [row["cells"] for row in planned["rows"] if row["id"].startswith("rl-patches/")]
    assert {version: sum(cells[version]["state"] == "active" for cells in rows) for version in active} == active
