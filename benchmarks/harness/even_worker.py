"""A worker that splits the tokens of a replicated expert evenly over its replicas, as EPLB has it, instead of by what
balances the batch: `serving.worker` with that one function replaced. For comparison only."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from serving.worker import __main__ as worker
from serving.worker.device import pin

if TYPE_CHECKING:
    from moe.arrays import Floats
    from moe.expert_placement import ExpertPlacement
    from moe.parallel.places import Places


def _pin_and_replace(device: str) -> None:
    """Nothing heavy may be imported before the process has its core."""
    pin(device)
    from serving.models import decoder

    setattr(decoder, "places_of", _even_places)  # noqa: B010  (it is not exported)


def _even_places(placement: ExpertPlacement, layer: int, speed: Floats | None = None) -> Places:
    from moe.parallel.places import Places

    return Places(placement.expert[layer], placement.start, placement.experts)


if __name__ == "__main__":
    setattr(worker, "pin", _pin_and_replace)  # noqa: B010
    code = worker.main()
    sys.stderr.flush()
    os._exit(code)
