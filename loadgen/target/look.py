"""The first look at a server, before any load: which models it has, and how each of them turns words into tokens."""

from __future__ import annotations

import http.client
import socket
import ssl
from dataclasses import dataclass

import msgspec

from loadgen.errors import TrafficError
from loadgen.target.models import ListedModel, Listing
from loadgen.target.url import TargetUrl

_TIMEOUT_S = 10.0
_NOT_UNDERSTOOD = (msgspec.DecodeError, UnicodeDecodeError)


class Tokenized(msgspec.Struct, frozen=True):
    tokens: list[int]


@dataclass(frozen=True)
class Looked:
    status: int
    body: bytes


def list_models(url: TargetUrl, api_key: str) -> list[ListedModel]:
    """One line that says what is wrong with the URL, when no OpenAI endpoint answers there."""
    answer = _ask(url, "GET", "/v1/models", None, api_key)
    if answer.status in (401, 403):
        raise TrafficError(f"{url.base}: wants a key (HTTP {answer.status}); give the right --api-key")
    if answer.status != 200:
        raise TrafficError(
            f"{url.base}: answers GET /v1/models with HTTP {answer.status}; give an OpenAI endpoint's URL"
        )
    try:
        return msgspec.json.decode(answer.body, type=Listing).data
    except _NOT_UNDERSTOOD:
        raise TrafficError(
            f"{url.base}: does not list its models as OpenAI's API does; give such an endpoint"
        ) from None


def tokens_of(url: TargetUrl, model: str, text: str, api_key: str) -> list[int] | None:
    """The tokens of a text; None where the server does not tell."""
    body = msgspec.json.encode({"model": model, "prompt": text, "add_special_tokens": False})
    try:
        answer = _ask(url, "POST", "/tokenize", body, api_key)
        return msgspec.json.decode(answer.body, type=Tokenized).tokens if answer.status == 200 else None
    except (TrafficError, *_NOT_UNDERSTOOD):
        return None


def _ask(url: TargetUrl, method: str, path: str, body: bytes | None, api_key: str) -> Looked:
    kind = http.client.HTTPSConnection if url.is_secure else http.client.HTTPConnection
    connection = kind(url.host, url.port, timeout=_TIMEOUT_S)
    headers = {"content-type": "application/json"} if body is not None else {}
    if api_key:
        headers["authorization"] = f"Bearer {api_key}"
    try:
        connection.request(method, url.path + path, body, headers)
        answer = connection.getresponse()
        return Looked(answer.status, answer.read())
    except TimeoutError:
        why = f"does not answer within {_TIMEOUT_S:g} s"
    except socket.gaierror:
        why = "has a host name that is not known"
    except ConnectionRefusedError:
        why = "refuses the connection; nothing listens there"
    except ssl.SSLError as error:
        why = f"is not reached by TLS ({error.reason or 'failed'})"
    except (http.client.HTTPException, ValueError):
        why = "does not speak HTTP"
    except OSError as error:
        why = f"cannot be reached ({error.strerror or type(error).__name__})"
    finally:
        connection.close()
    raise TrafficError(f"{url.base}: {why}; start a server, or give the right {url.option}")
