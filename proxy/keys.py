"""Who may do what: two control tokens, and one key per rollout that nothing has to store.

Every comparison takes constant time. A rollout's key is derived from the server's secret, so that all replicas which
share the secret know all keys.
"""

import hmac
import json
import os
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Literal

from pydantic import SecretStr

from proxy.clock import new_token
from proxy.model import RolloutId
from proxy.settings import Settings

ROLLOUT_KEY_PREFIX = "rk-"
Right = Literal["read", "admin"]


@dataclass(frozen=True, slots=True)
class Keys:
    """The secrets of one server."""

    admin_token: str = field(repr=False)
    read_token: str = field(repr=False)
    key_secret: str = field(repr=False)

    def rollout_key(self, rollout_id: RolloutId) -> str:
        """The key that a harness presents for this rollout: `rk-{rollout_id}-{hex}`."""
        signature = hmac.new(self.key_secret.encode(), rollout_id.encode(), sha256).hexdigest()
        return f"{ROLLOUT_KEY_PREFIX}{rollout_id}-{signature}"

    def mark(self) -> str:
        """Tells one key secret from another, and opens nothing: the signature of what no rollout can be called."""
        return hmac.new(self.key_secret.encode(), b"\0 mark", sha256).hexdigest()

    def opens_rollout(self, key: str, rollout_id: RolloutId) -> bool:
        """Whether the key is this rollout's own."""
        return _same(key, self.rollout_key(rollout_id))

    def right_of(self, token: str) -> Right | None:
        """What a control token may do; both are compared whichever matches."""
        is_admin, is_reader = _same(token, self.admin_token), _same(token, self.read_token)
        return "admin" if is_admin else "read" if is_reader else None


def rollout_named_by(key: str) -> RolloutId | None:
    """The rollout that a key speaks of, genuine or not; the id is what stands before the last hyphen."""
    if not key.startswith(ROLLOUT_KEY_PREFIX):
        return None
    name, hyphen, _signature = key.removeprefix(ROLLOUT_KEY_PREFIX).rpartition("-")
    return RolloutId(name) if hyphen and name else None


def load_keys(settings: Settings) -> tuple[Keys, bool]:
    """Secrets from the settings, else from the secrets file, else minted into it; and whether any was minted.

    Raises ValueError when the file cannot be read or holds something else, or a minted and a set token are equal.
    """
    path = settings.secrets_file
    kept = _read(path)
    named = {"admin_token": settings.admin_token, "read_token": settings.read_token, "key_secret": settings.key_secret}
    values = {
        name: _plain(secret) or kept.get(name) or new_token(name.partition("_")[0]) for name, secret in named.items()
    }
    minted = {name: value for name, value in values.items() if not _plain(named[name]) and name not in kept}
    if minted:
        _write(path, kept | minted)
    if values["admin_token"] == values["read_token"]:
        raise ValueError("admin_token and read_token must differ")
    return Keys(**values), bool(minted)


def _same(left: str, right: str) -> bool:
    return hmac.compare_digest(left.encode("utf-8", "surrogateescape"), right.encode("utf-8", "surrogateescape"))


def _plain(secret: SecretStr | None) -> str:
    return secret.get_secret_value() if secret else ""


def _read(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    try:
        values = json.loads(path.read_text())
    except OSError as error:
        remedy = "make it a file that this user may read, or name another by secrets_file"
        raise ValueError(f"{path} cannot be read ({error.strerror}): {remedy}") from error
    except ValueError:
        values = None
    if not isinstance(values, dict) or not all(isinstance(value, str) and value for value in values.values()):
        raise ValueError(f"{path} is not a secrets file: delete it or name another by secrets_file")
    return values


def _write(path: Path, values: dict[str, str]) -> None:
    fresh = path.with_name(f"{path.name}.new")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(values, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
