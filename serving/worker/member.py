"""A device of a group that is not its leader: does what the leader commands, in order, until told to leave."""

from __future__ import annotations

import os

import msgspec

from placement.errors import InputError
from serving.engine.step import Result, Step, decode_array, encode_array
from serving.parallel import connect as connect_parallel
from serving.worker.connect import connect
from serving.worker.device_runner import DeviceRunner
from serving.worker.document import WorkerDocument
from serving.worker.link import Link
from serving.worker.mail import Mail
from serving.worker.messages import (
    Broken,
    Command,
    Done,
    Joined,
    Leave,
    LoadShard,
    Reply,
    Resume,
    RunStep,
    StepResult,
    Suspend,
    Unload,
)
from serving.worker.settings import LinkSettings

_decoder: msgspec.msgpack.Decoder[Step] = msgspec.msgpack.Decoder(Step, dec_hook=decode_array)
_encoder = msgspec.msgpack.Encoder(enc_hook=encode_array)


def decode_step(data: bytes) -> Step:
    return _decoder.decode(data)


def encode(value: Step | Result) -> bytes:
    return _encoder.encode(value)


def run_member(document: WorkerDocument) -> None:
    """Until the leader says Leave; a lost leader ends the process from the mail's thread."""
    mail = Mail()
    link: Link[Reply, Command] = mail.call(
        connect(
            document.leader,
            Command,
            lambda _, message: mail.inbox.put(message),
            lambda _, reason: mail.lost(f"the leader of {document.group} is gone: {reason}"),
            secret=document.secret.encode() if document.secret else None,
            deadline_s=document.connect_s,
            settings=LinkSettings(life_s=document.life_s, ping_s=document.life_s / 4),
        )
    )
    parallel = connect_parallel(document.layout, document.rendezvous, document.backend, document.connect_s)
    mail.on_lost = parallel.abort
    device = DeviceRunner(document, parallel)
    link.post(Joined(document.rank, os.getpid()))
    try:
        while not isinstance(command := mail.inbox.get(), Leave):
            _obey(command, device, link)
    except Exception as error:  # the process boundary: the leader must hear of it
        link.post(Broken(f"rank {document.rank}: {type(error).__name__}: {error}"))
        raise
    finally:
        mail.end()
        parallel.close()


def _obey(command: Command, device: DeviceRunner, link: Link[Reply, Command]) -> None:
    match command:
        case RunStep(step):
            result = device.run(decode_step(step)).result
            if result is not None:
                link.post(StepResult(encode(result)))
        case LoadShard(id, model, blocks):
            link.post(_try(id, lambda: device.load(model, blocks)))
        case Unload(id, model):
            link.post(_try(id, lambda: device.unload(model)))
        case Suspend(id, model):
            link.post(_try(id, lambda: device.suspend(model)))
        case Resume(id, model):
            link.post(_try(id, lambda: device.resume(model)))


def _try(id: int, work: object) -> Done:
    assert callable(work)
    try:
        work()
    except InputError as error:
        return Done(id, str(error))
    return Done(id)
