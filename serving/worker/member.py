"""A device of a group that is not its leader: does what the leader commands, in order, until told to leave."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from serving.engine.step import Result, Step, decode_array, encode_array
from serving.parallel import connect as connect_parallel
from serving.worker.connect import connect
from serving.worker.device_runner import DeviceRunner
from serving.worker.document import WorkerDocument
from serving.worker.link import Link
from serving.worker.loader import MOVER_NICE, Loader
from serving.worker.mail import Mail
from serving.worker.messages import (
    Broken,
    Command,
    Done,
    Echo,
    Joined,
    Leave,
    LoadShard,
    PlaceExperts,
    Reply,
    Resume,
    RunStep,
    StageDone,
    Suspend,
    SwitchExperts,
    TakeRoutes,
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
    loader = Loader(lambda error: _say_broken(document, link, error))
    mover = Loader(lambda error: _say_broken(document, link, error), MOVER_NICE)
    try:
        while not isinstance(command := mail.inbox.get(), Leave):
            _obey(command, device, loader, mover, link)
    except Exception as error:  # the process boundary: the leader must hear of it
        _say_broken(document, link, error)
        raise
    finally:
        mail.end()
        parallel.close()


def _say_broken(document: WorkerDocument, link: Link[Reply, Command], error: Exception) -> None:
    link.post(Broken(f"rank {document.rank}: {type(error).__name__}: {error}"))


def _obey(command: Command, device: DeviceRunner, loader: Loader, mover: Loader, link: Link[Reply, Command]) -> None:
    match command:
        case RunStep(step):
            work = decode_step(step)
            worked, layout = device.run(work), device.document.layout
            if layout.tp_rank == 0:
                result = b"" if worked.result is None else encode(worked.result)
                link.post(StageDone(work.model, layout.stage, worked.seconds, result))
        case LoadShard(id, spec, blocks):
            loader.submit(lambda: device.load(spec, blocks), lambda error: link.post(Done(id, error)))
        case Unload(id, model):
            device.unload(model)
            link.post(Done(id))
        case Suspend(id, model):
            device.suspend(model)
            link.post(Done(id))
        case Resume(id, model):
            device.resume(model)
            link.post(Done(id))
        case PlaceExperts(id, model, experts):
            facts: dict[str, Any] = {}
            mover.submit(
                lambda: facts.update(device.prepare_experts(model, experts)),
                lambda error: link.post(Done(id, error, facts)),
            )
        case SwitchExperts(model, go):
            device.switch_experts(model, go)
        case Echo(id):
            link.post(Done(id))
        case TakeRoutes(id, model):
            link.post(Done(id, "", device.take_routes(model)))
