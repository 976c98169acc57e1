"""What may stand in settings of several files: URLs, lists, secrets, no limit, and the largest number."""

import json
import re
from typing import Any
from urllib.parse import SplitResult, urlsplit

from pydantic import SecretStr

SECRETS = frozenset({"admin_token", "read_token", "key_secret", "api_key"})
# Tokens travel in a header, so anything else could never be presented.
TOKEN_PATTERN = re.compile(r"[!-~]+")
LARGEST_INT32 = 2**31 - 1
# TOML has no null.
NO_LIMIT = "none"
Secret = SecretStr | None


def listed(text: str) -> Any:
    """JSON if it looks so, else what stands between the commas."""
    return json.loads(text) if text.lstrip()[:1] in {"[", "{"} else [part.strip() for part in text.split(",")]


def checked_url(value: str) -> str:
    """A base URL without its last slash; raises ValueError unless it is plain http(s)."""
    parts = urlsplit(value)
    if parts.username is not None or parts.password is not None:
        raise ValueError("a URL must not carry a user or a password")
    if parts.scheme not in {"http", "https"} or not parts.hostname or not _has_port(parts):
        raise ValueError(f"{value!r} is not an http(s) URL")
    if parts.query or parts.fragment:
        raise ValueError(f"{value!r} must not carry a query or a fragment")
    return value.rstrip("/")


def _has_port(parts: SplitResult) -> bool:
    """Whether the port, if any, is a number in range; asking for it is how urllib tells."""
    try:
        return parts.port != 0
    except ValueError:
        return False
