"""The bounds a link keeps. Its ends need not agree, but one's `ping_s` must be well below the other's `life_s`."""

from __future__ import annotations

import msgspec

from placement.errors import InputError

MAX_FRAME_BYTES = 2**31 - 1
"""The top bit of a frame's length says goodbye."""


class LinkSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_frame_bytes: int = 16 * 2**20
    """One message may take this much; a larger one received closes the link."""
    max_unsent_bytes: int = 64 * 2**20
    """More than this waiting to be sent closes the link: the other end is too slow."""
    stall_s: float = 10.0
    """The other end takes nothing of what waits to be sent for so long: the link is closed."""
    ping_s: float = 0.5
    """A sign of life is sent when nothing else was for so long."""
    life_s: float = 2.0
    """Nothing received for so long closes the link."""
    handshake_s: float = 5.0
    """How long a stranger on TCP may take to prove that it knows the secret."""

    def __post_init__(self) -> None:
        if not 0 < self.max_frame_bytes <= MAX_FRAME_BYTES:
            raise InputError(f"max_frame_bytes is {self.max_frame_bytes}; give 1 to {MAX_FRAME_BYTES}")
        if self.max_unsent_bytes < self.max_frame_bytes:
            raise InputError(f"max_unsent_bytes is {self.max_unsent_bytes}; give at least {self.max_frame_bytes}")
        if not 0 < 2 * self.ping_s <= self.life_s:
            raise InputError(f"ping_s is {self.ping_s:g}, life_s {self.life_s:g}; give at least two pings a life")
        if not (self.stall_s > 0 and self.handshake_s > 0):
            raise InputError(f"stall_s is {self.stall_s:g}, handshake_s {self.handshake_s:g}; give more than 0")
