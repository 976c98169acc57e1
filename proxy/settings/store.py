"""Where records live, and what they survive."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, field_serializer, field_validator

from proxy.store_url import MASK, checked_store_url, shown_store_url, sqlite_path


class StoreFields(BaseModel):
    """The store, shown without its password."""

    store: str = Field(
        "sqlite:///rollpin.db",
        description="Where records live: `sqlite:///PATH`, or `postgresql://…` for several proxies.",
    )
    durability: Literal["fsync", "wal"] = Field(
        "fsync", description="fsync survives a machine crash, wal a crash of the process."
    )

    @field_validator("store")
    @classmethod
    def _known_store(cls, value: str) -> str:
        return checked_store_url(value)

    @field_serializer("store", when_used="json")
    def _without_password(self, value: str) -> str:
        return shown_store_url(value, MASK)

    @property
    def store_path(self) -> Path:
        """The SQLite file of `store`; raises ValueError where it is none."""
        return sqlite_path(self.store)
