"""The other end of a link, in a process of its own: echoes what has a body, counts the rest, prints why it ended.

python -m tests.serving.worker.peer ADDRESS SETTINGS [SECRET]
"""

from __future__ import annotations

import asyncio
import sys

import msgspec

from serving.worker.connect import connect
from serving.worker.event_loop import run
from serving.worker.settings import LinkSettings
from tests.serving.worker.words import Count, Say, Words


async def main(address: str, settings: LinkSettings, secret: bytes | None) -> None:
    ended = asyncio.get_running_loop().create_future()
    seen = 0

    def answer(link, message):
        nonlocal seen
        seen += 1
        link.send(message if isinstance(message, Say) and message.body else Count(seen))

    link = await connect(
        address, Words, answer, lambda _, why: ended.set_result(why), secret=secret, settings=settings, deadline_s=20
    )
    sys.stdout.write((await ended) + "\n")
    sys.stdout.flush()
    await link.wait_closed()


if __name__ == "__main__":
    given = msgspec.json.decode(sys.argv[2], type=LinkSettings)
    run(main(sys.argv[1], given, sys.argv[3].encode() if len(sys.argv) > 3 else None))
