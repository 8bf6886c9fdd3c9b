"""Requests answered in one pass: submits the tokens of all inputs to the router and waits for the one answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from router.request import NotServed, Request
from serving.http.call import Call
from serving.http.errors import as_http
from serving.http.meters import Meters, Track
from serving.http.service import Runs, ServedModel, Service
from serving.http.wishes import Wishes


class OnePass:
    def __init__(self, service: Service, meters: Meters) -> None:
        self._router, self._meters = service.router, meters

    async def __call__(
        self,
        call: Call,
        model: ServedModel,
        inputs: list[list[int]],
        wishes: Wishes,
        kinds: list[list[int]] | None = None,
    ) -> NDArray[np.float32]:
        """float32 [inputs, width]; kinds: 1 for tokens of a second sentence."""
        tokens = sum(map(len, inputs))
        request = Request(
            id=call.key,
            model=model.name,
            tokens=tokens,
            inputs=len(inputs),
            slo_s=wishes.slo_s,
            tenant=call.tenant,
            priority=wishes.priority,
        )
        call.facts |= {"model": model.name, "prompt_tokens": tokens}
        track = Track(self._meters.models[model.name], request)

        async def run(group: Runs) -> AsyncIterator[NDArray[np.float32]]:
            track.run()
            yield await group.infer(call.key, model.name, inputs, kinds)

        stream: Any = None
        try:
            stream = self._router.submit(request, run)
            async for values in stream:
                track.finish(("stop",))
                return values  # type: ignore[no-any-return]
            raise NotServed("failed", "the group gave no answer")
        except Exception as error:
            track.fail(getattr(error, "reason", None) or as_http(error).code)
            raise
        except asyncio.CancelledError:
            track.fail("cancelled")
            raise
        finally:
            track.close()
            if stream is not None:
                await stream.aclose()
