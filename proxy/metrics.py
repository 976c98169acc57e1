"""What one proxy process counts, for Prometheus; the only file that knows metric names.

Labels hold words from fixed lists, never ids or text of a client, so that their number stays bounded.
"""

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

COMPLETED = "completed"
# A whole agent turn may take minutes; a first token should take seconds.
CALL_BUCKETS_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
FIRST_EVENT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
# A commit is a millisecond on a good disk; what matters is how far its tail reaches.
COMMIT_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5, 30)
# From rounding alone up to weights that have nothing to do with each other.
MISMATCH_BUCKETS = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.05, 0.1, 0.5, 1, 5, 10)

REGISTRY = CollectorRegistry()

_calls = Counter(
    "rollpin_calls", "Calls that ended: completed, or the kind of their failure.", ["outcome"], registry=REGISTRY
)
_tokens = Counter(
    "rollpin_tokens", "Tokens of calls that ended, as prompt and as completion.", ["kind"], registry=REGISTRY
)
_late = Counter("rollpin_late_results", "Results that came after their rollout was closed.", registry=REGISTRY)
_collapsed = Counter("rollpin_collapsed_groups", "Groups of which two samples drew the same reply.", registry=REGISTRY)
_prefixes = Counter(
    "rollpin_prefix",
    "Exact prefixes of calls that ended: supplied, unproven, refused, or none to supply; and why.",
    ["outcome", "reason"],
    registry=REGISTRY,
)
_replays = Counter("rollpin_replays", "Replayed calls by their verdict.", ["verdict"], registry=REGISTRY)
_disturbed = Counter(
    "rollpin_class_disturbed", "Calls that waited too long for a batch of their own class and ran.", registry=REGISTRY
)
_rescores = Counter("rollpin_rescores", "Rescored calls by what came of them.", ["result"], registry=REGISTRY)
_rescore_difference = Histogram(
    "rollpin_rescore_difference",
    "Mean absolute difference of a rescored call's logprobs from the recorded ones, in nats.",
    registry=REGISTRY,
    buckets=MISMATCH_BUCKETS,
)
_rescore_k3 = Histogram(
    "rollpin_rescore_kl_k3",
    "Estimated KL per token from the recorded policy to the present one, of a rescored call.",
    registry=REGISTRY,
    buckets=MISMATCH_BUCKETS,
)
_in_flight = Gauge("rollpin_calls_in_flight", "Calls between reservation and record.", registry=REGISTRY)
_call_s = Histogram(
    "rollpin_call_seconds", "Duration of a call, commit included.", registry=REGISTRY, buckets=CALL_BUCKETS_S
)
_first_event_s = Histogram(
    "rollpin_first_event_seconds",
    "From the request to the engine's first event.",
    registry=REGISTRY,
    buckets=FIRST_EVENT_BUCKETS_S,
)
_commit_s = Histogram(
    "rollpin_commit_seconds", "Duration of a record's commit.", registry=REGISTRY, buckets=COMMIT_BUCKETS_S
)


def call_ended(kind: str, prompt_tokens: int, completion_tokens: int, seconds: float) -> None:
    """Count a call that ended; `kind` is COMPLETED or the kind of its failure."""
    _calls.labels(kind).inc()
    _tokens.labels("prompt").inc(prompt_tokens)
    _tokens.labels("completion").inc(completion_tokens)
    _call_s.observe(seconds)


def prefix_ended(outcome: str, reason: str) -> None:
    """Count what became of a call's exact prefix."""
    _prefixes.labels(outcome, reason).inc()


def late_result() -> None:
    """Count a result whose rollout was closed meanwhile."""
    _late.inc()


def group_collapsed() -> None:
    """Count a group whose samples came out the same."""
    _collapsed.inc()


def replayed(verdict: str) -> None:
    """Count a verdict."""
    _replays.labels(verdict).inc()


def class_disturbed() -> None:
    """Count a call that ran beside calls of another sampling class."""
    _disturbed.inc()


def rescored(result: str, difference: float | None, k3: float | None) -> None:
    """Count a rescore; what was not compared is None."""
    _rescores.labels(result).inc()
    if difference is not None and k3 is not None:
        _rescore_difference.observe(difference)
        _rescore_k3.observe(k3)


def in_flight(delta: int) -> None:
    """Move the number of calls in flight."""
    _in_flight.inc(delta)


def first_event(seconds: float) -> None:
    """Observe how long a client's first event took."""
    _first_event_s.observe(seconds)


def commit(seconds: float) -> None:
    """Observe how long a commit took."""
    _commit_s.observe(seconds)


def exposition() -> tuple[bytes, str]:
    """All metrics as text, and its media type."""
    return generate_latest(REGISTRY), CONTENT_TYPE_LATEST
