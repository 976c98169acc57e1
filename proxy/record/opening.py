"""Which kind of store is at a URL. The driver of one kind is loaded only where that kind is asked for."""

from proxy.record.row_store import StoreReading
from proxy.record.sqlite import SqliteReading, SqliteStore
from proxy.record.store import Store
from proxy.record.writer import Durability
from proxy.store_url import is_postgres, sqlite_path


def store_at(url: str, durability: Durability = "fsync") -> Store:
    """The store to serve from, not yet open."""
    if not is_postgres(url):
        return SqliteStore(sqlite_path(url), durability)
    from proxy.record.postgres import PostgresStore  # noqa: PLC0415  psycopg is an extra

    return PostgresStore(url, durability)


async def open_reading(url: str) -> StoreReading:
    """A store opened to look at, also while proxies serve from it.

    Raises StoreDown where nothing can be read there, StoreUnreadable where it is of another version.
    """
    reading = _reading_at(url)
    await reading.open()
    return reading


def _reading_at(url: str) -> StoreReading:
    if not is_postgres(url):
        return SqliteReading(sqlite_path(url))
    from proxy.record.postgres import PostgresReading  # noqa: PLC0415  psycopg is an extra

    return PostgresReading(url)
