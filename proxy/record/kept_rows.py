"""Small things that the proxy keeps about itself: named values, changed profiles, a sign of life."""

import json
from dataclasses import asdict

from proxy import clock
from proxy.model import Profile
from proxy.record.database import Connection
from proxy.record.store import StoredProfile

_KEEP = "insert into kept values (?, ?) on conflict (name) do nothing"
_PUT_PROFILE = """
insert into profiles values (:name, :profile, :base, :changed_at)
on conflict (name) do update
set profile = excluded.profile, base = excluded.base, changed_at = excluded.changed_at
"""
_PING = "insert into pings values (1, ?) on conflict (id) do update set at = excluded.at"


def keep(connection: Connection, name: str, value: str) -> str:
    """The first value ever given under the name."""
    connection.execute(_KEEP, (name, value))
    return str(connection.execute("select value from kept where name = ?", (name,)).fetchone()[0])


def put_profile(connection: Connection, stored: StoredProfile) -> None:
    row = {
        "name": stored.profile.name,
        "profile": json.dumps(asdict(stored.profile)),
        "base": stored.base,
        "changed_at": stored.changed_at,
    }
    connection.execute(_PUT_PROFILE, row)


def read_profiles(connection: Connection) -> tuple[StoredProfile, ...]:
    rows = connection.execute("select * from profiles order by name").fetchall()
    return tuple(StoredProfile(Profile(**json.loads(row["profile"])), row["base"], row["changed_at"]) for row in rows)


def ping(connection: Connection) -> None:
    connection.execute(_PING, (clock.now(),))
