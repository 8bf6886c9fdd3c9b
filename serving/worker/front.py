"""The leader's links: to the controller that orders, and to the other devices of the group. Runs on the mail's thread.

A device that is lost is the end of the group: the controller is told why, and the process ends. A controller that is
lost is the end too: nobody is left to answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from serving.worker.control import Control
from serving.worker.document import WorkerDocument
from serving.worker.link import Link
from serving.worker.listener import Listener, listen
from serving.worker.mail import Mail
from serving.worker.messages import Broken, Command, Ended, Hello, Joined, Order, Reply, Report, StageDone
from serving.worker.settings import LinkSettings


@dataclass(frozen=True)
class FromController:
    message: Order


@dataclass(frozen=True)
class FromMember:
    rank: int
    message: Reply


class Front:
    """`report` and `command` may be called from the main thread."""

    def __init__(self, document: WorkerDocument) -> None:
        self.mail = Mail()
        self._document = document
        self._settings = LinkSettings(life_s=document.life_s, ping_s=document.life_s / 4)
        self._secret = document.secret.encode() if document.secret else None
        self._ranks: dict[Link[Command, Reply], int] = {}
        self._control = Control(document, self._say_hello, self._take_order, self._lose_controller)
        self._hello: Hello | None = None
        self._listener: Listener[Command, Reply] | None = None
        self.on_stage: Callable[[StageDone], bool] = lambda reply: False
        """On the mail's thread: takes what a stage has done, or leaves it to the main thread."""
        self.mail.call(self._listen())

    def open(self, hello: Hello) -> None:
        """The group is complete: greet the controller, now or when it comes."""
        self.mail.call(self._greet(hello))

    def report(self, message: Report, at_once: bool = False) -> None:
        link = self._control.link
        if link is not None:
            link.post(message, at_once)

    def command(self, message: Command) -> None:
        for link in list(self._ranks):
            link.post(message)

    def say_ended(self, reason: str) -> None:
        """On the mail's thread: the controller's last word from this group."""
        self._control.report(Ended(reason))
        self._control.close(reason)

    def fail(self, reason: str) -> None:
        """From the main thread, which cannot go on."""

        async def lost() -> None:
            self.mail.lost(reason)

        self.mail.call(lost())

    async def _listen(self) -> None:
        document = self._document
        await self._control.listen()
        if document.layout.devices > 1:
            self._listener = await listen(
                document.leader,
                Reply,
                lambda link: None,
                self._take_reply,
                self._lose_member,
                secret=self._secret,
                settings=self._settings,
            )

    async def _greet(self, hello: Hello) -> None:
        self._hello = hello
        self._say_hello()

    def _say_hello(self) -> None:
        if self._hello is not None:
            self._control.report(self._hello)

    def _take_order(self, order: Order) -> None:
        self.mail.inbox.put(FromController(order))

    def _lose_controller(self, reason: str) -> None:
        self.mail.lost(f"the controller of {self._document.group} is gone: {reason}")

    def _take_reply(self, link: Link[Command, Reply], message: Reply) -> None:
        if isinstance(message, Joined):
            self._ranks[link] = message.rank
        if isinstance(message, Broken):
            self.mail.lost(f"group {self._document.group}: {message.reason}")
        rank = self._ranks.get(link)
        if rank is None:
            link.close("the first message must be Joined")
        elif not (isinstance(message, StageDone) and self.on_stage(message)):
            self.mail.inbox.put(FromMember(rank, message))

    def _lose_member(self, link: Link[Command, Reply], reason: str) -> None:
        rank = self._ranks.pop(link, None)
        if rank is not None:
            self.mail.lost(f"group {self._document.group}: rank {rank} is gone: {reason}")
