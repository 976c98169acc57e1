"""Faults as people name them on the command line: `429`, `html`, `cut:3`, `latency:0.5`."""

from collections.abc import Callable, Mapping

from proxy.sim.script import Fault

TOO_BUSY = frozenset({429, 503})
PLAIN: Mapping[str, Callable[[], Fault]] = {
    "half_json": Fault.half_json,
    "no_ids": Fault.no_ids,
    "wrong_count": Fault.wrong_count,
    "no_usage": Fault.no_usage,
    "no_logprobs": Fault.no_logprobs,
    "null_logprob": Fault.null_logprob,
    "no_finish": Fault.no_finish,
}
NUMBERED: Mapping[str, tuple[Callable[[int], Fault], int]] = {
    "html": (Fault.html, 502),
    "cut": (Fault.cut, 3),
    "abort": (Fault.abort, 4),
    "error_frame": (Fault.error_frame, 3),
}
"""With a whole number after a colon, and what it is when left out: a status, events or tokens."""
TIMED: Mapping[str, tuple[Callable[[float], Fault], float]] = {
    "latency": (Fault.stall_before_headers, 1.0),
    "slow": (Fault.slow, 0.1),
    "stall": (lambda seconds: Fault.stall(3, seconds), 5.0),
}
"""With seconds after a colon: before the headers, for each token, in the middle of the reply."""
NAMES = ("STATUS", *PLAIN, *(f"{name}[:N]" for name in NUMBERED), *(f"{name}[:SECONDS]" for name in TIMED))


def read_fault(written: str) -> Fault:
    """A fault by its name and number; raises ValueError naming those there are."""
    name, colon, number = written.partition(":")
    try:
        if name.isdigit() and not colon and 400 <= int(name) <= 599:
            return Fault.refuse(int(name)) if int(name) in TOO_BUSY else Fault.status(int(name))
        if name in PLAIN and not colon:
            return PLAIN[name]()
        if name in NUMBERED:
            make, usual = NUMBERED[name]
            return make(int(number) if colon else usual)
        if name in TIMED:
            make_timed, seconds = TIMED[name]
            return make_timed(float(number) if colon else seconds)
    except ValueError:
        pass
    raise ValueError(f"fault: {written!r} is none of {', '.join(NAMES)}")
