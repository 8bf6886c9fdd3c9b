"""The durable queue of training jobs: a store, and runners for each type of job.

The service that runs them needs the policies' numerics: it is imported as training.queue.service.
"""

from training.queue.command_runner import CommandRunner
from training.queue.devices import Devices, OwnDevices
from training.queue.errors import Ended, JobExists, NoSuchJob, OverQuota, StoreError
from training.queue.logs import LogPart, read_log
from training.queue.record import Event, Quota, Record
from training.queue.runner import Exited, Gone, Runner, Running
from training.queue.states import ENDED, STATES, State
from training.queue.store import ANYBODY, Store, open_store
from training.queue.submission import TYPES, Submission, read_submission

__all__ = [
    "ANYBODY",
    "ENDED",
    "STATES",
    "TYPES",
    "CommandRunner",
    "Devices",
    "Ended",
    "Event",
    "Exited",
    "Gone",
    "JobExists",
    "LogPart",
    "NoSuchJob",
    "OverQuota",
    "OwnDevices",
    "Quota",
    "Record",
    "Runner",
    "Running",
    "State",
    "Store",
    "StoreError",
    "Submission",
    "open_store",
    "read_log",
    "read_submission",
]
