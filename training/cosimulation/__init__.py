"""Serving and training on one simulated time: a fluid model of traffic, rules that lend servers, what follows."""

from training.cosimulation.fluid import Pool, Served, serve
from training.cosimulation.rules import Nothing, Officer, Rule, Threshold
from training.cosimulation.traffic import Clients, Drawn, Traffic, behind, draw, fill_that_holds, read_clients

__all__ = [
    "Clients",
    "Drawn",
    "Nothing",
    "Officer",
    "Pool",
    "Rule",
    "Served",
    "Threshold",
    "Traffic",
    "behind",
    "draw",
    "fill_that_holds",
    "read_clients",
    "serve",
]
