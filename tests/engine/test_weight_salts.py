"""Requests that are hashed with the version of the weights: vLLM's requests and hashes, without an engine."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from quirks_plugins.prefix_cache import weight_version_patches as patches

_TOKENS = list(range(40))


class _Core:
    """What the wrappers use of an engine core; its workers load weights ``count`` times."""

    def __init__(self) -> None:
        self.count, self.loras, self.resets = 0, set(), 0
        self.scheduler = SimpleNamespace(requests={}, has_unfinished_requests=lambda: bool(self.scheduler.requests))
        self.model_executor = SimpleNamespace(collective_rpc=lambda _: [self.count, self.count])
        self.vllm_config = SimpleNamespace(model_config=SimpleNamespace(is_multimodal_model=True))

    def list_loras(self) -> set[int]:
        return self.loras

    def reset_encoder_cache(self) -> None:
        self.resets += 1

    def raw_rpc(self, method, timeout=None, args=(), kwargs=None) -> list[None]:  # noqa: ARG002 - the form of vLLM's
        self.count += method == "load"
        return [None]

    def raw_add(self, request) -> None:
        self.scheduler.requests[request.request_id] = request

    def raw_lora(self, request) -> bool:
        self.loras.add(request.lora_int_id)
        return True


@pytest.fixture
def core():
    return _Core()


rpc = patches.wrap_collective_rpc(_Core.raw_rpc)
add = patches.wrap_add_request(_Core.raw_add)
add_lora = patches.wrap_add_lora(_Core.raw_lora)


@pytest.fixture
def request_of():
    """Makes vLLM's own request of 40 tokens, in blocks of 16."""
    from vllm import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256)
    hasher = get_request_block_hasher(16, sha256)

    def make(name, salt=None, lora=None):
        params = SamplingParams(max_tokens=1)
        return Request(name, list(_TOKENS), params, None, cache_salt=salt, lora_request=lora, block_hasher=hasher)

    return make


def _lora(number, *, inplace=False, name="policy"):
    from vllm.lora.request import LoRARequest

    return LoRARequest(name, number, "/adapter", load_inplace=inplace)


def _hashes(core, request):
    add(core, request)
    core.scheduler.requests.clear()
    return request.block_hashes


def test_nothing_changes_before_the_first_update(core, request_of):
    plain = list(request_of("a", "mine").block_hashes)
    rpc(core, "start_profile")

    request = request_of("b", "mine")

    assert (_hashes(core, request), request.cache_salt) == (plain, "mine")


@pytest.mark.parametrize("method", ["finish_weight_update", "reload_weights", "load"])
def test_only_requests_after_the_same_update_share_blocks(core, request_of, method):
    found = [_hashes(core, request_of("a"))]
    for _ in range(2):
        rpc(core, method)
        found += [_hashes(core, request_of("b")), _hashes(core, request_of("c"))]
        rpc(core, "sleep")

    before, *after = (tuple(hashes) for hashes in found)
    assert after[0] == after[1]
    assert after[2] == after[3]
    assert len({before, after[0], after[2]}) == 3
    assert {len(hashes) for hashes in found} == {2}


def test_client_salts_stay_apart(core, request_of):
    rpc(core, "reload_weights")

    assert _hashes(core, request_of("a", "one")) != _hashes(core, request_of("b", "two"))


def test_only_a_request_without_blocks_gets_the_new_salt(core, request_of):
    waiting, running = request_of("a"), request_of("b")
    for request in (waiting, running):
        add(core, request)
    running.num_computed_tokens = 16
    old, held_by_a_connector = list(running.block_hashes), waiting.block_hashes

    rpc(core, "reload_weights")
    rpc(core, "reload_weights")

    assert running.block_hashes == old
    assert held_by_a_connector == old, "a thousand requests that wait hold up no engine"
    assert waiting.block_hashes != old
    assert len(waiting.block_hashes) == len(old)
    assert waiting.block_hashes is held_by_a_connector


def test_other_requests_are_read_as_fast_as_vllm_s(core, request_of):
    """A class with ``__getattr__`` makes each access slower, of which a step of the scheduler has thousands."""
    waiting, other = request_of("a"), request_of("b")
    kind = type(waiting)
    add(core, waiting)

    rpc(core, "reload_weights")
    rpc(core, "reload_weights")

    assert isinstance(waiting, kind)
    assert hasattr(type(waiting), "__getattr__")
    assert not hasattr(waiting, "no_such_attribute")
    assert not hasattr(type(other), "__getattr__")
    assert waiting.block_hashes
    assert type(waiting) is kind


def test_an_update_of_a_draft_drops_nothing(core, request_of):
    plain = _hashes(core, request_of("a"))
    draft = SimpleNamespace(load_weights=lambda _: core)
    patches.wrap_load_model(lambda *_: draft)(None, None, SimpleNamespace(runner_type="draft"))
    rpc(core, "start_draft_weight_update")
    draft.load_weights([])
    rpc(core, "finish_weight_update")
    assert _hashes(core, request_of("b")) == plain

    rpc(core, "start_weight_update")
    rpc(core, "finish_weight_update")
    assert _hashes(core, request_of("c")) != plain


def test_engines_with_one_store_share_no_policys_blocks(request_of):
    found = []
    for core in (_Core(), _Core()):
        rpc(core, "reload_weights")
        found.append(_hashes(core, request_of("a")))

    assert found[0] != found[1]


def test_encoder_cache_is_reset_when_no_request_runs(core, request_of):
    add(core, request_of("a"))
    rpc(core, "reload_weights")
    add(core, request_of("b"))
    assert core.resets == 0

    core.scheduler.requests.clear()
    add(core, request_of("c"))
    add(core, request_of("d"))

    assert core.resets == 1


def test_adapter_that_is_loaded_again_shares_no_blocks(core, request_of):
    found = []
    for number, inplace in ((1, False), (1, True), (2, False)):
        add_lora(core, _lora(number, inplace=inplace))
        found.append(tuple(_hashes(core, request_of("a", lora=_lora(number)))))
    add_lora(core, _lora(2))  # it is there already

    assert len(set(found)) == 3
    assert tuple(_hashes(core, request_of("b", lora=_lora(2)))) == found[-1]
    assert tuple(_hashes(core, request_of("c", lora=_lora(1, inplace=True)))) not in found
