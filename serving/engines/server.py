"""A model on a server of others: brought up, asked, put to sleep, woken and ended. One process, or a URL."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from placement.errors import InputError
from serving.engine.outputs import Answered, Output, Refused
from serving.engines.completions import CompletionStream, completion_body, error_message, refusal
from serving.engines.exchange import ExchangeFailed, Place, Stock, ask, converse, parse_place
from serving.engines.launch import Launch
from serving.engines.process import ServerProcess, free_port, start_process
from serving.worker.messages import Generate, Infer
from serving.worker.scratch import Scratch

LOOK_S = 0.1
SLEEP_S = 120.0
"""The longest that falling asleep or waking up may take."""


class _Listed(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Listed] = []


class _Vector(msgspec.Struct):
    index: int
    embedding: list[float]


class _Vectors(msgspec.Struct):
    data: list[_Vector]


@dataclass
class ModelServer:
    """`on_ended` is told when the process ends without having been asked to."""

    launch: Launch
    on_ended: Callable[[str], None]
    process: ServerProcess | None = None
    place: Place | None = None
    model: str = ""
    _stock: Stock = field(default_factory=Stock, repr=False)
    _watch: asyncio.Task[None] | None = field(default=None, repr=False)
    _scratch: Scratch | None = field(default=None, repr=False)
    """Where its socket is."""

    async def start(self) -> None:
        """Returns when it lists the model; an InputError says why it does not."""
        engine = self.launch.engine
        key = _read_key(engine.key)
        deadline = time.monotonic() + engine.start_s
        try:
            if engine.is_ours_to_start:
                self.place = self._find_place(key)
                self.process = start_process(*self.launch.command(self.place))
            else:
                self.place = parse_place(engine.url, key)
            self.model = await self._until_listed(deadline)
            await self._until_willing(deadline)
        except BaseException:
            await self.stop()
            raise
        if self.process is not None:
            self._watch = asyncio.create_task(self._tell_end(self.process))

    async def stop(self) -> None:
        self._stock.close()
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
            self._watch = None
        if self.process is not None:
            await self.process.stop()
            self.process = None
        if self._scratch is not None:
            self._scratch.remove()
            self._scratch = None

    async def sleep(self) -> None:
        """Free its devices. A server that runs elsewhere keeps what it has."""
        engine = self.launch.engine
        if engine.sleep:
            await self._post(engine.sleep)
        elif engine.is_ours_to_start:
            await self.stop()

    async def wake(self) -> float:
        """Seconds that it took."""
        began = time.monotonic()
        engine = self.launch.engine
        if engine.wake:
            await self._post(engine.wake)
        elif engine.is_ours_to_start and self.process is None:
            await self.start()
        return time.monotonic() - began

    async def generate(self, order: Generate, push: Callable[[Output], None]) -> None:
        """Ends when all has come; cancelled, the server is left alone with it no longer."""
        assert self.place is not None
        stream = CompletionStream(order.request, order.params, push)
        prompt = order.prompt if self.launch.engine.prompts == "tokens" else self.launch.text(order.prompt)
        body = completion_body(self.model, prompt, order.params)
        path = f"{self.place.path}/completions"
        stream.conclude(await converse(self.place, "POST", path, body, stream.feed, self._stock))

    async def infer(self, order: Infer) -> Output:
        """Vectors of token lists."""
        assert self.place is not None
        if order.kinds is not None and any(any(row) for row in order.kinds):
            return Refused(order.request, "invalid", "input: pairs of sentences are not served by this engine")
        body = msgspec.json.encode({"model": self.model, "input": order.inputs, "encoding_format": "float"})
        whole = await ask(self.place, "POST", f"{self.place.path}/embeddings", body, wait_s=600.0)
        if whole.status != 200:
            return refusal(order.request, whole.status, whole.body)
        found = sorted(msgspec.json.decode(whole.body, type=_Vectors).data, key=lambda one: one.index)
        values = np.array([one.embedding for one in found], np.float32)
        return Answered(order.request, len(found), values.tobytes())

    def _find_place(self, key: str) -> Place:
        """Where it shall listen; vLLM's own where no other user of this machine reaches it."""
        if self.launch.engine.kind == "vllm":
            self._scratch = Scratch()
            return Place("localhost", 80, False, "/v1", key, f"{self._scratch.path}/vllm")
        return parse_place(f"http://127.0.0.1:{free_port()}/v1", key)

    async def _post(self, path: str) -> None:
        """Paths beside the API's own are asked at the server's root."""
        assert self.place is not None
        whole = await ask(self.place, "POST", path, b"{}", SLEEP_S)
        if whole.status != 200:
            raise InputError(f"{self.launch.name}: {path} answers {whole.status}: {error_message(whole.body)}")

    async def _until_listed(self, deadline: float) -> str:
        assert self.place is not None
        name = self.launch.name
        while True:
            with contextlib.suppress(ExchangeFailed):
                whole = await ask(self.place, "GET", f"{self.place.path}/models", wait_s=10.0)
                if whole.status == 200:
                    return self._choose(whole.body)
                if whole.status in (401, 403):
                    raise InputError(f"model {name!r}: {self.place} wants a key; name a file with it as `key`")
            await self._wait(deadline)

    async def _until_willing(self, deadline: float) -> None:
        """A server may list what it is still loading; whether the model works is for who asks next to find out."""
        assert self.place is not None
        body = msgspec.json.encode({"model": self.model, "prompt": "a", "max_tokens": 1})
        while True:
            with contextlib.suppress(ExchangeFailed):
                whole = await ask(
                    self.place, "POST", f"{self.place.path}/completions", body, self.launch.engine.start_s
                )
                if whole.status not in (429, 503):
                    return
            await self._wait(deadline)

    async def _wait(self, deadline: float) -> None:
        name = self.launch.name
        if self.process is not None and self.process.is_over:
            code = self.process.ended.result()
            raise InputError(f"model {name!r}: its server ended with code {code}; its last lines are in the log")
        if time.monotonic() > deadline:
            wait_s = self.launch.engine.start_s
            raise InputError(f"model {name!r}: {self.place} does not answer within {wait_s:g} s")
        await asyncio.sleep(LOOK_S)

    def _choose(self, body: bytes) -> str:
        try:
            listed = [one.id for one in msgspec.json.decode(body, type=_Models).data]
        except msgspec.DecodeError as error:
            raise InputError(f"model {self.launch.name!r}: {self.place}/models is not OpenAI's: {error}") from error
        wanted = self.launch.engine.model or (self.launch.name if self.launch.name in listed else "")
        if (wanted and wanted not in listed) or not listed:
            known = ", ".join(listed[:8]) or "nothing"
            raise InputError(f"model {self.launch.name!r}: {self.place} has no {wanted!r}; it lists {known}")
        return wanted or listed[0]

    async def _tell_end(self, process: ServerProcess) -> None:
        code = await asyncio.shield(process.ended)
        how = f"by signal {-code}" if code < 0 else f"with code {code}"
        self.on_ended(f"the server of {self.launch.name!r} ended {how}")


def _read_key(path: str) -> str:
    if not path:
        return ""
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise InputError(f"{path}: cannot read the engine's key: {error.strerror}") from error
