"""Addresses read back as written; sockets are for this user alone; both ends of TCP prove the secret."""

from __future__ import annotations

import os
import socket
import stat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.errors import InputError
from serving.worker.address import TcpAddress, UnixAddress, bind_unix, parse_address
from serving.worker.handshake import ConnectorHandshake, HandshakeError, ListenerHandshake, check_secret

UNHURRIED = settings(deadline=None)  # machines are busy at times

SECRET = b"sixteen bytes at least"


@UNHURRIED
@given(st.sampled_from(["localhost", "10.0.0.1", "::1", "fe80::1", "n0.example"]), st.integers(0, 65535))
def test_an_address_reads_back(host, port):
    address = TcpAddress(host, port)
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        *("", "unix:", "unix:relative", "unix:/tmp/", "unix:/" + "x" * 107, "unix:/a\0b", "/tmp/socket"),
        *("tcp:", "tcp:host", "tcp::80", "tcp:h:65536", "tcp:h:-1", "tcp:h:\u0663", "tcp:::1:80", "http://h:80"),
    ],
)
def test_what_is_no_address_is_refused_in_one_line(text):
    with pytest.raises(InputError) as caught:
        parse_address(text)
    assert "\n" not in str(caught.value)


def test_a_socket_is_private_and_replaces_only_a_dead_one(tmp_path):
    where = UnixAddress(tmp_path / "made" / "s")
    with bind_unix(where):
        assert stat.S_IMODE(where.path.stat().st_mode) == 0o600
        assert stat.S_IMODE(where.path.parent.stat().st_mode) == 0o700
        with pytest.raises(InputError, match="another process listens there"):
            bind_unix(where)
    with bind_unix(where):  # the file of the one before is still there
        pass


def test_a_directory_open_to_others_and_a_file_in_the_way_are_refused(tmp_path):
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    os.chmod(open_to_all, 0o755)
    with pytest.raises(InputError, match=r"open to other users \(mode 755\); .* mode 700"):
        bind_unix(UnixAddress(open_to_all / "s"))
    (tmp_path / "s").write_text("precious")
    with pytest.raises(InputError, match="no socket is in its place"):
        bind_unix(UnixAddress(tmp_path / "s"))
    assert (tmp_path / "s").read_text() == "precious"
    with pytest.raises(InputError, match="cannot hold a socket"):
        bind_unix(UnixAddress(tmp_path / "missing" / "deeper" / "s"))


def talk(listener, connector, pieces=lambda raw: [raw]):
    """Carry bytes between the two until nobody has more to say."""
    to_connector, to_listener = listener.begin(), connector.begin()
    while to_connector or to_listener:
        answers = b"".join(connector.feed(piece) for piece in pieces(to_connector)) if to_connector else b""
        to_connector = b"".join(listener.feed(piece) for piece in pieces(to_listener)) if to_listener else b""
        to_listener = answers


@UNHURRIED
@given(st.binary(min_size=16, max_size=80), st.integers(1, 40))
def test_equal_secrets_open_however_the_bytes_are_cut(secret, size):
    listener, connector = ListenerHandshake(secret), ConnectorHandshake(secret)
    talk(listener, connector, lambda raw: [raw[n : n + size] for n in range(0, len(raw), size)])
    assert listener.is_done
    assert connector.is_done
    assert connector.rest == b""


@UNHURRIED
@given(st.binary(min_size=16, max_size=40), st.binary(min_size=16, max_size=40))
def test_other_secrets_never_open(mine, yours):
    if mine == yours:
        return
    listener, connector = ListenerHandshake(mine), ConnectorHandshake(yours)
    with pytest.raises(HandshakeError, match="wrong secret") as caught:
        talk(listener, connector)
    with pytest.raises(HandshakeError, match="the listener refuses our secret"):
        connector.feed(caught.value.last_words)
    assert not listener.is_done
    assert not connector.is_done


def test_a_recorded_answer_does_not_open_another_link():
    listener, connector = ListenerHandshake(SECRET), ConnectorHandshake(SECRET)
    recorded = connector.feed(listener.begin())
    assert listener.feed(recorded)
    with pytest.raises(HandshakeError, match="wrong secret"):
        ListenerHandshake(SECRET).feed(recorded)


def test_an_impostor_that_returns_our_own_proof_is_not_believed():
    connector = ConnectorHandshake(SECRET)
    answer = connector.feed(ListenerHandshake(b"another secret of enough bytes").begin())
    with pytest.raises(HandshakeError, match="does not know our secret"):
        connector.feed(b"\x01" + answer[-32:])
    assert not connector.is_done


@UNHURRIED
@given(st.binary(max_size=200))
def test_strangers_get_nothing_but_a_greeting(raw):
    listener = ListenerHandshake(SECRET)
    try:
        answer = listener.feed(raw)
    except HandshakeError as error:
        answer = error.last_words
    assert answer in (b"", b"\x00" + bytes(32))
    assert not listener.is_done


def test_what_follows_the_handshake_is_kept():
    listener, connector = ListenerHandshake(SECRET), ConnectorHandshake(SECRET)
    connector.feed(verdict := listener.feed(connector.feed(listener.begin())) + b"first frames")
    assert len(verdict) == 33 + len(b"first frames")
    assert connector.rest == b"first frames"


def test_tcp_needs_a_secret_worth_the_name():
    with pytest.raises(InputError, match="needs a secret"):
        check_secret(None, "tcp:h:1")
    with pytest.raises(InputError, match="15 bytes; give at least 16"):
        check_secret(b"x" * 15, "tcp:h:1")


def test_a_listener_with_a_full_queue_is_not_replaced(tmp_path):
    """Connecting to it fails, but not because it is dead."""
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(str(path))
        busy.listen(0)
        waiting = [socket.socket(socket.AF_UNIX) for _ in range(4)]
        try:
            for each in waiting:
                each.setblocking(False)
                each.connect_ex(str(path))
            with pytest.raises(InputError, match="another process listens there"):
                bind_unix(UnixAddress(path))
        finally:
            for each in waiting:
                each.close()
