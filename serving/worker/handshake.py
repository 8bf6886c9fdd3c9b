"""Both ends of a TCP link prove that they know the same secret before any message, by answering each other's nonce.

    listener   greeting, nonce
    connector  greeting, nonce, HMAC(secret, "connector", both nonces)
    listener   1, HMAC(secret, "listener", both nonces)      or 0 and zeros: refused

It keeps strangers out; it does not hide or sign what follows: that is the network's duty. Pure: bytes in, bytes out.
"""

from __future__ import annotations

import hmac
import secrets

from placement.errors import InputError

GREETING = b"PENSTK\x00\x01"
NONCE_BYTES = 32
PROOF_BYTES = 32
MIN_SECRET_BYTES = 16

_ACCEPTED, _REFUSED = b"\x01", b"\x00"
_HELLO_BYTES = len(GREETING) + NONCE_BYTES


class HandshakeError(Exception):
    """The other end is not who it should be; `last_words` are for it to read."""

    def __init__(self, reason: str, last_words: bytes = b"") -> None:
        super().__init__(reason)
        self.last_words = last_words


def check_secret(secret: bytes | None, where: str) -> bytes:
    if secret is None:
        raise InputError(f"{where}: a link over TCP needs a secret on both ends")
    if len(secret) < MIN_SECRET_BYTES:
        raise InputError(f"{where}: the secret has {len(secret)} bytes; give at least {MIN_SECRET_BYTES}")
    return secret


class ListenerHandshake:
    """Asks the connector for its proof, and gives its own only to one that had it."""

    def __init__(self, secret: bytes) -> None:
        self._secret, self._nonce = secret, secrets.token_bytes(NONCE_BYTES)
        self._held = b""
        self.is_done = False
        self.rest = b""

    def begin(self) -> bytes:
        return GREETING + self._nonce

    def feed(self, chunk: bytes) -> bytes:
        """What to answer."""
        self._held += chunk
        _check_greeting(self._held)
        if len(self._held) < _HELLO_BYTES + PROOF_BYTES:
            return b""
        if len(self._held) > _HELLO_BYTES + PROOF_BYTES:
            raise HandshakeError("the connector spoke before it was let in")
        nonce, proof = self._held[len(GREETING) : _HELLO_BYTES], self._held[_HELLO_BYTES:]
        nonces = self._nonce + nonce
        if not hmac.compare_digest(proof, _prove(self._secret, b"connector", nonces)):
            raise HandshakeError("wrong secret", _REFUSED + bytes(PROOF_BYTES))
        self.is_done = True
        return _ACCEPTED + _prove(self._secret, b"listener", nonces)


class ConnectorHandshake:
    """Answers the listener's nonce, and believes it only with a proof for one's own."""

    def __init__(self, secret: bytes) -> None:
        self._secret, self._nonce = secret, secrets.token_bytes(NONCE_BYTES)
        self._held = self._nonces = b""
        self.is_done = False
        self.rest = b""
        """What came after the handshake: the first frames."""

    def begin(self) -> bytes:
        return b""

    def feed(self, chunk: bytes) -> bytes:
        """What to answer."""
        self._held += chunk
        if not self._nonces:
            return self._answer()
        self._judge()
        return b""

    def _answer(self) -> bytes:
        _check_greeting(self._held)
        if len(self._held) < _HELLO_BYTES:
            return b""
        if len(self._held) > _HELLO_BYTES:
            raise HandshakeError("the listener said more than its greeting")
        self._nonces = self._held[len(GREETING) :] + self._nonce
        self._held = b""
        return GREETING + self._nonce + _prove(self._secret, b"connector", self._nonces)

    def _judge(self) -> None:
        if self._held[:1] == _REFUSED:
            raise HandshakeError("the listener refuses our secret")
        if len(self._held) < 1 + PROOF_BYTES:
            return
        proof = self._held[1 : 1 + PROOF_BYTES]
        if not hmac.compare_digest(proof, _prove(self._secret, b"listener", self._nonces)):
            raise HandshakeError("the listener does not know our secret")
        self.rest = self._held[1 + PROOF_BYTES :]
        self.is_done = True


Handshake = ListenerHandshake | ConnectorHandshake


def _check_greeting(held: bytes) -> None:
    if not GREETING.startswith(held[: len(GREETING)]):
        raise HandshakeError("the other end does not speak the protocol of Penstock's links")


def _prove(secret: bytes, role: bytes, nonces: bytes) -> bytes:
    return hmac.digest(secret, b"penstock link, " + role + b": " + nonces, "sha256")
