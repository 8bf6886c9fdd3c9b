"""Room for many connections: each open request takes a file descriptor."""

from __future__ import annotations

from loadgen.client.limits import Limits
from loadgen.errors import TrafficError

_OTHERS = 200
"""Descriptors for everything else."""


def room_for(connections: int) -> int:
    """How many there may be, once this process's limit is raised as far as it may go. TrafficError when they are more;
    the usual number, which nobody asked for, is lowered instead."""
    try:
        import resource
    except ImportError:  # a system without such limits
        return connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + _OTHERS
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return connections
    soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    most = max(soft - _OTHERS, 1)
    if most < connections != Limits().open:
        raise TrafficError(
            f"--max-open {connections}: this system lets a process open {hard} files; "
            f"give at most {most}, or raise its limit (ulimit -n)"
        )
    return min(connections, most)
