"""Bodies that no client would send: valid ones with something else in one or two places."""

import copy
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

Path = tuple[str | int, ...]

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def spoiled(draw: st.DrawFn, *bodies: dict[str, Any]) -> dict[str, Any]:
    """One of the bodies with up to three values changed, dropped or moved elsewhere."""
    body = copy.deepcopy(draw(st.sampled_from(bodies)))
    for _time in range(draw(st.integers(1, 3))):
        paths = list(_paths(body, ()))
        where = draw(st.sampled_from(paths))
        value = _at(body, draw(st.sampled_from(paths))) if draw(st.booleans()) else draw(JSON)
        _put(body, where, copy.deepcopy(value))
    return body


def _paths(value: Any, so_far: Path) -> Iterator[Path]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        yield (*so_far, name)
        yield from _paths(inner, (*so_far, name))


def _at(value: Any, path: Path) -> Any:
    for name in path:
        value = value[name]
    return value


def _put(body: Any, path: Path, value: Any) -> None:
    _at(body, path[:-1])[path[-1]] = value
