"""From a body's bytes to a struct; errors name the parameter they are about."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from serving.http.errors import BadRequest

T = TypeVar("T")
_AT = re.compile(r" - at `(?:key` in `)?\$\.?([^`]*)`$")
_MISSING = re.compile(r"missing required field `([^`]*)`")
_LONGEST_PARAM = 100


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Unknown fields are passed over; a wrong type, a number out of range or broken JSON is a BadRequest."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _wrong(str(error)) from None
    except UnicodeDecodeError:
        raise BadRequest("the body is not valid UTF-8", code="invalid_json") from None
    except RecursionError:
        raise BadRequest("the body is nested too deeply", code="invalid_json") from None
    except msgspec.DecodeError as error:
        raise BadRequest(f"the body is not valid JSON: {error}", code="invalid_json") from None


def _wrong(text: str) -> BadRequest:
    at, missing = _AT.search(text), _MISSING.search(text)
    path = at.group(1) if at else ""
    if missing:
        path = f"{path}.{missing.group(1)}" if path else missing.group(1)
        return BadRequest(f"{path}: missing; it is required", param=path[:_LONGEST_PARAM])
    said = (text[: at.start()] if at else text).replace("`", "")
    said = said[0].lower() + said[1:]
    return BadRequest(f"{path}: {said}" if path else f"the body: {said}", param=path[:_LONGEST_PARAM] or None)
