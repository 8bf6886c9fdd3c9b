"""The engine: continuous batching over a paged cache, without text and without processes."""

from serving.engine.generator import Generator, make_generator
from serving.engine.goal import TokenGoal
from serving.engine.one_pass import PassEngine
from serving.engine.outputs import Answered, Engine, Output, Produced, Refused
from serving.engine.scheduler import Limits

__all__ = [
    "Answered",
    "Engine",
    "Generator",
    "Limits",
    "Output",
    "PassEngine",
    "Produced",
    "Refused",
    "TokenGoal",
    "make_generator",
]
