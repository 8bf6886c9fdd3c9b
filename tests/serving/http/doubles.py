"""A router and a group in this process: they answer at once, by rules that tests can foresee, and keep a diary.

The group's answer to a prompt is the prompt's own tokens again, without end. A model's input's vector is
(number of tokens, sum of tokens, 0.5).
"""

import asyncio
import contextlib
import threading
import time
from dataclasses import dataclass, field

import numpy as np
import uvloop
from tokenizers import Tokenizer as Backend

from router.request import NotServed
from router.statistics import Statistics
from serving.engine.outputs import Produced
from serving.http import HttpServer, HttpSettings, Keys, ServedModel, Service, make_app
from serving.sampling import TokenLogprobs
from serving.text import Tokenizer
from serving.text.model_files import TextFiles
from tests.serving.text.vocabularies import backend

TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}</s>{% endfor %}"
    "{% if tools %}tools {{ tools | length }}{% endif %}{% if add_generation_prompt %}assistant:{% endif %}"
)


@dataclass
class EchoGroup:
    step_s: float = 0.0
    fail_after: int | None = None
    """Tokens after which the group is lost."""
    open: set = field(default_factory=set)
    cancelled: list = field(default_factory=list)
    params: list = field(default_factory=list)

    async def generate(self, request, model, prompt, params):
        self.open.add(request)
        self.params.append(params)
        left = params.n
        try:
            for place in range(params.max_tokens):
                if self.fail_after is not None and place >= self.fail_after:
                    raise NotServed("failed", "the group is lost")
                if self.step_s:
                    await asyncio.sleep(self.step_s)
                for index in range(params.n):
                    token = prompt[(place + index) % len(prompt)]
                    finish = "length" if place + 1 == params.max_tokens else None
                    left -= finish is not None
                    logprobs = None
                    if params.logprobs is not None:
                        logprobs = TokenLogprobs(-0.5, [token, 5][: params.logprobs], [-0.5, -1.5][: params.logprobs])
                    yield Produced(request, index, token, finish, logprobs, 2 if place == 0 else 0)
        finally:
            self.open.discard(request)
            if left:
                self.cancelled.append(request)

    async def infer(self, request, model, inputs, kinds=None):
        self.open.add(request)
        try:
            if self.step_s:
                await asyncio.sleep(self.step_s)
            return np.array([(len(one), sum(one), 0.5) for one in inputs], np.float32)
        except asyncio.CancelledError:
            self.cancelled.append(request)
            raise
        finally:
            self.open.discard(request)


class Stream:
    """As a router's ticket: closed early, or finished when no more is wanted."""

    def __init__(self, items):
        self._items = items

    def __aiter__(self):
        return self

    def __anext__(self):
        return self._items.__anext__()

    async def aclose(self):
        await self._items.aclose()

    finish = aclose


@dataclass
class DirectRouter:
    """Runs everything on its one group, unless it is told to refuse."""

    group: EchoGroup = field(default_factory=EchoGroup)
    refuse: NotServed | Exception | None = None
    requests: list = field(default_factory=list)
    keeps: bool = True
    statistics: Statistics = field(default_factory=Statistics)

    def submit(self, request, run):
        return Stream(self._items(request, run))

    async def _items(self, request, run):
        if self.keeps:
            self.requests.append(request)
        if self.refuse is not None:
            raise self.refuse
        stream = run(self.group)
        async with contextlib.aclosing(stream):
            async for item in stream:
                yield item


class Controller:
    """As /admin needs it."""

    def __init__(self):
        self.applied = []

    async def plan(self):
        return {"groups": []}

    async def apply_plan(self, document):
        self.applied.append(document)
        return {"applied": True}

    async def explain(self, kind):
        return {"kind": kind}

    async def status(self):
        return {"devices": {}}

    async def suggest(self):
        return {"suggested": None}


def text_tokenizer(template=TEMPLATE):
    copy = Backend.from_str(backend("byte-level").to_str())
    templates = {"default": template} if template else {}
    files = TextFiles({"bos_token": "<s>", "eos_token": "</s>"}, (), templates)
    return Tokenizer(copy, files, "models/test")


def served(name="chat", kind="generate", template=TEMPLATE, **more):
    tokenizer = text_tokenizer(template)
    width = 3 if kind != "generate" else -1
    more = {"max_positions": 512, "vocabulary": tokenizer.vocab_size, "created": 1, "width": width} | more
    return ServedModel(name=name, kind=kind, tokenizer=tokenizer, **more)


def make_service(router=None, models=None, **more):
    models = models or [
        served(),
        served("plain", template=None),
        served("embed", "embed"),
        served("classify", "classify", labels=("good", "fair", "bad")),
    ]
    settings = more.pop("settings", HttpSettings(log_requests=False, prompt_tokens=400))
    return Service(
        router=router or DirectRouter(),
        models={model.name: model for model in models},
        settings=settings,
        admin=more.pop("admin", Controller()),
        **more,
    )


class Running:
    """A real server in a thread of its own; `run` does something on its event loop."""

    def __init__(self, service, tracer=None):
        self.service = service
        self.router = service.router
        self.group = service.router.group
        self.app = make_app(service, tracer)
        self.server = HttpServer(self.app, "127.0.0.1", 0, service.settings)
        self.port = self.server.port
        self.url = f"http://127.0.0.1:{self.port}"
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.run(self.server.start())

    def _run(self):
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    def run(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def stop(self):
        self.run(self.server.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        assert not self._thread.is_alive()

    def wait_until(self, holds, seconds=5.0):
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, "it did not come to pass in time"
            time.sleep(0.005)


@contextlib.contextmanager
def running(tracer=None, **more):
    server = Running(make_service(**more), tracer)
    try:
        yield server
    finally:
        server.stop()


TENANTS = Keys({"key-of-anna": "anna", "key-of-bert": "bert"}, "key-of-the-admin")
