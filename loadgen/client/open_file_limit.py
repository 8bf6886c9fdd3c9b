"""Room for many connections: each open request takes a file descriptor."""

from __future__ import annotations

from loadgen.errors import TrafficError

_OTHERS = 200
"""Descriptors for everything else."""


def room_for(connections: int) -> int:
    """Raises this process's limit as far as it may go; TrafficError when that is not enough."""
    try:
        import resource
    except ImportError:  # a system without such limits
        return connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + _OTHERS
    most = needed if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = min(needed, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < needed:
            raise TrafficError(
                f"--max-open {connections}: this system lets a process open {hard} files; "
                f"give at most {max(hard - _OTHERS, 1)}, or raise its limit (ulimit -n)"
            )
    return connections
