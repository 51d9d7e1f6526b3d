"""The proof of parallelism: which ranks the processes of engines really are, and which experts each of them holds.

A log line has what was requested. Here every process reads its own parallel groups and its own expert layers. Imports vLLM
for those groups.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pydantic.dataclasses import dataclass as validated

from quirks_core.plan.records import Plan
from worker.errors import TopologyError

if TYPE_CHECKING:
    import torch


@validated(frozen=True, slots=True)
class Row:
    """One process of an engine.

    Attributes:
        engine: Number of the engine in its group.
        pid: Process id.
        device: The GPU's UUID, or ``cpu``.
        dp_rank: Data-parallel rank; of a dense model the number of the engine's independent copy.
        dp_size: Ranks of the data-parallel group that steps together.
        pp_rank: Pipeline-parallel rank.
        pp_size: Ranks of the pipeline.
        tp_rank: Tensor-parallel rank.
        tp_size: Ranks of the tensor-parallel group.
        ep_rank: Expert-parallel rank; None where experts are not distributed.
        ep_size: Ranks over which experts are distributed; 1 where they are not.
        experts: By name of a MoE layer, the numbers of the experts whose weights are here.
        expert_count: By name of a MoE layer, how many experts it has in all.
        expert_bytes: Memory of the experts' weights, in bytes.
    """

    engine: int
    pid: int
    device: str
    dp_rank: int
    dp_size: int
    pp_rank: int
    pp_size: int
    tp_rank: int
    tp_size: int
    ep_rank: int | None
    ep_size: int
    experts: Mapping[str, tuple[int, ...]]
    expert_count: Mapping[str, int]
    expert_bytes: int

    @property
    def name(self) -> str:
        """How to speak of it in a message."""
        return f"engine {self.engine}, DP {self.dp_rank}, PP {self.pp_rank}, TP {self.tp_rank} (process {self.pid})"


@dataclass(frozen=True, slots=True)
class Expected:
    """The parallel groups that the processes form by the plan.

    Attributes:
        strategy: ``parallel.dp_strategy``; None without data parallelism.
        data: Data-parallel ranks in all.
        tensor: Tensor-parallel ranks of each.
        pipeline: Pipeline stages of each.
        experts: Ranks over which experts are distributed; 1 for none.
        is_moe: The model has experts.
    """

    strategy: str | None
    data: int
    tensor: int
    pipeline: int
    experts: int
    is_moe: bool

    @classmethod
    def of(cls, plan: Plan) -> Expected:
        """Reads a plan."""
        strategy = plan.value("parallel.dp_strategy")
        data, tensor = plan.value("engine.data_parallel_size"), plan.value("engine.tensor_parallel_size")
        is_moe = bool(plan.context.loaded.is_moe)
        shared = tensor if strategy == "independent" else data * tensor
        return cls(
            strategy=strategy,
            data=data,
            tensor=tensor,
            pipeline=plan.value("engine.pipeline_parallel_size"),
            experts=shared if is_moe and plan.value("engine.enable_expert_parallel") else 1,
            is_moe=is_moe,
        )

    @property
    def stepping_together(self) -> int:
        """Ranks of one data-parallel group: vLLM gives one to MoE models alone."""
        return self.data if self.is_moe and self.strategy != "independent" else 1


@dataclass(frozen=True, slots=True)
class Topology:
    """The processes of one engine or of a group."""

    rows: tuple[Row, ...]

    def check(self, expected: Expected) -> None:
        """Compares what is there with the plan.

        Raises:
            TopologyError: They differ; the message lists everything.
        """
        if problems := list(self._wrong_sizes(expected)) or list(self._wrong_experts(expected)):
            raise TopologyError("the engine did not form the parallel groups of the plan: " + "; ".join(problems))

    def to_json(self, *, indent: int | None = None) -> str:
        """Returns the rows as a JSON list."""
        return json.dumps([asdict(row) for row in self.rows], indent=indent)

    def _wrong_sizes(self, expected: Expected) -> Iterator[str]:
        if len(self.rows) != (processes := expected.data * expected.tensor * expected.pipeline):
            yield f"there are {len(self.rows)} processes instead of {processes}"
        wanted = {
            "data-parallel group": ("dp_size", expected.stepping_together),
            "pipeline": ("pp_size", expected.pipeline),
            "tensor-parallel group": ("tp_size", expected.tensor),
            "expert-parallel group": ("ep_size", expected.experts),
        }
        for row in self.rows:
            for what, (field, size) in wanted.items():
                if (got := getattr(row, field)) != size:
                    yield f"{row.name} is in a {what} of {got} instead of {size}"

    def _wrong_experts(self, expected: Expected) -> Iterator[str]:
        """Every expert of every layer must be somewhere: once, or in every process where experts are not distributed."""
        independent = expected.strategy == "independent"
        copies = 1 if expected.experts > 1 else expected.tensor * (1 if independent else expected.data)
        holders: Counter[tuple[int, str, int]] = Counter()
        for row in self.rows:
            for layer, count in row.expert_count.items():
                held = (row.engine if independent else 0, layer)
                holders.update({(*held, expert): 0 for expert in range(count)})
                holders.update((*held, expert) for expert in row.experts[layer])
        for (_, layer, expert), found in holders.items():
            if found != copies:
                yield f"{layer}: expert {expert} is held by {found} processes instead of {copies}"


def device_id(device: torch.device) -> str:
    """Returns the identity of the device: a GPU's UUID, else ``cpu``."""
    if device.type != "cuda":
        return "cpu"
    import torch

    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def read_topology(worker: Any, engine: int) -> dict[str, Any]:
    """Reads a vLLM worker's place in every parallel group and the experts that it holds; runs inside that worker.

    Returns:
        The fields of a `Row`, as plain values.
    """
    from vllm.distributed import parallel_state as state

    parallel = worker.vllm_config.parallel_config
    data, tensor, pipeline = state.get_dp_group(), state.get_tp_group(), state.get_pp_group()
    layers = dict(_expert_layers(worker.get_model()))
    distributed = bool(layers) and parallel.enable_expert_parallel and data.world_size * tensor.world_size > 1
    experts = state.get_ep_group() if distributed else None
    return {
        "engine": engine,
        "pid": os.getpid(),
        "device": device_id(worker.device),
        "dp_rank": parallel.data_parallel_index,
        "dp_size": data.world_size,
        "pp_rank": pipeline.rank_in_group,
        "pp_size": pipeline.world_size,
        "tp_rank": tensor.rank_in_group,
        "tp_size": tensor.world_size,
        "ep_rank": None if experts is None else experts.rank_in_group,
        "ep_size": 1 if experts is None else experts.world_size,
        "experts": {name: _held(layer) for name, layer in layers.items()},
        "expert_count": {name: int(layer.global_num_experts) for name, layer in layers.items()},
        "expert_bytes": sum(weight.nbytes for layer in layers.values() for weight in layer.parameters()),
    }


def _expert_layers(model: Any) -> Iterator[tuple[str, Any]]:
    """Yields the modules that own the experts' weights, by name."""
    for name, module in model.named_modules():
        own = (parameter for parameter, _ in module.named_parameters(recurse=False))
        # In quantised ones it is called w13_qweight, w13_weight_packed and the like.
        if hasattr(module, "global_num_experts") and any(parameter.startswith("w13_") for parameter in own):
            yield name, module


def _held(layer: Any) -> list[int]:
    """The numbers, counted over all ranks, of the experts whose weights a layer holds: vLLM's map has -1 for all others."""
    places = getattr(layer, "expert_map", None)
    if places is None:
        return list(range(int(layer.global_num_experts)))
    return [number for number, place in enumerate(places.tolist()) if place >= 0]
