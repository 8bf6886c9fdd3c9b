"""The first look at something that is no OpenAI endpoint."""

import pytest

from loadgen.errors import TrafficError
from loadgen.target import look
from loadgen.target.url import parse_url


@pytest.mark.parametrize("body", [b"{", b'{"data": [{"id": "\xff"}]}', b'{"data": 3}'])
def test_a_list_that_is_none_is_one_line(body, monkeypatch):
    monkeypatch.setattr(look, "_ask", lambda *given: look.Looked(200, body))
    with pytest.raises(TrafficError, match="does not list its models"):
        look.list_models(parse_url("http://h:1"), "")


def test_tokens_that_are_none_are_not_told(monkeypatch):
    monkeypatch.setattr(look, "_ask", lambda *given: look.Looked(200, b'{"tokens": ["\xff"]}'))
    assert look.tokens_of(parse_url("http://h:1"), "m", "text", "") is None
