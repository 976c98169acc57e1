"""`rollpin sim`: one simulated engine as a process, until Ctrl-C or SIGTERM."""

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from proxy.sim.engine import Kind, Recurring
from proxy.sim.faults import read_fault
from proxy.sim.scenario import load_scenario
from proxy.sim.server import SimEngine
from proxy.sim.sglang.endpoints import VERSION as SGLANG_VERSION
from proxy.sim.vllm.endpoints import VERSION as VLLM_VERSION

NAMES = {"sglang": f"SGLang {SGLANG_VERSION}", "vllm": f"vLLM {VLLM_VERSION}"}

# How many of the newest requests `/_sim/requests` tells; it may run for days.
REQUESTS_KEPT = 100


@dataclass(frozen=True, slots=True)
class SimOptions:
    """What the command line asks for."""

    kind: Kind
    host: str
    port: int
    model: str
    scenario: str | None
    faults: Sequence[str]
    every: int | None
    """Faults come back with every so many calls; None gives one to each of the first calls."""
    token_delay_s: float
    max_model_len: int
    deterministic: bool
    dev_mode: bool


def serve_sim(options: SimOptions, tell: Callable[[str], None]) -> int:
    """Serve; the exit status is 1 when a request has killed the engine. Raises ValueError and OSError at the start."""
    engine = _engine(options)
    # As the proxy does: Ctrl-C counts as well where a script's `&` has had it ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        engine.start()
        for line in _greeting(options, engine.url):
            tell(line)
        engine.wait()
    except KeyboardInterrupt:
        engine.stop()
        return 0
    tell(f"dead: a request killed it, as it would have killed {NAMES[options.kind]}")
    return 1


def _engine(options: SimOptions) -> SimEngine:
    faults = tuple(read_fault(written) for written in options.faults)
    engine = SimEngine(
        options.kind,
        deterministic=options.deterministic,
        token_delay_s=options.token_delay_s,
        max_model_len=options.max_model_len,
        model=options.model,
        dev_mode=options.dev_mode,
        host=options.host,
        port=options.port,
        scenario=load_scenario(options.scenario) if options.scenario else None,
        recurring=Recurring(faults, options.every) if options.every else None,
        keep_requests=REQUESTS_KEPT,
    )
    if not options.every:
        engine.script(*faults)
    return engine


def _greeting(options: SimOptions, url: str) -> list[str]:
    """What it is, what it says and where it listens."""
    says = f"the scenario {options.scenario}" if options.scenario else "a toy model's few words"
    how_often = f"with every {options.every}. call" if options.every else "one for each of the first calls"
    return [
        f"A SIMULATION of {NAMES[options.kind]}: no model and no GPU, the tokens are toys.",
        f"  says    {says}, as model {options.model}",
        *([f"  faults  {' '.join(options.faults)}, {how_often}"] if options.faults else []),
        f"ready {url}",
    ]
