"""Settings: where they come from, which win, and one clear line for each that is wrong."""

from pathlib import Path
from typing import Any

import pytest

from proxy.errors import BadAsk
from proxy.model import PINNED_FIELDS, Profile
from proxy.settings import Settings, profile_from
from proxy.settings_page import as_toml, flag_rows, page
from proxy.settings_sources import WrongSettings, load_settings

ENGINE = ("--engines", "http://a:1")
TOKEN = "a-token-of-twenty-or-more"
PAGE = Path(__file__).parent.parent / "docs" / "settings.md"

# A flag's value out of bounds or of the wrong type, and words that the one line about it must hold.
WRONG: list[tuple[str, str, tuple[str, ...]]] = [
    ("port", "-1", ("port:", "'-1'")),
    ("port", "65536", ("port:", "65535")),
    ("port", "http", ("port:", "'http'")),
    ("control-port", "65536", ("control_port:",)),
    ("public-url", "rollpin.example", ("public_url:", "http")),
    ("public-url", "http://h/?a=1", ("public_url:", "query")),
    ("public-url", "http://user:hush@h", ("public_url:", "password")),
    ("engines", "a:1", ("engines.0.url:", "'a:1'")),
    ("engines", "ftp://a", ("engines.0.url:", "http")),
    ("engines", "http://a:99999", ("engines.0.url:", "http")),
    ("engines", "http://a/#x", ("engines.0.url:", "fragment")),
    ("engines", "http://user:hush@a:1", ("engines.0.url:", "password")),
    ("engines", "http://a:1,http://a:1/v1", ("engines:", "twice")),
    ("engines", "[]", ("engines:", "at least one")),
    ("engines", "[5]", ("engines.0",)),
    ("engines", '[{"url": "http://a:1", "kind": "tgi"}]', ("engines.0.kind:",)),
    ("engines", '[{"url": "http://a:1", "weight": 0}]', ("engines.0.weight:",)),
    ("engines", '[{"url": "http://a:1", "colour": 1}]', ("engines.0.colour: no such setting",)),
    ("engines", '[{"api_key": "hush"}]', ("engines.0.url:", "required")),
    ("default-profile", "nope", ("default_profile:", "'nope'")),
    ("pin-mode", "lenient", ("pin_mode:",)),
    ("run-seed", "-1", ("run_seed:",)),
    ("run-seed", str(2**53), ("run_seed:",)),
    ("client-seed", "yes", ("client_seed:",)),
    ("missing-ids", "ignore", ("missing_ids:",)),
    ("constrained-fields", "pass", ("constrained_fields:",)),
    ("unknown-fields", "pass", ("unknown_fields:",)),
    ("reasoning-field", "Reason ing", ("reasoning_field:",)),
    ("reasoning-field", "content", ("reasoning_field:", "another field")),
    ("store", "mysql://h/db", ("store:", "sqlite:///", "postgresql://")),
    ("store", "postgresql://h:port/db", ("store:", "read")),
    ("store", "postgresql://u:12/secret@h/db", ("store:", "%XX")),
    ("store", "postgresql://u:12?secret@h/db", ("store:", "%XX")),
    ("store", "postgresql://u:12[secret@h/db", ("store:", "%XX")),
    ("store", "sqlite:///", ("store:",)),
    ("side-calls", "title", ("side_calls:",)),
    ("side-calls", '[{"has_tools": false}]', ("side_calls.0.name:", "required")),
    ("side-calls", '[{"name": "a b", "alone": true}]', ("side_calls.0.name:", "'a b'")),
    ("side-calls", '[{"name": "all"}]', ("side_calls.0:", "every call")),
    ("side-calls", '[{"name": "a", "action": "drop", "alone": true}]', ("side_calls.0.action:",)),
    ("side-calls", '[{"name": "a", "system_matches": "("}]', ("side_calls.0.system_matches:", "regular expression")),
    ("side-calls", '[{"name": "a", "signals": {"x-mine": "*"}}]', ("side_calls.0.signals:", "x-mine", "user-agent")),
    ("side-calls", '[{"name": "a", "most_messages": 0}]', ("side_calls.0.most_messages:",)),
    ("side-calls", '[{"name": "a", "colour": 1}]', ("side_calls.0.colour: no such setting",)),
    ("side-calls", '[{"name": "a", "alone": true}, {"name": "a", "has_tools": true}]', ("side_calls:", "twice")),
    ("side-calls", '[{"name": "title_call", "alone": true}]', ("side_calls:", "side_title_calls")),
    ("side-calls", '[{"name": "commit_message", "alone": true}]', ("side_calls:", "side_known_calls")),
    ("side-uncertain", "maybe", ("side_uncertain:",)),
    ("later-system", "drop", ("later_system:",)),
    ("constrained-training", "yes", ("constrained_training:",)),
    ("durability", "none", ("durability:",)),
    ("admin-token", "short", ("admin_token:", "16")),
    ("read-token", "short", ("read_token:", "16")),
    ("key-secret", "short", ("key_secret:", "16")),
    ("admin-token", "has spaces in it, and more", ("admin_token:", "ASCII")),
    ("read-token", "rk-as-the-keys-of-rollouts", ("read_token:", "rk-")),
    ("limits.body-bytes", "999", ("limits.body_bytes:",)),
    ("limits.reply-bytes", "9", ("limits.reply_bytes:",)),
    ("limits.calls-at-once", "0", ("limits.calls_at_once:",)),
    ("limits.calls-at-once-per-rollout", "0", ("limits.calls_at_once_per_rollout:",)),
    ("limits.calls-per-rollout", "0", ("limits.calls_per_rollout:",)),
    ("limits.tokens-per-rollout", "0", ("limits.tokens_per_rollout:",)),
    ("limits.rollout-ttl-s", "0", ("limits.rollout_ttl_s:",)),
    ("limits.rollout-ttl-s", "1e12", ("limits.rollout_ttl_s:",)),
    ("timeouts.pause-wait-s", "0", ("timeouts.pause_wait_s:",)),
    ("timeouts.connect-s", "0", ("timeouts.connect_s:",)),
    ("timeouts.silence-s", "0", ("timeouts.silence_s:",)),
    ("timeouts.call-s", "inf", ("timeouts.call_s:", "finite")),
    ("timeouts.orphan-grace-s", "-1", ("timeouts.orphan_grace_s:",)),
    ("timeouts.commit-wait-s", "nan", ("timeouts.commit_wait_s:",)),
    ("timeouts.lease-s", "0.5", ("timeouts.lease_s:",)),
    ("timeouts.drain-s", "-1", ("timeouts.drain_s:",)),
    ("timeouts.heartbeat-after-s", "0", ("timeouts.heartbeat_after_s:",)),
    ("timeouts.probe-s", "0", ("timeouts.probe_s:",)),
    ("timeouts.class-wait-s", "-1", ("timeouts.class_wait_s:",)),
    ("timeouts.class-patience-s", "0", ("timeouts.class_patience_s:",)),
    ("log-format", "xml", ("log_format:",)),
    ("log-level", "loud", ("log_level:",)),
    ("trust-rollout-header", "perhaps", ("perhaps: not a flag",)),
    ("profiles.train.temperature", "", ("profiles.train.temperature:",)),
    ("limits", "many", ("limits:",)),
    ("profiles", "3", ("profiles",)),
    ("profiles", '{"train": 3}', ("profiles.train:",)),
    ("profiles", '{"a b": {}}', ("profiles:", "'a b'")),
    ("profiles.train.temperature", "-1", ("profiles.train.temperature:",)),
    ("profiles.train.temperature", "2.1", ("profiles.train.temperature:",)),
    ("profiles.train.top-p", "0", ("profiles.train.top_p:",)),
    ("profiles.train.top-k", "0", ("profiles.train.top_k:", "-1 for off")),
    ("profiles.train.top-k", "-2", ("profiles.train.top_k:",)),
    ("profiles.train.min-p", "1.1", ("profiles.train.min_p:",)),
    ("profiles.train.repetition-penalty", "0", ("profiles.train.repetition_penalty:",)),
    ("profiles.train.presence-penalty", "-3", ("profiles.train.presence_penalty:",)),
    ("profiles.train.frequency-penalty", "3", ("profiles.train.frequency_penalty:",)),
    ("profiles.train.max-tokens-cap", "0", ("profiles.train.max_tokens_cap:",)),
    ("profiles.train.prefix-supply", "perhaps", ("profiles.train.prefix_supply:",)),
    ("profiles.train.model", '""', ("profiles.train.model:",)),
    ("profiles.train.colour", "red", ("profiles.train.colour: no such setting",)),
    ("resume-attempts", "-1", ("resume_attempts:", "greater than or equal to 0")),
    ("replays-at-once", "0", ("replays_at_once:", "greater than or equal to 1")),
    ("replay-tolerance", "-1", ("replay_tolerance:", "greater than or equal to 0")),
    ("audit-top-logprobs", "21", ("audit_top_logprobs:", "less than or equal to 20")),
    ("replay-sample-rate", "1.5", ("replay_sample_rate:", "less than or equal to 1")),
    ("rescore-sample-rate", "-1", ("rescore_sample_rate:", "greater than or equal to 0")),
    ("typo", "1", ("--typo: no such setting",)),
    ("limits.typo", "1", ("--limits.typo: no such setting",)),
]

# Values that are fine one by one and not together.
DISAGREEING: list[tuple[tuple[str, ...], str]] = [
    (("--control-port", "9000", "--control-socket", "c.sock"), "control_port: excludes control_socket"),
    (("--port", "9000", "--control-port", "9000"), "control_port: the same as port"),
    (("--admin-token", TOKEN, "--read-token", TOKEN), "read_token: must differ from admin_token"),
    (("--auto-register", "--host", "0.0.0.0"), "auto_register: needs a loopback host"),
]


@pytest.fixture(autouse=True)
def bare_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings but those of the test."""
    monkeypatch.chdir(tmp_path)


def wrong(*flags: str) -> tuple[str, ...]:
    """The faults of these flags."""
    with pytest.raises(WrongSettings) as caught:
        load_settings(flags)
    return caught.value.faults


@pytest.mark.parametrize(("flag", "value", "words"), WRONG)
def test_a_wrong_setting_is_one_line_that_names_it(flag: str, value: str, words: tuple[str, ...]) -> None:
    """Every bound and every type of every setting."""
    engines = () if flag == "engines" else ENGINE

    (line,) = wrong(*engines, f"--{flag}", value)

    assert "\n" not in line
    assert all(word in line for word in words), line
    assert "hush" not in line


@pytest.mark.parametrize(("flags", "start"), DISAGREEING)
def test_settings_that_exclude_each_other_are_one_line(flags: tuple[str, ...], start: str) -> None:
    """Named by the setting that is to be changed."""
    (line,) = wrong(*ENGINE, *flags)

    assert line.startswith(start)
    assert TOKEN not in line


def test_every_bounded_setting_has_a_wrong_value_in_the_table() -> None:
    """A bound that is added needs its line here."""
    tried = {flag.replace("-", "_").replace("profiles.train", "profiles.NAME") for flag, _, _ in WRONG}
    free = {"cassette", "host", "control_host", "control_socket", "media_hosts", "secrets_file"}
    switches = {
        "require_replayable",
        "capture_routed_experts",
        "prove_engines",
        "auto_register",
        "heartbeat_unstreamed",
        "hold_streams",
        "side_known_calls",
        "side_other_model",
        "side_title_calls",
    }

    assert {row.key for row in flag_rows()} - tried == free | switches


def test_switches_are_flags_with_an_opposite() -> None:
    """A flag may have to overrule the file."""
    on = load_settings([*ENGINE, "--auto-register", "--require-replayable"])
    off = load_settings([*ENGINE, "--no-auto-register"])

    assert (on.auto_register, on.require_replayable, off.auto_register) == (True, True, False)


def test_several_unknown_flags_are_a_line_each() -> None:
    """With the flag as it was written."""
    assert wrong("--typo", "1", "--hots=x", *ENGINE) == ("--typo: no such setting", "--hots=x: no such setting")


def test_all_faults_are_told_at_once() -> None:
    """Mending one after the other takes a start each."""
    faults = wrong("--port", "x", "--pin-mode", "y", "--limits.body-bytes", "1")

    assert [line.partition(":")[0] for line in faults] == ["port", "engines", "pin_mode", "limits.body_bytes"]


def test_without_an_engine_nothing_can_be_served() -> None:
    """But commands that only read need none."""
    assert wrong() == ("engines: name at least one, by --engines URL, or in rollpin.toml",)
    assert load_settings(to_serve=False).engines == ()


def test_flags_win_over_the_environment_and_this_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every level of nesting, value by value."""
    (tmp_path / "rollpin.toml").write_text(
        'port = 1\nhost = "127.0.0.2"\nrun_seed = 1\n[limits]\nbody_bytes = 1001\nreply_bytes = 10001\n'
        "calls_at_once = 1\n[profiles.train]\ntemperature = 0.1\ntop_p = 0.1\ntop_k = 1\n"
    )
    monkeypatch.setenv("ROLLPIN_PORT", "2")
    monkeypatch.setenv("ROLLPIN_HOST", "127.0.0.3")
    monkeypatch.setenv("ROLLPIN_LIMITS__BODY_BYTES", "1002")
    monkeypatch.setenv("ROLLPIN_LIMITS__REPLY_BYTES", "10002")
    monkeypatch.setenv("ROLLPIN_PROFILES__TRAIN__TEMPERATURE", "0.2")
    monkeypatch.setenv("ROLLPIN_PROFILES__TRAIN__TOP_P", "0.2")

    settings = load_settings(
        [*ENGINE, "--port", "3", "--limits.body-bytes", "1003", "--profiles.train.temperature=0.3"]
    )

    limits, train = settings.limits, settings.profiles["train"]
    assert (settings.port, settings.host, settings.run_seed) == (3, "127.0.0.3", 1)
    assert (limits.body_bytes, limits.reply_bytes, limits.calls_at_once) == (1003, 10002, 1)
    assert (train.temperature, train.top_p, train.top_k) == (0.3, 0.2, 1)


@pytest.mark.parametrize(
    "text",
    ["http://a:1,http://b:2/v1/", " http://a:1 , http://b:2", '["http://a:1", {"url": "http://b:2"}]'],
)
def test_engines_come_as_urls_or_as_json(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """In the environment and as flags alike."""
    monkeypatch.setenv("ROLLPIN_ENGINES", text)
    by_environment = load_settings()
    by_flag = load_settings(["--engines", text.strip()])
    by_flags = load_settings(["--engines", "http://a:1", "--engines", "http://b:2"])

    assert [engine.url for engine in by_environment.engines] == ["http://a:1", "http://b:2"]
    assert by_environment.engines == by_flag.engines == by_flags.engines


def test_one_engine_may_be_one_json_object(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it has a key."""
    monkeypatch.setenv("ROLLPIN_ENGINES", '{"url": "http://a:1", "api_key": "hush"}')

    (engine,) = load_settings().engines

    assert engine.api_key
    assert engine.api_key.get_secret_value() == "hush"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ROLLPIN_TYPO", "1"),
        ("rollpin_typo", "1"),
        ("ROLLPIN_PORT__X", "1"),
        ("ROLLPIN_ENGINES__0__URL", "http://a:1"),
        ("ROLLPIN_LIMIT__BODY_BYTES", "1"),
        ("ROLLPIN_SERVICE_HOST", "10.0.0.1"),
    ],
)
def test_a_variable_that_sets_nothing_is_a_fault(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """Whoever set it meant something."""
    monkeypatch.setenv(name, value)

    assert wrong(*ENGINE) == (f"{name}: no such setting",)


def test_an_empty_variable_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compose files pass on what is not set as empty text."""
    monkeypatch.setenv("ROLLPIN_RUN_SEED", "")
    monkeypatch.setenv("ROLLPIN_ADMIN_TOKEN", "")

    settings = load_settings(ENGINE)

    assert settings.run_seed is None
    assert settings.admin_token is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("port = ", "rollpin.toml: "),
        ("prot = 1", "prot: no such setting"),
        ("[limits]\ntypo = 1", "limits.typo: no such setting"),
        ("[profiles.train]\nseed = 1", "profiles.train.seed: no such setting"),
        ('port = "x"', "port: "),
        ('host = ""', "host: "),
        ('control_host = ""', "control_host: "),
        ('trust_rollout_header = "perhaps"', "trust_rollout_header: "),
        ('[profiles.train]\nmodel = ""', "profiles.train.model: "),
        ("limits = 3", "limits: "),
        ("\xff", "rollpin.toml: "),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, text: str, words: str) -> None:
    """Also one that is no TOML at all."""
    (tmp_path / "rollpin.toml").write_bytes(text.encode("latin-1"))

    (line,) = wrong(*ENGINE)

    assert line.startswith(words)
    assert "\n" not in line


def test_a_named_file_is_read_and_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By --config before ROLLPIN_CONFIG, by that before the working folder."""
    for name, port in (("rollpin.toml", 1), ("a.toml", 2), ("b.toml", 3)):
        (tmp_path / name).write_text(f"port = {port}")
    plain = load_settings(ENGINE).port
    monkeypatch.setenv("ROLLPIN_CONFIG", "a.toml")
    by_variable = load_settings(ENGINE).port
    by_flag = load_settings(ENGINE, tmp_path / "b.toml").port
    monkeypatch.setenv("ROLLPIN_CONFIG", "missing.toml")

    assert (plain, by_variable, by_flag) == (1, 2, 3)
    assert wrong(*ENGINE) == ("config: no file 'missing.toml'",)


def test_a_profile_named_in_part_keeps_its_own_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Validation goes without supplied prefixes unless it asks for them."""
    monkeypatch.setenv("ROLLPIN_PROFILES__VALIDATION__TEMPERATURE", "0.6")

    profiles = load_settings(ENGINE).profiles

    assert (profiles["validation"].temperature, profiles["validation"].prefix_supply) == (0.6, False)
    assert profiles["train"].prefix_supply is True


def test_profiles_are_given_whole_or_value_by_value() -> None:
    """Both at once would leave open which wins."""
    whole = load_settings([*ENGINE, "--profiles", '{"hot": {"temperature": 1.5}}'])
    by_value = load_settings([*ENGINE, "--profiles.hot.temperature", "1.5", "--profiles.hot.model", "policy"])

    assert whole.profiles["hot"].temperature == by_value.profiles["hot"].temperature == 1.5
    assert by_value.profiles["hot"].model == "policy"
    assert len(wrong(*ENGINE, "--profiles", "{}", "--profiles.hot.temperature", "1.5")) == 1


def test_rollouts_may_live_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """TOML has no null, so a word says it."""
    monkeypatch.setenv("ROLLPIN_LIMITS__ROLLOUT_TTL_S", "none")

    assert load_settings(ENGINE).limits.rollout_ttl_s is None


@pytest.mark.parametrize(
    "flags",
    [
        (),
        (
            "--run-seed",
            "7",
            "--media-hosts",
            "a,b",
            "--profiles.a.temperature",
            "0.5",
            "--limits.rollout-ttl-s",
            "none",
        ),
        ("--side-calls", '{"name": "a", "signals": {"user-agent": "x \\"y\\"*"}, "system_matches": "\\\\d+"}'),
        ("--control-socket", 'a "b".sock', "--trust-rollout-header", "--profiles", '{"x.1": {"max_tokens_cap": 5}}'),
    ],
)
def test_what_is_printed_gives_the_same_settings(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """So that it can be kept as the file."""
    settings = load_settings([*ENGINE, *flags])
    (tmp_path / "printed.toml").write_text(as_toml(settings))

    assert load_settings((), tmp_path / "printed.toml") == settings


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///a/b.db", "sqlite:///a/b.db"),
        ("postgresql:///db?host=/run/pg", "postgresql:///db?host=/run/pg"),
        ("postgresql://u@h:5/db?sslmode=require", "postgresql://u@h:5/db?sslmode=require"),
        ("postgresql://u:hu%2Fsh@h/db?sslmode=require", "postgresql://u:**********@h/db"),
        ("postgresql://u@h/db?password=hu%2Fsh", "postgresql://u@h/db"),
    ],
)
def test_a_stores_password_is_not_printed(url: str, shown: str) -> None:
    """Nor logged: the log masks all forms of it."""
    settings = load_settings(["--store", url], to_serve=False)

    assert settings.model_dump(mode="json")["store"] == shown
    assert settings.store == url
    assert ({"hu%2Fsh", "hu/sh"} <= set(settings.secrets())) == ("hu" in url)


@pytest.mark.parametrize("url", ["mysql://u:hush@h/db", "postgresql://u:hush@h:hush/db", "postgresql://u:hu#hush@h/db"])
def test_a_wrong_stores_password_is_not_told(url: str) -> None:
    """What is wrong may be the password itself."""
    with pytest.raises(WrongSettings) as caught:
        load_settings(["--store", url], to_serve=False)

    assert "hush" not in str(caught.value)


def test_what_is_printed_holds_no_secret() -> None:
    """Neither of the proxy nor of an engine."""
    engines = '[{"url": "http://a:1", "api_key": "hush-engine"}]'

    printed = as_toml(load_settings(["--engines", engines, "--admin-token", f"{TOKEN}1", "--key-secret", f"{TOKEN}2"]))

    assert TOKEN not in printed
    assert "hush" not in printed
    assert printed.count("**********") == 3


def test_the_page_is_what_the_program_says() -> None:
    """docs/settings.md is generated; `python -m proxy.settings_page > docs/settings.md` mends this."""
    assert PAGE.read_text() == page()


def test_a_profile_from_outside_has_every_pinned_value() -> None:
    """The settings and the core agree on what a profile is and on its defaults."""
    assert profile_from("train", {}) == Profile("train")
    assert set(profile_from("train", {}).pinned()) == set(PINNED_FIELDS)


@pytest.mark.parametrize("values", [{"temperature": "1"}, {"top_k": True}, {"temperature": 3, "top_p": 2}])
def test_a_profile_from_json_is_not_coerced(values: dict[str, Any]) -> None:
    """Text comes from environments, never from JSON; all faults stand on one line."""
    with pytest.raises(BadAsk) as caught:
        profile_from("train", values)

    assert all(name in caught.value.message for name in values)
    assert "\n" not in caught.value.message


def test_settings_cannot_be_changed_once_they_are_loaded() -> None:
    """Whatever was checked stays true."""
    with pytest.raises(ValueError, match="frozen"):
        Settings().port = 1  # type: ignore[misc]
