"""A user's own script for torchrun: its workers share the same samples of each step, whatever their number, and go on
from the checkpoint of the last run.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH, FEATURES = 150, 8, 4


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(FEATURES, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    path = Path(os.environ["PENSTOCK_CHECKPOINT_DIR"]) / "state.pt"
    step = load(path, model, optimizer) if path.exists() else 0
    while step < STEPS:
        inputs, wanted = samples(step)
        own = slice(rank * BATCH // size, (rank + 1) * BATCH // size)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs[own]), wanted[own]).backward()
        optimizer.step()
        step += 1
        if rank == 0:
            save(path, step, model, optimizer)
            told = {"step": step, "workers": size, "attempt": int(os.environ["PENSTOCK_ATTEMPT"])}
            sys.stdout.write(json.dumps(told) + "\n")
            sys.stdout.flush()
        time.sleep(0.05)
    dist.destroy_process_group()


def samples(step):
    made = torch.Generator().manual_seed(step)
    inputs = torch.randn(BATCH, FEATURES, generator=made)
    return inputs, inputs.sum(1, keepdim=True)


def save(path, step, model, optimizer):
    """Under its name only when it is whole: SIGKILL comes at any time."""
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, path.with_name("new"))
    os.replace(path.with_name("new"), path)


def load(path, model, optimizer):
    found = torch.load(path)
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    return found["step"]


if __name__ == "__main__":
    main()
