"""The client's own reading of HTTP: every form of answer, cut anywhere, and what is none."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.client.response import NotHttp, Response

JSON = b"content-type: application/json\r\n"
SIZED = b"HTTP/1.1 200 OK\r\n" + JSON + b"content-length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nt: v\r\n\r\n"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n" + SIZED


class Reader:
    def __init__(self):
        self.status, self.kind, self.body = 0, "", b""

    def begin(self, status, content_type):
        self.status, self.kind = status, content_type

    def feed(self, data, now_s):
        self.body += data


def read(body, cuts=()):
    reader = Reader()
    response = Response(reader)
    edges = [0, *sorted({cut for cut in cuts if cut < len(body)}), len(body)]
    for begin, end in pairwise(edges):
        response.feed(body[begin:end], 0.0)
    return reader, response


@given(body=st.sampled_from([SIZED, CHUNKED, INTERIM]), cuts=st.lists(st.integers(1, 90), max_size=9))
def test_however_the_bytes_are_cut(body, cuts):
    reader, response = read(body, cuts)
    assert (reader.status, reader.body) == (200, b"hello")
    assert response.state == "complete"
    assert response.keeps_alive


def test_answers_without_a_body():
    for head in (b"HTTP/1.1 204 None\r\n\r\n", b"HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n"):
        reader, response = read(head)
        assert response.state == "complete"
        assert reader.body == b""


def test_when_the_connection_is_not_kept():
    assert not read(b"HTTP/1.1 200 OK\r\nConnection: close\r\ncontent-length: 0\r\n\r\n")[1].keeps_alive
    assert not read(b"HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n")[1].keeps_alive
    assert not read(SIZED + b"more")[1].keeps_alive


def test_a_body_that_ends_with_the_connection():
    reader, response = read(b"HTTP/1.1 200 OK\r\n\r\nsome")
    response.feed(b"thing", 0.0)
    assert response.state == "until close"
    response.close()
    assert (response.state, reader.body) == ("complete", b"something")
    half = read(SIZED[:-2])[1]
    half.close()
    assert half.state != "complete"


@pytest.mark.parametrize(
    "body",
    [
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"x" * 70_000,
    ],
)
def test_what_is_no_answer(body):
    with pytest.raises(NotHttp):
        read(body)
