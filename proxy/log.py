"""The log: one line per event on stderr, from our own code and from the libraries alike.

Secrets are masked here, last, whoever logs them: values under telling keys, texts of a secret's form, and the texts
that the caller names. Bodies and token ids are never logged.
"""

import logging
import re
import sys
from collections.abc import Iterable
from typing import Literal, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

MASK = "**********"
SECRET_KEYS = ("authorization", "token", "secret", "api_key", "key_secret", "admin_token", "read_token", "password")
# Bearer headers, rollout keys (rk-ID-HEX) and minted tokens (admin-HEX, read-HEX, key-HEX), wherever they stand.
SECRET_FORM = re.compile(r"(?i:bearer )\S+|\brk-\S+-[0-9a-f]{64}\b|\b(?:admin|read|key)-[0-9a-f]{64}\b")
# Libraries that tell at level info of every request, or of what we tell ourselves.
CHATTY = ("httpx", "httpcore", "aiohttp.access", "uvicorn.access", "uvicorn.error")


def start_log(
    form: Literal["console", "json"], level: str, *, secrets: Iterable[str] = (), stream: TextIO | None = None
) -> None:
    """Send structlog and the standard library's log to `stream` (stderr), at `level` and above."""
    target = stream or sys.stderr
    common = _common(_Masked(secrets))
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=common,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _renderer(form, target)],
    )
    handler = logging.StreamHandler(target)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in CHATTY:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *common,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )


def _common(masked: Processor) -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        structlog.stdlib.ExtraAdder(),
        _plain,
        masked,
    ]


def _plain(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Without uvicorn's second copy of its message, which has colours in it."""
    event.pop("color_message", None)
    return event


def _renderer(form: Literal["console", "json"], stream: TextIO) -> Processor:
    if form == "json":
        return structlog.processors.JSONRenderer()
    return structlog.dev.ConsoleRenderer(colors=stream.isatty())


class _Masked:
    """Puts a mask in the place of every secret."""

    def __init__(self, secrets: Iterable[str]) -> None:
        named = sorted({re.escape(secret) for secret in secrets if secret}, key=len, reverse=True)
        self._named = re.compile("|".join(named)) if named else None

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        return {key: self._value(str(key), value) for key, value in event.items()}

    def _value(self, key: str, value: object) -> object:
        if key.startswith("_"):  # structlog's own, such as the record of another library
            return value
        return MASK if key.lower() in SECRET_KEYS else self._mask(value)

    def _mask(self, value: object) -> object:
        match value:
            case str():
                hidden = SECRET_FORM.sub(MASK, value)
                return self._named.sub(MASK, hidden) if self._named else hidden
            case dict():
                return self({}, "", value)
            case list() | tuple():
                return [self._mask(item) for item in value]
            case None | bool() | int() | float():
                return value
            case _:
                return self._mask(str(value))
