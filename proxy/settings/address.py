"""Where harnesses and trainers reach the proxy."""

from pathlib import Path

from pydantic import BaseModel, Field, field_validator

from proxy.settings.values import checked_url

# Where a server that listens on every address is reached from its own machine.
LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  looked up, never bound


class AddressFields(BaseModel):
    """The ports, and the address that is told."""

    host: str = Field("127.0.0.1", min_length=1, description="Address that harnesses reach.")
    port: int = Field(8080, ge=0, le=65535, description="Port that harnesses reach; 0 picks a free one.")
    control_host: str = Field("127.0.0.1", min_length=1, description="Address of the control plane's own port.")
    control_port: int | None = Field(
        None, ge=0, le=65535, description="Own port for the control plane; unset shares `port`."
    )
    control_socket: Path | None = Field(
        None, description="Unix socket (mode 0600) for the control plane instead of a port."
    )
    public_url: str | None = Field(None, description="Base URL told to harnesses where it is not host:port.")

    @field_validator("public_url")
    @classmethod
    def _public_http_url(cls, value: str | None) -> str | None:
        return value if value is None else checked_url(value)


def url_at(host: str, port: int) -> str:
    """Where this machine reaches a server that listens on an address."""
    host = LOOPBACK.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    return host in {"localhost", "::1"} or host.startswith("127.")
