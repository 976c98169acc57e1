"""Requests that were turned away before anything was drawn, so that their retries are known to repeat no call.

SDKs mark a retry whatever came of the try before it. Where that was turned away here (too many calls at once, engines
paused or unwell), an identical call that is on record is another request's: of two samples one would be an echo.
"""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from proxy.errors import ProxyError, StoreDown
from proxy.model import Ask

# Retries come within seconds; what was turned away longest ago is forgotten first.
MOST_REMEMBERED = 10_000


class Refusals:
    """How many requests were turned away and have not been asked again since."""

    def __init__(self, most: int = MOST_REMEMBERED) -> None:
        self._most = most
        self._waiting: OrderedDict[bytes, int] = OrderedDict()

    @contextmanager
    def noting(self, ask: Ask) -> Iterator[None]:
        """Remember the request where the block turns it away for now; not where something may have been written."""
        try:
            yield
        except StoreDown:
            raise
        except ProxyError as error:
            if error.may_retry:
                self._note(ask)
            raise

    def explain(self, ask: Ask) -> bool:
        """Whether a marked retry is one of a request that was turned away; each refusal explains one."""
        if not ask.identity.retry_count:
            return False
        name = _name(ask)
        waiting = self._waiting.pop(name, 0)
        if waiting > 1:
            self._waiting[name] = waiting - 1
        return waiting > 0

    def _note(self, ask: Ask) -> None:
        """One more, unless it is a retry of one that was turned away before."""
        name = _name(ask)
        waiting = self._waiting.pop(name, 0)
        self._waiting[name] = waiting if waiting and ask.identity.retry_count else waiting + 1
        if len(self._waiting) > self._most:
            self._waiting.popitem(last=False)


def _name(ask: Ask) -> bytes:
    """Retries are the same to the letter."""
    who = ask.identity
    told = [who.rollout_id, dict(who.lane_signals), who.idempotency_key, ask.api, ask.body]
    return hashlib.sha256(json.dumps(told).encode()).digest()
