"""A trainer that sends a transformers model to a running ``vllm serve``, by vLLM's own interface and our backend.

Neither our worker nor a plan is needed; model-quirks is installed on both sides, and vLLM 0.28 or later::

    VLLM_SERVER_DEV_MODE=1 vllm serve FOLDER --load-format dummy --weight-transfer-config '{"backend": "model_quirks"}'
    python examples/send_weights.py FOLDER http://127.0.0.1:8000                        one process, on the engine's machine
    torchrun --nproc-per-node 2 examples/send_weights.py FOLDER URL                     FSDP2: the model in two shards
    python examples/send_weights.py FOLDER URL --transport collective --device cuda:1   from another GPU

The development mode gives the server its routes for weights; do not open them to others. A server of our worker has them with
``server.rl_routes``, under the URL ``http://:KEY@127.0.0.1:8000``.
"""

from __future__ import annotations

import argparse
import os

import requests
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM
from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient

from worker.refit import RefitTrainer, RefitTrainerInitInfo, Source


def policy(folder: str, device: str, ranks: int) -> torch.nn.Module:
    """Returns the trainer's model, in shards if there are several ranks."""
    model = AutoModelForCausalLM.from_pretrained(folder).to(device)
    if ranks > 1:
        from torch.distributed.fsdp import fully_shard

        mesh = dist.init_device_mesh(torch.device(device).type, (ranks,))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def post(url: str) -> None:
    """Calls a route of the server that takes no body."""
    requests.post(url, timeout=300).raise_for_status()


def main() -> None:
    """Sends the weights once, while the engine holds its requests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of a checkpoint: the policy")
    parser.add_argument("server", help="URL of the server")
    parser.add_argument("--transport", choices=("ipc_zmq", "collective"), default="ipc_zmq")
    parser.add_argument("--port", type=int, default=29511, help="a free port for the collective")
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu", help="where the policy lies")
    options = parser.parse_args()
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))

    reply = requests.get(f"{options.server}/get_world_size", timeout=300)
    reply.raise_for_status()
    model = policy(options.model, options.device, ranks)
    trainer = RefitTrainer.trainer_init(
        RefitTrainerInitInfo(
            rank=rank,
            trainer_ranks=ranks,
            engine_ranks=reply.json()["world_size"],
            transport=options.transport,
            device=options.device,
            port=options.port,
        ),
        client=HTTPVLLMWeightSyncClient(options.server),
        source=Source(model, "state_dict"),
    )
    if trainer.is_sender:
        post(f"{options.server}/pause?mode=keep")
    trainer.send_weights()
    if trainer.is_sender:
        post(f"{options.server}/reset_prefix_cache")  # its blocks were computed with the old weights
        post(f"{options.server}/resume")
        print(f"sent {len(trainer.source.manifest.tensors)} tensors by {options.transport}")
    trainer.shutdown()
    if dist.is_initialized():
        dist.barrier()  # a rank that leaves while another one is still there ends that one
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
