"""What the setting `store` may say, and how it is told to people: without the password that may stand in it."""

from importlib.util import find_spec
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit, urlunsplit

SQLITE, POSTGRES = "sqlite:///", "postgresql://"
MASK = "**********"


def checked_store_url(value: str) -> str:
    """The URL as it is. Raises ValueError, which does not repeat it, where no store can be at it."""
    if value.startswith(SQLITE) and value != SQLITE:
        return value
    if not value.startswith(POSTGRES):
        raise ValueError(f"write {SQLITE}PATH or {POSTGRES}USER:PASSWORD@HOST/DATABASE")
    if _is_unreadable(value):
        raise ValueError(f"no {POSTGRES} URL can be read in this way; special characters in a password need %XX")
    if find_spec("psycopg") is None:
        raise ValueError(f"{POSTGRES} needs psycopg: pip install 'psycopg[binary]'")
    return value


def is_postgres(url: str) -> bool:
    return url.startswith(POSTGRES)


def sqlite_path(url: str) -> Path:
    """The file of a SQLite URL. Raises ValueError where it is another's."""
    if not url.startswith(SQLITE):
        raise ValueError(f"{shown_store_url(url)} is no file")
    return Path(url.removeprefix(SQLITE))


def shown_store_url(url: str, mask: str = "") -> str:
    """The URL less its password and its options, which can hold another; or all of it, with a mask in their place."""
    if not is_postgres(url) or (mask and not store_secrets(url)):
        return url
    parts = urlsplit(url)
    identity, at, place = parts.netloc.rpartition("@")
    user, has_password, _ = identity.partition(":")
    masked = f":{mask}" if has_password and mask else ""
    return urlunsplit((parts.scheme, f"{user}{masked}{at}{place}", parts.path, "", ""))


def store_secrets(url: str) -> tuple[str, ...]:
    """What of a URL must never be told: all of it, and its password as it stands and as it is meant."""
    if not is_postgres(url):
        return ()
    parts = urlsplit(url)
    passwords = [parts.password or "", *parse_qs(parts.query).get("password", ())]
    plain = [unquote(password) for password in passwords if password]
    told = (*filter(None, passwords), *plain, *(quote(password, safe="") for password in plain))
    return (url, *told) if told else ()


def _is_unreadable(value: str) -> bool:
    """Also where a password's own `/` or `?` may have ended the part in which a password is looked for."""
    try:
        parts = urlsplit(value)
        parts.port  # noqa: B018  reading it is what checks it
    except ValueError:
        return True
    return bool(parts.fragment) or parts.netloc.count("@") > 1 or "@" in parts.path + parts.query
