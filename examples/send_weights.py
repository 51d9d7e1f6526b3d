"""A trainer that sends a transformers model to a running ``vllm serve``, by vLLM's routes and our backend.

Neither our worker nor a plan is needed; model-quirks is installed on both sides::

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
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import requests
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM

from quirks_core.base import private_folder
from worker.refit import CollectiveSender, Source, send_ipc_zmq

TIMEOUT_S = 120.0


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


def post(url: str, **body: Any) -> None:
    """Calls a route of the server.

    Raises:
        RuntimeError: It failed; the server's words.
    """
    reply = requests.post(url, json=body or None, timeout=300)
    if not reply.ok:
        raise RuntimeError(f"{url}: {reply.status_code} {reply.text}")


def main() -> None:
    """Sends the weights once, while the engine holds its requests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of a checkpoint: the policy")
    parser.add_argument("server", help="URL of the server")
    parser.add_argument("--transport", choices=("ipc_zmq", "collective"), default="ipc_zmq")
    parser.add_argument("--port", type=int, default=29511, help="a free port for the collective")
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu", help="where the policy lies")
    parser.add_argument("--engine-ranks", type=int, help="processes of the engine; the server is asked if left open")
    options = parser.parse_args()
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    engines = options.engine_ranks or requests.get(f"{options.server}/get_world_size", timeout=300).json()["world_size"]
    source = Source(policy(options.model, options.device, ranks), "state_dict")

    with ThreadPoolExecutor(max_workers=1) as pool:

        def call(route: str, **body: Any) -> Future[None]:
            return pool.submit(post, f"{options.server}/{route}", **body)

        folder = private_folder.make("mq-")
        update_info = {"transport": options.transport, "ranks": engines, "timeout_s": TIMEOUT_S}
        if options.transport == "collective":  # once, for all updates
            meeting = {"ip": "127.0.0.1", "port": options.port, "world_size": ranks + engines, "timeout_s": TIMEOUT_S}
            joined = call("init_weight_transfer_engine", init_info={**meeting, "rank_offset": ranks}) if rank == 0 else None
            send = partial(CollectiveSender(**meeting, rank=rank, device=options.device).send, source)
            if joined is not None:
                joined.result()
        else:  # several ranks gather each tensor together, and the first of them sends it
            update_info["location"] = str(folder)
            addresses = [f"{folder}/rank-{number}.sock" for number in range(engines)]
            tensors, manifest = (source, None) if ranks == 1 else (source.__call__, source.manifest)
            send = partial(send_ipc_zmq, tensors, addresses, manifest=manifest, device=options.device, timeout_s=TIMEOUT_S)

        if rank == 0:
            for route in ("pause?mode=keep", "start_weight_update"):
                call(route).result()
            updated = call("update_weights", update_info=update_info)
            try:
                send(given_up=updated.done)  # a server that refuses will never ask for the weights
            finally:
                updated.result()
            for route in ("finish_weight_update", "reset_prefix_cache", "resume"):  # its blocks have the old weights
                call(route).result()
            print(f"sent {len(source.manifest.tensors)} tensors by {options.transport}")
        elif options.transport == "collective":
            send()
        else:
            deque(source(), maxlen=0)
    private_folder.remove(folder)
    if dist.is_initialized():
        dist.barrier()  # a rank that leaves while another one is still there ends that one
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
