"""A weight loader without a name gets one where vLLM's reload asks for it."""

from __future__ import annotations

from functools import partial

import pytest

from quirks_plugins.weight_sync.reload_patches import wrap_get_weight_loader


@pytest.mark.parametrize("version", ["0.26.0", "0.33.0"])
def test_a_rollout_of_minimax_m2_is_patched(plan_for, version):
    assert plan_for("minimax_m2", assume=[f"vllm=={version}"]).patched == ["_get_weight_loader"]


def test_a_partial_gets_the_name_of_its_function_and_every_other_loader_stays_as_it_is():
    def loader(param, loaded_weight, shard=0):
        """Loads."""

    named = wrap_get_weight_loader(lambda held: held)

    assert named(partial(loader, shard=1)).__name__ == "loader"
    assert named(loader) is loader
