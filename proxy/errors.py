"""Everything that can go wrong on the way to an answer, and what a caller is told.

ProxyError                     status  code
├── BadAsk                     400     invalid_request (or a narrower code)
│   ├── PinViolated            400     pin_violated
│   └── SeedCollision          400     group_seed_collision
├── WrongKey                   401     invalid_api_key
├── Forbidden                  403     forbidden
├── NotFound                   404     not_found (or a narrower code)
├── Conflict                   409     conflict
├── RolloutClosed              410     rollout_closed
├── BodyTooLarge               413     body_too_large
├── HeadersTooLarge            431     headers_too_large
├── Busy                       429     too_many_calls
├── LimitReached               429     rollout_limit
├── EngineFault                4xx-5xx engine_… (kind of the failure that is recorded with the call)
├── EngineNotControllable      502     engine_not_controllable
├── EngineUnready              503     engine_unready
├── ProfileRefused             503     profile_refused
├── TakenOver                  503     draw_taken_over
└── StoreDown                  503     store_unavailable (StoreInUse and the like at the start: record/faults.py)

A failed exchange with an engine is not an exception at the edge: it is recorded as a Failure and told to the client
from that record.
"""

from typing import Any


class ProxyError(Exception):
    """Base of all: a status, a stable code, and a sentence for whoever reads it."""

    status = 500
    code = "internal_error"
    error_type = "server_error"
    retry_after_s: int | None = None

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or type(self).code

    @property
    def may_retry(self) -> bool:
        """Whether the same request can succeed later; if not, SDKs are told so by x-should-retry."""
        return self.status in {429, 502, 503, 504}


class BadAsk(ProxyError):
    """The caller sent something that no retry mends."""

    status = 400
    code = "invalid_request"
    error_type = "invalid_request_error"


class PinViolated(BadAsk):
    """pin_mode is strict and the client asked for another value than the profile's."""

    code = "pin_violated"

    def __init__(self, field: str, asked: Any, allowed: Any) -> None:
        super().__init__(f"{field}: asked {asked!r}, allowed {allowed!r} (pin_mode is strict)", param=field)


class SeedCollision(BadAsk):
    """Another sample of the group already used this client seed on the same conversation."""

    code = "group_seed_collision"


class WrongKey(ProxyError):
    """No key, or one that does not belong here."""

    status = 401
    code = "invalid_api_key"
    error_type = "authentication_error"


class Forbidden(ProxyError):
    """A valid token that may not do this."""

    status = 403
    code = "forbidden"
    error_type = "permission_error"


class NotFound(ProxyError):
    """No such rollout, call, model or route."""

    status = 404
    code = "not_found"
    error_type = "invalid_request_error"


class Conflict(ProxyError):
    """The name is taken, now and for ever."""

    status = 409
    code = "conflict"
    error_type = "invalid_request_error"


class RolloutClosed(ProxyError):
    """The rollout was finished, deleted or has expired."""

    status = 410
    code = "rollout_closed"
    error_type = "invalid_request_error"


class BodyTooLarge(ProxyError):
    """The request body is over limits.body_bytes."""

    status = 413
    code = "body_too_large"
    error_type = "invalid_request_error"


class HeadersTooLarge(ProxyError):
    """URL and headers of a request are longer than proxy/headers.py allows."""

    status = 431
    code = "headers_too_large"
    error_type = "invalid_request_error"


class Busy(ProxyError):
    """More calls at once than the limits allow."""

    status = 429
    code = "too_many_calls"
    error_type = "rate_limit_error"
    retry_after_s = 1


class LimitReached(ProxyError):
    """The rollout has used up what it may; waiting does not help."""

    status = 429
    code = "rollout_limit"
    error_type = "rate_limit_error"

    @property
    def may_retry(self) -> bool:
        return False


class EngineFault(ProxyError):
    """The exchange with an engine failed; `code` is the kind that is recorded."""

    error_type = "server_error"

    def __init__(
        self,
        code: str,
        status: int,
        message: str,
        *,
        param: str | None = None,
        may_retry: bool = True,
        retry_after_s: int | None = None,
        engine_status: int | None = None,
        detail: str | None = None,
    ) -> None:
        super().__init__(message, code=code, param=param)
        self.detail = detail
        """For whoever runs the proxy: addresses and causes that are no business of a harness."""
        self.engine_status = engine_status
        self.status = status
        self.retry_after_s = retry_after_s
        self._may_retry = may_retry
        if status < 500:
            self.error_type = "invalid_request_error"

    @property
    def in_full(self) -> str:
        """With the detail: for the log, and for routes of the control plane."""
        return f"{self.message}: {self.detail}" if self.detail else self.message

    @property
    def may_retry(self) -> bool:
        return self._may_retry


class EngineNotControllable(ProxyError):
    """An engine does not obey a trainer's order: it refuses, or has no such endpoint."""

    status = 502
    code = "engine_not_controllable"

    @property
    def may_retry(self) -> bool:
        return False


class EngineUnready(ProxyError):
    """No engine has answered its probe yet, or none may serve this profile."""

    status = 503
    code = "engine_unready"
    retry_after_s = 2


class ProfileRefused(ProxyError):
    """No engine can honour the rollout's profile; only its owner can mend that."""

    status = 503
    code = "profile_refused"

    @property
    def may_retry(self) -> bool:
        return False


class TakenOver(ProxyError):
    """A call was given up for dead and its draw tried again: what its first try brings is no longer the call's."""

    status = 503
    code = "draw_taken_over"
    retry_after_s = 1


class StoreDown(ProxyError):
    """The record cannot be written, so nothing may be acknowledged."""

    status = 503
    code = "store_unavailable"
    retry_after_s = 2


def openai_error(error: ProxyError) -> dict[str, Any]:
    """The error body that OpenAI-form clients expect."""
    return {
        "error": {
            "message": error.message,
            "type": error.error_type,
            "param": error.param,
            "code": error.code,
        }
    }


def error_headers(error: ProxyError) -> dict[str, str]:
    """Headers that keep SDKs from retrying what cannot succeed, and pace those that may."""
    headers = {} if error.may_retry else {"x-should-retry": "false"}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(error.retry_after_s)
    return headers
