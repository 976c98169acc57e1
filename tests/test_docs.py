"""What the pages promise: each is held against the program, run, or recomputed from its own text."""

import ast
import contextlib
import functools
import io
import json
import os
import re
import shlex
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest
import typer.main

from proxy import cli, errors
from proxy.canonical import canonical_json
from proxy.errors import ProxyError
from proxy.model import RolloutState
from proxy.record import faults
from proxy.request.conversation import CallNumbers, canonical_message, read_conversation
from proxy.request.seed import mint_seed, seed_from_client
from proxy.settings_page import flag_rows
from proxy.trajectory.glossary import REASONS
from tests.fakes import FakeEngine
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.served import served, settings_for

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("bench/*.md"), *ROOT.glob("deploy/**/*.md")])
README = (ROOT / "README.md").read_text()
SEEDS = (ROOT / "docs" / "seeds.md").read_text()
ERRORS = (ROOT / "docs" / "errors.md").read_text()
TESTING = (ROOT / "docs" / "testing.md").read_text()
DEPENDENCIES = (ROOT / "docs" / "dependencies.md").read_text()

pages = pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])


def block(text: str, mark: str) -> str:
    """The fenced block after a comment `<!-- mark -->`."""
    found = re.search(rf"<!-- {mark} -->\n```\w+\n(.*?)\n```", text, re.DOTALL)
    assert found, f"no block is marked {mark}"
    return found[1]


def blocks(text: str, mark: str) -> list[str]:
    return re.findall(rf"<!-- {mark} -->\n```\w+\n(.*?)\n```", text, re.DOTALL)


def table(text: str, mark: str) -> list[list[str]]:
    """The cells of the table after a comment `<!-- mark -->`, without its head."""
    lines = text.partition(f"<!-- {mark} -->\n")[2].partition("\n\n")[0].splitlines()
    assert len(lines) > 2, f"no table is marked {mark}"
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


# --- links ------------------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """The fragments that headings of a page answer to, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", without_blocks(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def without_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


@pages
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    """To a file that is there, and to a heading that it has."""
    links = re.findall(r"\]\(([^)\s]+)\)", without_blocks(page.read_text()))
    for link in [link for link in links if not re.match(r"\w+:", link)]:
        path, _, fragment = link.partition("#")
        target = (page.parent / path).resolve() if path else page

        assert target.exists(), link
        assert not fragment or fragment in anchors(target), link


def test_the_index_lists_every_page() -> None:
    """And the index is what people open first."""
    index = (ROOT / "docs" / "README.md").read_text()

    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "README.md" or f"({page.name})" in index, page.name


# --- commands ---------------------------------------------------------------------------------------------------


def shown_commands(text: str, program: str) -> list[list[str]]:
    """Every use of a program in code, in line or in a shell block, as words; what follows a pipe or a # is not its."""
    fenced = re.findall(r"^```(?:sh|bash|console)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [line for part in fenced for line in part.replace("\\\n", " ").splitlines()]
    inline = re.findall(r"`([^`\n]+)`", without_blocks(text))
    use_of = re.compile(rf"(?:\$ )?(?:\w+=\S* )*(?:\S*/)?{program}(?: (.*))?")
    uses = [use_of.fullmatch(code.strip()) for code in [*lines, *inline]]
    return [shlex.split(re.split(r" [|>#&]| #", use[1] or "")[0], posix=True) for use in uses if use]


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """The command of our command line that words name, and the words after it."""
    command: Any = typer.main.get_command(cli.app)
    rest = list(words)
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        assert rest[0] in command.commands, f"rollpin has no command {rest[0]!r}: {words}"
        command = command.commands[rest.pop(0)]
    return command, rest


def flags_of(command: Any) -> set[str]:
    own = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    settings = {name for row in flag_rows() for name in re.findall(r"--[\w.-]+", row.flag)}
    return own | {"--help"} | (settings if command.name in {"serve", "check"} else set())


@pages
def test_every_command_that_is_shown_exists(page: Path) -> None:
    """`rollpin …` with its flags."""
    for words in shown_commands(page.read_text(), "rollpin"):
        command, rest = command_of(words)
        for flag in [word.partition("=")[0] for word in rest if word.startswith("--")]:
            named = re.sub(r"^--profiles\.\w+\.", "--profiles.NAME.", flag)
            assert named in flags_of(command), f"rollpin {' '.join(words)}"


@pages
def test_every_make_target_that_is_named_exists(page: Path) -> None:
    """In the Makefile, with a line of help."""
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {word for words in shown_commands(page.read_text(), "make") for word in words[:1]}

    assert named <= targets, named - targets


def test_every_part_of_ci_is_told() -> None:
    """docs/testing.md knows what must hold."""
    parts = re.findall(r"^part \d+ (make [\w-]+)", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)

    assert parts
    for part in parts:
        assert f"`{part}`" in TESTING, part


@pages
def test_every_limit_and_timeout_that_is_named_exists(page: Path) -> None:
    """By its key."""
    named = set(re.findall(r"`((?:limits|timeouts)\.\w+)`", page.read_text()))

    assert named <= {row.key for row in flag_rows()}


def test_the_life_of_a_request_names_files_and_functions_that_are_there() -> None:
    """In its picture and in its table of where to look."""
    page = (ROOT / "docs" / "life-of-a-request.md").read_text()
    files = set(re.findall(r"(?<![\w/])(?:\w+/)*\w+\.py\b", without_links(page)))
    names = re.findall(r"`(\w+)\.(\w+)`", page.partition("## Where to look for")[2])

    assert len(files) > 20
    assert [name for name in files if not any((ROOT / base / name).is_file() for base in SOURCE_FOLDERS)] == []
    assert [name for name in names if name[1] != "py" and not hasattr(import_module(f"proxy.{name[0]}"), name[1])] == []


SOURCE_FOLDERS = ("", "proxy", "proxy/engine")


def without_links(text: str) -> str:
    return re.sub(r"\]\([^)]*\)", "]", text)


# --- dependencies -----------------------------------------------------------------------------------------------


def test_each_direct_dependency_has_a_line_and_each_line_a_dependency() -> None:
    """In the section that it belongs to."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    extras = [(extra, package) for extra, wanted in optional.items() if extra != "dev" for package in bare(wanted)]

    assert rows_of("To run") == [[package] for package in bare(project["dependencies"])]
    assert rows_of("To develop") == [[package] for package in bare(optional["dev"])]
    assert rows_of("Extras") == [[extra, package] for extra, package in extras]


def bare(requirements: list[str]) -> list[str]:
    """Names with their extras, without versions."""
    return [re.split(r"[<>=!~; ]", requirement)[0] for requirement in requirements]


def rows_of(section: str) -> list[list[str]]:
    """The quoted cells of each row in a section of docs/dependencies.md, but for its last."""
    text = DEPENDENCIES.partition(f"## {section}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip(" `") for cell in line.strip("|").split(" | ")[:-1]] for line in lines]


# --- errors and failures ----------------------------------------------------------------------------------------

SOURCES = [path for path in (ROOT / "proxy").rglob("*.py") if "sim" not in path.relative_to(ROOT).parts]
START_ERRORS = (faults.ClocksApart, faults.StoreInUse, faults.StoreLinked, faults.StoreUnreadable)


def every_kind_of(kind: type[ProxyError]) -> Iterator[type[ProxyError]]:
    for narrower in kind.__subclasses__():
        yield narrower
        yield from every_kind_of(narrower)


def class_codes() -> dict[str, type[ProxyError]]:
    """The codes that error classes have of their own."""
    kinds: list[type[ProxyError]] = [ProxyError, *every_kind_of(ProxyError)]
    return {kind.code: kind for kind in kinds if "code" in vars(kind)}


def narrower_codes() -> dict[str, set[str]]:
    """Codes given where an error is raised, with the classes that they are given to."""
    found: dict[str, set[str]] = {}
    for call in calls_in_sources():
        for keyword in call.keywords:
            if keyword.arg == "code" and isinstance(keyword.value, ast.Constant):
                found.setdefault(str(keyword.value.value), set()).add(name_of(call))
    found |= {f"rollout_{state}": {"RolloutClosed"} for state in get_args(RolloutState) if state != "open"}
    return found


def told_failures() -> dict[str, list[ast.Call]]:
    """Every kind of failure, with the calls that make it: EngineFault and Failure, kind first."""
    found: dict[str, list[ast.Call]] = {}
    for call in calls_in_sources():
        if name_of(call) in {"EngineFault", "Failure"} and call.args:
            kinds = [str(call.args[0].value)] if isinstance(call.args[0], ast.Constant) else []
            for kind in kinds or chosen_kinds(call):
                found.setdefault(kind, []).append(call)
    return found


def chosen_kinds(call: ast.Call) -> list[str]:
    """`refused` in engine/refusal.py chooses between two; turn.py passes on what a failure already has."""
    return ["context_length_exceeded", "engine_refused"] if ast.unparse(call.args[0]) == "code" else []


@functools.cache
def calls_in_sources() -> tuple[ast.Call, ...]:
    trees = (ast.parse(path.read_text()) for path in SOURCES)
    return tuple(node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call))


def name_of(call: ast.Call) -> str:
    return getattr(call.func, "id", getattr(call.func, "attr", ""))


def retry_word(*, may_retry: bool) -> str:
    return "yes" if may_retry else "no"


def test_every_error_code_is_told_and_none_besides() -> None:
    """The classes' own codes and the narrower ones, apart from what stands under failures."""
    told = {row[0].strip("`") for row in table(ERRORS, "request errors")}
    at_start = {row[0].strip("`") for row in table(ERRORS, "start errors")}

    assert at_start == {kind.code for kind in START_ERRORS}
    assert told == (set(class_codes()) | set(narrower_codes())) - at_start


def test_errors_have_the_status_and_the_retry_mark_that_the_page_says() -> None:
    """Of the class that carries the code."""
    classes = class_codes()
    narrower = narrower_codes()
    for code, status, retry, _meaning in table(ERRORS, "request errors"):
        names = narrower.get(code.strip("`"), set())
        kinds = [getattr(errors, name) for name in names] or [classes[code.strip("`")]]
        made = [kind.__new__(kind) for kind in kinds]

        assert {str(error.status) for error in made} <= set(status.split(", ")), code
        assert {retry_word(may_retry=error.may_retry) for error in made} == {retry}, code


def test_every_kind_of_failure_is_told_with_its_status_and_retry_mark() -> None:
    """As they stand where the failure is made."""
    rows = {row[0].strip("`"): row for row in table(ERRORS, "failures")}
    made = told_failures()

    assert set(rows) == set(made)
    for kind, calls in made.items():
        _kind, status, retry, _meaning = rows[kind]
        for call in calls:
            if isinstance(call.args[1], ast.Constant):
                assert str(call.args[1].value) == status, kind
            refuses = any(key.arg == "may_retry" and ast.unparse(key.value) == "False" for key in call.keywords)
            assert retry_word(may_retry=not refuses) == retry, kind


def test_the_records_page_knows_every_kind_of_failure() -> None:
    """A reader of records looks there."""
    page = (ROOT / "docs" / "records.md").read_text()
    section = page.partition("### Failure kinds")[2].partition("\n## ")[0]

    told = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", section, re.MULTILINE))

    assert set(told) == set(told_failures())
    # `rollpin rollouts why` tells each with what to do about it: proxy/trajectory/glossary.py.
    assert told == {one.word: one.meaning for one in REASONS if one.places == ("failure",)}


# --- seeds ------------------------------------------------------------------------------------------------------


def context_of(messages: list[dict[str, Any]]) -> str:
    return read_conversation(messages, {}).context


def test_the_program_of_the_seeds_page_prints_what_the_page_says() -> None:
    """Run as it stands there."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(block(SEEDS, "program"), "docs/seeds.md", "exec"), {})

    assert out.getvalue().strip() == block(SEEDS, "printed")


def test_the_worked_example_is_what_the_proxy_computes() -> None:
    """Canonical bytes, context and seeds."""
    message, context, *seeds, _draw = block(SEEDS, "printed").splitlines()
    body = json.loads(block(SEEDS, "body"))
    (asked,) = body["messages"]

    assert canonical_json(canonical_message(asked, CallNumbers())).decode() == message
    assert read_conversation([asked], body).context == context
    assert seeds == [f"{sample} {mint_seed(7, 'gsm8k-17', sample, 0, context, 0, 0)}" for sample in range(4)]


def test_the_changed_parts_give_the_seeds_of_the_page() -> None:
    """One part of the tuple at a time."""
    context = context_of(json.loads(block(SEEDS, "body"))["messages"])
    parts: dict[str, Any] = {"run_seed": 7, "group": "gsm8k-17", "sample": 0, "attempt": 0, "context": context}
    parts |= {"occurrence": 0, "choice": 0}
    rows = re.findall(r"^\| `(\w+)` `?([\w-]+)`? \| (\d+) \|$", SEEDS, re.MULTILINE)

    assert [row[0] for row in rows] == ["run_seed", "group", "attempt", "occurrence", "choice"]
    for part, text, seed in rows:
        value: Any = text if part == "group" else int(text)
        assert mint_seed(*(parts | {part: value}).values()) == int(seed), part


def test_a_clients_seed_gives_the_seeds_of_the_page() -> None:
    """Mixed in, and honoured."""
    context = context_of(json.loads(block(SEEDS, "body"))["messages"])
    mixed = [mint_seed(7, "gsm8k-17", sample, 0, context, 0, 0, 42) for sample in range(2)]

    assert f"| `mix` | {mixed[0]} | {mixed[1]} |" in SEEDS
    assert f"| `honour` | {seed_from_client(42, 0)} | refused |" in SEEDS


def test_conversations_that_the_seeds_page_calls_equal_are_and_others_are_not() -> None:
    """Each line is a list of messages."""
    equal = [[context_of(json.loads(line)) for line in part.splitlines()] for part in blocks(SEEDS, "equal")]
    (different,) = [[context_of(json.loads(line)) for line in part.splitlines()] for part in blocks(SEEDS, "different")]

    assert [len(set(contexts)) for contexts in equal] == [1, 1]
    assert len(set(different)) == len(different) == 5


@pytest.fixture(scope="module")
def engine() -> Iterator[FakeEngine]:
    """A simulated SGLang in deterministic mode."""
    with FakeEngine("sglang") as running:
        yield running


def test_a_proxy_gives_each_sample_the_seed_of_the_worked_example(engine: FakeEngine, tmp_path: Path) -> None:
    """On the wire: the engine is sent it, and the record holds it."""
    seeds = [int(line.split()[1]) for line in block(SEEDS, "printed").splitlines()[2:6]]
    body = json.loads(block(SEEDS, "body"))
    with served(settings_for(tmp_path, engine.url, run_seed=7)) as proxy:
        clients = [proxy.rollout(group="gsm8k-17", sample=sample) for sample in range(4)]
        for client in clients:
            assert client.post(body).status_code == 200

        assert [client.call()["seed"]["value"] for client in clients] == seeds
    assert [asked.body["seed"] for asked in engine.requests if "seed" in (asked.body or {})][-4:] == seeds


# --- five minutes -----------------------------------------------------------------------------------------------

STEPS = README.partition("## Five minutes to your own engine\n")[2].partition("\n## ")[0]


def step(kind: str) -> str:
    """All blocks of one language in the quick start, in order."""
    return "\n".join(re.findall(rf"```{kind}\n(.*?)```", STEPS, re.DOTALL))


@pytest.fixture
def five_minutes(engine: FakeEngine, tmp_path: Path) -> Iterator[dict[str, str]]:
    """A folder with the quick start's settings, its proxy running in it; the variables that its other steps need."""
    (tmp_path / "rollpin.toml").write_text(step("toml").replace("http://127.0.0.1:30000", engine.url))
    program = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("ROLLPIN_")}
    surroundings |= {"PATH": program, "ROLLPIN_PORT": str(free_port()), "PWD": str(tmp_path)}
    assert "rollpin serve" in step("sh").splitlines()
    proxy = subprocess.Popen(["rollpin", "serve"], cwd=tmp_path, env=surroundings, stderr=subprocess.PIPE, text=True)
    try:
        wait_until_ready(f"http://127.0.0.1:{surroundings['ROLLPIN_PORT']}/readyz", proxy)
        yield surroundings
    finally:
        proxy.terminate()
        proxy.communicate(timeout=PATIENCE_S)


def wait_until_ready(url: str, proxy: "subprocess.Popen[str]") -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up_at and proxy.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(url).status_code == 200:
                return
        time.sleep(0.05)
    proxy.kill()
    raise AssertionError(proxy.communicate()[1])


def run(command: list[str], surroundings: dict[str, str]) -> str:
    """What a program prints; it must end well."""
    done = subprocess.run(
        command, env=surroundings, cwd=surroundings["PWD"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_five_minutes_of_the_readme_work(five_minutes: dict[str, str]) -> None:
    """Its settings, its start, its trainer and harness, and its look from a shell."""
    program = step("python").replace("127.0.0.1:8080", f"127.0.0.1:{five_minutes['ROLLPIN_PORT']}")
    printed = run([sys.executable, "-c", program], five_minutes).splitlines()
    looks = [shlex.split(line) for line in step("sh").splitlines() if re.match("rollpin (rollouts|export)", line)]
    shown = [run(look, five_minutes) for look in looks]

    assert [line.split()[0] for line in printed[:4]] == ["0", "1", "2", "3"]
    assert len({line.split()[0] for line in printed[4:8]}) == 4
    assert [line.split()[0] for line in printed[8:]] == ["main"] * 4
    assert all(re.search(r" [1-9]\d* trained on$", line) for line in printed[8:])
    assert shown[0].count("finished") == 4
    assert "1 completed, 0 failed" in shown[1]
    assert "nothing to explain" in shown[2]
    assert len((Path(five_minutes["PWD"]) / "step-1-task-17.jsonl").read_text().splitlines()) == 4


# --- nothing of where this was written --------------------------------------------------------------------------

# Written apart, so that this file does not hold them.
ABSOLUTE = tuple(f"/{folder}/" for folder in ("work", "tmp", "root", "home", "Users"))
HOSTS = tuple(".".join(parts) for parts in (("pypi", "org"), ("pythonhosted", "org"), ("download", "pytorch", "org")))
WORDS = tuple("/".join(("shared", name)) for name in ("design", "facts", "vectors", "engines"))
WORDS += tuple(".".join((name, "md")) for name in ("contract", "architecture", "style", "pitfalls"))
# Paths inside containers of other people's images.
ALLOWED = {"compose.yaml": (ABSOLUTE[2] + ".cache/huggingface",)}
GENERATED = re.compile(r"\.lock$")


def text_files() -> Iterator[tuple[str, str]]:
    """Name and text of every file of the project, tracked or about to be."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    )
    for name in listed.stdout.decode().splitlines():
        path = ROOT / name
        if path.is_file() and not GENERATED.search(name):
            with contextlib.suppress(UnicodeDecodeError):
                yield name, path.read_text("utf-8")


def test_no_file_tells_where_it_was_written() -> None:
    """No absolute path of a machine, no package host, no name of a document that readers do not have."""
    found = []
    for name, text in text_files():
        rest = re.sub("|".join(map(re.escape, ALLOWED.get(name, ("\0",)))), "", text)
        found += [f"{name}: {word}" for word in (*ABSOLUTE, *HOSTS, *WORDS) if word in rest]

    assert found == []
