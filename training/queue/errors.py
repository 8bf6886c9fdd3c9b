"""What the queue raises.

InputError      (placement's) what was asked for is wrong
  NoSuchJob     no job has that id
  JobExists     another job has it
  OverQuota     the user has as many jobs as a user may have, or the queue is full
  Ended         the job has ended: nothing can be done to it any more
StoreError      the store could not do it: locked for too long, disk full, server gone
LeaseLost       another controller acts in this one's name, or has the job
Stale           the job is no longer in the state that the caller saw
"""

from __future__ import annotations

from placement.errors import InputError


class NoSuchJob(InputError):  # noqa: N818  (they say what happened)
    pass


class JobExists(InputError):  # noqa: N818
    pass


class OverQuota(InputError):  # noqa: N818
    pass


class Ended(InputError):  # noqa: N818
    pass


class StoreError(RuntimeError):
    pass


class LeaseLost(RuntimeError):  # noqa: N818
    pass


class Stale(RuntimeError):  # noqa: N818
    pass
