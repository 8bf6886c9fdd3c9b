"""Other engines, each in an environment of its own, driven over JSON lines so that all measure in one run."""

from benchmarks.peers.environment import Peer, start_peer

__all__ = ["Peer", "start_peer"]
