"""What the paired runs of this flag share: checkpoints with another ``config.json``, and engines that may be refused."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quirks_plugins.kit import Generated, Lab, Outcome


def edited(lab: Lab, kind: str, name: str, changes: Mapping[str, Any]) -> Path:
    """Returns a tiny checkpoint whose ``config.json`` has new values by key, or lacks a key for None; its weights stay."""
    model = lab.checkpoint(kind)
    target = model.with_name(f"{model.name}-{name}")
    shutil.copytree(model, target, dirs_exist_ok=True)
    config = {**json.loads((model / "config.json").read_text(encoding="utf-8")), **changes}
    kept = {key: value for key, value in config.items() if value is not None or key not in changes}
    (target / "config.json").write_text(json.dumps(kept), encoding="utf-8")
    return target


async def sampled(lab: Lab, model: Path, engine: Mapping[str, Any], **sections: Any) -> list[Generated]:
    """Samples from an engine that has the checkpoint's weights."""
    async with lab.worker(model, {"engine": {"load_format": "auto", **engine}, **sections}) as worker:
        return await lab.sample(worker)


async def refused_or_close(
    lab: Lab,
    model: Path,
    engine: Mapping[str, Any],
    measure: str = "largest difference to the trainer's logprobs",
    **sections: Any,
) -> Outcome:
    """Passes if the plan refuses the run, or if the engine's logprobs are those of transformers."""
    from quirks_core.plan.records import RefusedError

    try:
        got = await sampled(lab, model, engine, **sections)
    except RefusedError as error:
        return Outcome(True, measure, f"refused: {error.refusals[0].reason}", "refused, or at most 0.001")
    return lab.close_logprobs(got, lab.rescored(lab.trainer(model), got), measure=measure)
