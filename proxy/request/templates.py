"""What was learned of chat templates, for as long as this process runs: all of it is found anew when needed."""

from collections import OrderedDict

from proxy.request.joint_turn import Habits

# Template arguments come from clients, so their number has no other bound.
MOST_TEMPLATES = 1024


class Templates:
    """Habits by engine fingerprint and template arguments; the longest unused are forgotten first."""

    def __init__(self, most: int = MOST_TEMPLATES) -> None:
        self._most = most
        self._habits: OrderedDict[tuple[str, str], Habits] = OrderedDict()

    def habits(self, fingerprint: str, template_hash: str) -> Habits:
        key = (fingerprint, template_hash)
        habits = self._habits.setdefault(key, Habits())
        self._habits.move_to_end(key)
        if len(self._habits) > self._most:
            self._habits.popitem(last=False)
        return habits
