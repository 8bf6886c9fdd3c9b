"""What the endpoint answers when it does not do what was asked, in OpenAI's shape.

HttpError             any of them: an HTTP status, a stable code, one line, the parameter it is about
  BadRequest          400 the request itself is wrong
  Unauthorised        401 no key, or none that is known
  Forbidden           403 a key, host or page that may not do this
  NotFound            404 no such model or route
  MethodNotAllowed    405
  TooSlow             408 the request did not come, or was not answered, in time
  TooLarge            413 a body above the limit
  WrongType           415 a body that is not JSON
  Overloaded          429 it would miss its deadline or a queue is full: ask again after `retry_after_s`
  Cancelled           499 its client went away
  Internal            500 our fault
  Unavailable         503 nobody is there to answer: ask again after `retry_after_s`
"""

from __future__ import annotations

import math
import re

import msgspec

from placement.errors import InputError
from router.request import NotServed
from serving.worker.group import GroupLost, RequestFailed

_FIELD = re.compile(r"^([a-z][a-z_]*): ")
_RETRY_S = 1.0
_LONGEST = 500


class HttpError(Exception):
    status = 500
    type = "server_error"
    code = "internal"

    def __init__(
        self, message: str, param: str | None = None, code: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message if len(message) <= _LONGEST else f"{message[:_LONGEST]}...")
        self.param = param
        self.code = code or self.code
        self.retry_after_s = retry_after_s
        self.closes = False
        """Whether the connection ends with it: what is left of the request cannot be read."""

    @property
    def retry_after(self) -> int | None:
        """Whole seconds, at least one."""
        if self.retry_after_s is None or not math.isfinite(self.retry_after_s):
            return None
        return max(1, math.ceil(self.retry_after_s))


class BadRequest(HttpError):  # noqa: N818  (they say what happened)
    status, type, code = 400, "invalid_request_error", "invalid_request"


class Unauthorised(HttpError):  # noqa: N818
    status, type, code = 401, "authentication_error", "invalid_api_key"


class Forbidden(HttpError):  # noqa: N818
    status, type, code = 403, "permission_error", "forbidden"


class NotFound(HttpError):  # noqa: N818
    status, type, code = 404, "invalid_request_error", "not_found"


class MethodNotAllowed(HttpError):  # noqa: N818
    status, type, code = 405, "invalid_request_error", "method_not_allowed"


class TooSlow(HttpError):  # noqa: N818
    status, type, code = 408, "timeout_error", "timeout"


class TooLarge(HttpError):  # noqa: N818
    status, type, code = 413, "invalid_request_error", "body_too_large"


class WrongType(HttpError):  # noqa: N818
    status, type, code = 415, "invalid_request_error", "unsupported_media_type"


class Overloaded(HttpError):  # noqa: N818
    status, type, code = 429, "rate_limit_error", "refused"


class Cancelled(HttpError):  # noqa: N818
    status, type, code = 499, "cancelled_error", "cancelled"


class Internal(HttpError):  # noqa: N818
    pass


class Unavailable(HttpError):  # noqa: N818
    status, type, code = 503, "unavailable_error", "unavailable"


class ErrorBody(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(msgspec.Struct, frozen=True):
    """How every error is told."""

    error: ErrorBody


def error_answer(error: HttpError) -> ErrorAnswer:
    return ErrorAnswer(ErrorBody(str(error), error.type, error.param, error.code))


def as_http(error: Exception) -> HttpError:
    """What went wrong below, in HTTP's words. Of an error that nobody foresaw nothing is told."""
    match error:
        case HttpError():
            return error
        case NotServed(reason=reason, retry_after_s=retry_after_s):
            return _not_served(reason, str(error), retry_after_s)
        case RequestFailed(code="invalid"):
            return from_input(InputError(str(error)))
        case RequestFailed(code="cancelled"):
            return Cancelled(str(error))
        case RequestFailed(code=code):
            return Unavailable(str(error), code=code, retry_after_s=_RETRY_S)
        case GroupLost():
            return Unavailable(str(error), code="failed", retry_after_s=_RETRY_S)
        case InputError():
            return from_input(error)
    return Internal("the server failed on this request; its log says why")


def from_input(error: InputError) -> BadRequest:
    """Our own messages open with the field they are about."""
    message = " ".join(str(error).split())
    field = _FIELD.match(message)
    return BadRequest(message, param=field.group(1) if field else None)


def _not_served(reason: str, message: str, retry_after_s: float | None) -> HttpError:
    if retry_after_s is None and reason != "refused":  # of one that is refused it means that asking again is no use
        retry_after_s = _RETRY_S
    match reason:
        case "refused" | "queue-full" | "expired":
            return Overloaded(message, code=reason, retry_after_s=retry_after_s)
        case "cancelled":
            return Cancelled(message)
    return Unavailable(message, code=reason, retry_after_s=retry_after_s)
