"""The data file of a distribution: since when its quirks exist, and the versions of the sources that its patches know."""

from __future__ import annotations

import shutil

import pytest

from quirks_core import Patch
from quirks_core.base.errors import UsageError
from quirks_core.declaration import data_file
from quirks_core.declaration.data_file import DataFile, KnownSource
from quirks_core.declaration.quirk import Location
from quirks_core.plan.drift import drift_of
from quirks_core.source.vllm_source import INSTALLED

TARGET = "fake_engine:step"
ENGINE = "def step():\n    first = 1\n    return first\n"


@pytest.fixture
def quirk(write_modules, fake_distribution, make_quirk):
    """A quirk of a package that patches an engine."""
    write_modules({"fake_quirks/__init__.py": ""})
    fake_distribution("fake-engine", "1.0", modules={"fake_engine.py": ENGINE})

    def make(*expects, name="one", **more):
        patch = Patch(TARGET, wrapper="mine:wrap", expects=expects or INSTALLED.fingerprint(TARGET))
        place = Location("fake_quirks/one.py", 1, "fake_quirks.one")
        return make_quirk(**{"id": name, "adjustments": patch, "location": place, **more})

    return make


def test_the_file_lies_in_the_package_of_the_declarations(quirk, site, make_quirk):
    homeless = [make_quirk(location=Location("a.py", 1, module)) for module in ("", "fake_engine", "no_such.module", "..")]

    assert data_file.path_for(quirk()) == site / "fake_quirks" / "model_quirks.json"
    assert [data_file.path_for(one) for one in homeless] == [None] * 4


def test_updating_keeps_the_first_release_of_every_present_quirk(quirk, site):
    """A quirk that the file does not name is new. A second time changes nothing; what is added has no source before."""
    adds = quirk(name="adds", adjustments=Patch("fake_engine:new", adds="mine:new"))
    old = DataFile(since={"one": "0.1", "gone": "0.1"})

    data = data_file.updated(old, (adds, quirk()), "0.3")
    assert data_file.read_for(adds) == DataFile()
    data_file.write(data_file.path_for(adds), data)

    assert (data.since, list(data.fingerprints)) == ({"one": "0.1", "adds": "0.3"}, [TARGET])
    assert data_file.read_for(adds) == data == data_file.updated(data, (adds, quirk()), "0.4")
    assert [data_file.since(quirk(name=name), "0.4") for name in ("one", "adds", "two")] == ["0.1", "0.3", "0.4"]
    assert sorted(file.name for file in (site / "fake_quirks").iterdir()) == ["__init__.py", "model_quirks.json"]


@pytest.mark.parametrize("content", [b"{", b'{"colour": "red"}'])
def test_what_is_no_data_file_is_an_error_with_the_remedy(quirk, content):
    data_file.path_for(quirk()).write_bytes(content)

    with pytest.raises(UsageError, match=r"model_quirks\.json is no data file of quirks; delete it, and .* makes it anew$"):
        data_file.read_for(quirk())


def test_updating_keeps_only_sources_that_a_quirk_expects(quirk, fake_distribution, site):
    first = INSTALLED.fingerprint(TARGET)
    old = data_file.updated(DataFile(), (quirk(first),), "0.1")
    before = {first: KnownSource(versions=("1.0",))}
    assert old.fingerprints == {TARGET: before}
    shutil.rmtree(site / "fake_engine-1.0.dist-info")
    fake_distribution("fake-engine", "2.0", modules={"fake_engine.py": ENGINE.replace("first = 1", "first = 2")})
    second = INSTALLED.fingerprint(TARGET)

    both, unknown, forgotten = (
        data_file.updated(old, (quirk(*expects),), "0.1").fingerprints[TARGET]
        for expects in ((first, second), (first,), (second,))
    )

    now = {second: KnownSource(versions=("2.0",))}
    assert (both, unknown, forgotten) == ({**before, **now}, before, now)


def test_drift_is_shown_with_the_versions_that_the_file_keeps(quirk, write_modules, loaded):
    """Also by a file of before, which kept more."""
    item = loaded(quirk())
    known = data_file.updated(DataFile(), (item.quirk,), "0.1").model_dump_json()
    data_file.path_for(item.quirk).write_text(known.replace('"versions":', '"lines":"1f2e3d","versions":'))
    assert drift_of(item.quirk.adjustments[0], item.quirk, INSTALLED) is None

    write_modules({"fake_engine.py": ENGINE.replace("first = 1", "first = 2")})

    assert drift_of(item.quirk.adjustments[0], item.quirk, INSTALLED).lines == ("it was written against the source of 1.0",)
