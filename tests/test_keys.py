"""Keys: two control tokens, and one key per rollout that nothing has to store."""

import hmac
import json
import stat
from hashlib import sha256
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from proxy import keys as keys_module
from proxy.keys import Keys, load_keys, rollout_named_by
from proxy.model import RolloutId
from proxy.record.postgres import PostgresStore
from proxy.settings import Settings
from proxy.wiring import warn_of_other_keys
from tests.postgres import PostgresServer

KEYS = Keys("admin-token", "read-token", "secret")
ROLLOUT = RolloutId("task-1")


def settings(folder: Path, **fields: object) -> Settings:
    return Settings(secrets_file=folder / "secrets.json", **fields)  # type: ignore[arg-type]


def test_a_rollout_key_is_an_hmac_of_its_id() -> None:
    """The contract's form, so that every replica with the secret knows it."""
    signature = hmac.new(b"secret", b"task-1", sha256).hexdigest()

    assert KEYS.rollout_key(ROLLOUT) == f"rk-task-1-{signature}"


@pytest.mark.parametrize(
    ("key", "named"),
    [
        ("rk-a-b-c-0123", "a-b-c"),
        ("rk-a-", "a"),
        ("rk--0123", None),
        ("rk-a", None),
        ("rk-", None),
        ("sk-a-0123", None),
        ("", None),
    ],
)
def test_a_key_names_its_rollout_before_the_last_hyphen(key: str, named: str | None) -> None:
    """Ids may hold hyphens, signatures do not."""
    assert rollout_named_by(key) == named


def test_a_rollout_is_opened_by_its_own_key_only() -> None:
    """Neither another rollout's key, nor a forged one, nor a control token."""
    own = KEYS.rollout_key(ROLLOUT)
    others = [KEYS.rollout_key(RolloutId("task-2")), own[:-1], own + "0", own.upper(), "admin-token", ""]

    assert KEYS.opens_rollout(own, ROLLOUT)
    assert not any(KEYS.opens_rollout(key, ROLLOUT) for key in others)


def test_another_secret_makes_other_keys() -> None:
    """A key of one deployment opens nothing in another."""
    assert not Keys("a", "r", "other").opens_rollout(KEYS.rollout_key(ROLLOUT), ROLLOUT)


@pytest.mark.parametrize(
    ("token", "right"),
    [("admin-token", "admin"), ("read-token", "read"), ("secret", None), ("", None), ("é\udce9", None)],
)
def test_a_token_has_its_right(token: str, right: str | None) -> None:
    """Whatever bytes a header holds, the answer is a right or none."""
    assert KEYS.right_of(token) == right


def test_every_comparison_takes_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """All go through hmac.compare_digest, and both tokens are compared whichever matches."""
    compared: list[tuple[bytes, bytes]] = []
    honest = hmac.compare_digest
    spy = lambda left, right: compared.append((left, right)) or honest(left, right)  # noqa: E731
    monkeypatch.setattr(keys_module.hmac, "compare_digest", spy)
    KEYS.right_of("admin-token")
    KEYS.opens_rollout("rk-task-1-0", ROLLOUT)

    assert [right for _, right in compared] == [b"admin-token", b"read-token", KEYS.rollout_key(ROLLOUT).encode()]


def test_secrets_are_minted_once_and_kept(tmp_path: Path) -> None:
    """A restart must not lock the harnesses out."""
    first, minted = load_keys(settings(tmp_path))
    again, minted_again = load_keys(settings(tmp_path))

    assert (minted, minted_again, first) == (True, False, again)
    assert len({first.admin_token, first.read_token, first.key_secret}) == 3


def test_the_secrets_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    """Mode 0600 from its first byte on."""
    load_keys(settings(tmp_path))

    assert stat.S_IMODE((tmp_path / "secrets.json").stat().st_mode) == 0o600


def test_set_secrets_win_and_are_not_written(tmp_path: Path) -> None:
    """What the owner keeps elsewhere stays there."""
    load_keys(settings(tmp_path))
    chosen, _ = load_keys(settings(tmp_path, admin_token="a-token-of-my-own"))

    assert chosen.admin_token == "a-token-of-my-own"
    assert "a-token-of-my-own" not in (tmp_path / "secrets.json").read_text()


@pytest.mark.parametrize("text", ["[]", '{"admin_token": 5}', "no json"])
def test_a_strange_file_stops_the_start(tmp_path: Path, text: str) -> None:
    """It is somebody's; it is not overwritten."""
    (tmp_path / "secrets.json").write_text(text)

    with pytest.raises(ValueError):
        load_keys(settings(tmp_path))
    assert (tmp_path / "secrets.json").read_text() == text


def test_a_secrets_file_that_cannot_be_read_is_told_with_what_to_do(tmp_path: Path) -> None:
    """A folder in its place, say, as a mount of a file that is missing makes it."""
    (tmp_path / "secrets.json").mkdir()

    with pytest.raises(ValueError, match=r"secrets\.json cannot be read \(Is a directory\): make it a file that"):
        load_keys(Settings(secrets_file=tmp_path / "secrets.json"))


def test_equal_tokens_stop_the_start(tmp_path: Path) -> None:
    """Also when one is set and the other was minted before."""
    (tmp_path / "secrets.json").write_text(json.dumps({"read_token": "the-very-same-token"}))

    with pytest.raises(ValueError, match="must differ"):
        load_keys(settings(tmp_path, admin_token="the-very-same-token"))


def test_no_secret_shows_in_a_repr() -> None:
    """Logs and tracebacks print values."""
    assert "token" not in repr(KEYS).replace("admin_token", "").replace("read_token", "")
    assert "secret" not in repr(KEYS)


@pytest.mark.parametrize("text", ["{", "[]", '{"admin_token": ""}', '{"admin_token": 1}'])
def test_what_is_no_secrets_file_is_named(tmp_path: Path, text: str) -> None:
    """Never read as empty, and never overwritten."""
    file = tmp_path / "secrets.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"secrets\.json is not a secrets file"):
        load_keys(Settings(engines=("http://127.0.0.1:1",), secrets_file=file))

    assert file.read_text() == text


@pytest.mark.anyio
async def test_a_proxy_with_another_secret_says_so_where_a_store_is_shared(postgres: PostgresServer) -> None:
    """Else harnesses would only see that their keys are wrong, at one proxy and not at the other."""
    store = PostgresStore(postgres.new_schema())
    await store.open()
    with capture_logs() as logs:
        for secret in ("one-secret", "one-secret", "another"):
            await warn_of_other_keys(Keys("a", "b", key_secret=secret), store)
    await store.close()

    assert [log["log_level"] for log in logs] == ["warning"]
    assert "key_secret" in logs[0]["event"]
