"""What every other file of the data speaks in: ids, and JSON objects as the wire has them."""

from typing import Any, NewType, TypeAlias

RolloutId = NewType("RolloutId", str)
CallId = NewType("CallId", str)
JsonObject: TypeAlias = dict[str, Any]
