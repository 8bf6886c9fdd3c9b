"""The channel between two processes of one machine: a ring of slots in shared memory for each direction, and a
socket as the doorbell for who sleeps.

A receiver reads its tensor where it lies; the slot is free again at the next receive. A tensor larger than a slot goes
through several. Who waits spins for some ten microseconds, then sleeps on the socket, whose end is the peer's end.
"""

from __future__ import annotations

import contextlib
import math
import socket
import struct

import torch
from torch import Tensor

from serving.parallel import signals
from serving.parallel.base import PeerLost
from serving.parallel.header import WORDS, describe, dtype_and_shape
from serving.parallel.region import LINE, Region

SLOTS = 4
SLOT_BYTES = 4 << 20
"""Of address space; the kernel gives memory for what was once written."""
_HEADER = struct.Struct(f"<{WORDS}q")
_BOARD_BYTES = 4096
_RINGS = 64


def channel_bytes(slots: int = SLOTS, slot_bytes: int = SLOT_BYTES) -> int:
    """The memory that the two ends of a channel share."""
    return _BOARD_BYTES + 2 * slots * (LINE + slot_bytes)


class SharedChannel:
    """`end`: 0 on one side, 1 on the other. `bell`: connected to the other side, for this channel alone."""

    def __init__(
        self, region: Region, end: int, bell: socket.socket, slots: int = SLOTS, slot_bytes: int = SLOT_BYTES
    ) -> None:
        assert slots >= 2, "one slot is held by the receiver"
        assert slot_bytes % LINE == 0
        self._region = region
        self._end = end
        self._slots, self._slot_bytes = slots, slot_bytes
        self._bell = bell
        self._bell.settimeout(None)
        self._reason: str | None = None
        self._sent = self._received = 0

    def send(self, tensor: Tensor) -> None:
        header = describe(tensor)
        whole = tensor.detach().cpu().contiguous()
        size, source = whole.numel() * whole.itemsize, whole.data_ptr()
        for begin in range(0, max(size, 1), self._slot_bytes):
            self._await(self._freed(self._end), self._sent + 1 - self._slots)
            self._tell(self._filled(self._end), self._sent)  # who sleeps wakes up while the copy is made
            offset = self._slot(self._end, self._sent)
            _HEADER.pack_into(self._region.memory, offset, *header)
            body = self._region.address + offset + LINE
            signals.copy(body, source + begin, min(self._slot_bytes, size - begin))
            self._sent += 1
            if not self._tell(self._filled(self._end), self._sent):
                raise self._lost()

    def receive(self) -> Tensor:
        source = 1 - self._end
        self._tell(self._freed(source), self._received)
        self._await(self._filled(source), self._received + 1)
        offset = self._slot(source, self._received)
        dtype, shape = dtype_and_shape(_HEADER.unpack_from(self._region.memory, offset))
        count = math.prod(shape)
        if count * dtype.itemsize <= self._slot_bytes:
            self._received += 1
            return self._view(offset, dtype, count).view(shape)
        return self._assemble(torch.empty(shape, dtype=dtype))

    def abort(self, reason: str) -> None:
        """The peer finds the channel ended, too."""
        self._reason = self._reason or reason
        with contextlib.suppress(OSError):
            self._bell.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """The memory itself goes with the last tensor that lies in it."""
        self.abort("the channel is closed")
        self._bell.close()

    def _assemble(self, whole: Tensor) -> Tensor:
        """Fill a tensor larger than a slot from the pieces that come."""
        size, source = whole.numel() * whole.itemsize, 1 - self._end
        for begin in range(0, size, self._slot_bytes):
            self._await(self._filled(source), self._received + 1)
            body = self._region.address + self._slot(source, self._received) + LINE
            signals.copy(whole.data_ptr() + begin, body, min(self._slot_bytes, size - begin))
            self._received += 1
            self._tell(self._freed(source), self._received)
        return whole

    def _await(self, counter: int, value: int) -> None:
        """Until a counter has reached the value."""
        if self._reason is not None:
            raise self._lost()
        if signals.reaches(counter, value):
            return
        while signals.may_sleep(counter, value, self._sleeping(self._end)):
            alive = self._hear()
            if not signals.reaches(counter, value) and not alive:
                raise self._lost()

    def _tell(self, counter: int, value: int) -> bool:
        """Raise a counter and ring where its watcher sleeps; False when nobody is there to hear."""
        if signals.publish(counter, value, self._sleeping(1 - self._end)):
            try:
                self._bell.send(b"!", socket.MSG_DONTWAIT)
            except BlockingIOError:
                pass  # more rings than it will ever answer are there already
            except OSError:
                return False
        return True

    def _hear(self) -> bool:
        """Sleep until the bell rings; False when it never will again."""
        try:
            return bool(self._bell.recv(_RINGS))
        except OSError:
            return False

    def _lost(self) -> PeerLost:
        self._reason = self._reason or "the other end of the channel is gone"
        return PeerLost(self._reason)

    def _view(self, offset: int, dtype: torch.dtype, count: int) -> Tensor:
        if not count:
            return torch.empty(0, dtype=dtype)
        return torch.frombuffer(self._region.memory, dtype=dtype, count=count, offset=offset + LINE)

    def _slot(self, end: int, number: int) -> int:
        """Where the slot begins that `end` fills with its piece of that number."""
        return _BOARD_BYTES + (end * self._slots + number % self._slots) * (LINE + self._slot_bytes)

    def _sleeping(self, end: int) -> int:
        return self._region.address + end * LINE

    def _filled(self, end: int) -> int:
        """The counter of pieces that `end` has sent; the next, of those its peer is done with."""
        return self._region.address + (2 + end) * LINE

    def _freed(self, end: int) -> int:
        return self._region.address + (4 + end) * LINE
