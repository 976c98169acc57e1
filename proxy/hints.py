"""What somebody may have meant who asked for a route that is not served: a method, a base URL, a name nearly right."""

from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher

from starlette.routing import BaseRoute, Route

# `call` for `calls`, `trajectories` for `trajectory`; a word that only looks a little alike is none.
NEARLY = 0.75


class Map:
    """The routes that are served in one place."""

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        self._routes = tuple(route for route in routes if isinstance(route, Route))

    def methods(self, path: str) -> tuple[str, ...]:
        """Those by which a path is served; none where no route leads to it."""
        found = (route.methods or () for route in self._routes if route.path_regex.match(path))
        return tuple(sorted({method for methods in found for method in methods}))

    def hint(self, path: str) -> str:
        """The end of a sentence that says what is not served; empty where nothing is known to be meant."""
        if methods := self.methods(path):
            return f"; {' and '.join(methods)} {'are' if len(methods) > 1 else 'is'}"
        if "/v1/v1/" in path:
            return "; the base URL of Anthropic's clients ends before /v1"
        if path.endswith(("/completions", "/responses", "/models")) and "/v1/" not in path:
            return "; the base URL of OpenAI's clients ends in /v1"
        if "/v1/" in path and self.methods(path.replace("/v1/", "/", 1)):
            return "; the routes of the control plane have no /v1"
        nearest = next(self._spelled_right(path), None)
        return f"; {nearest} is" if nearest else ""

    def _spelled_right(self, path: str) -> Iterator[str]:
        """The path with its words as a route has them, for each route that has nearly those."""
        asked = path.split("/")
        for route in self._routes:
            words = route.path.split("/")
            if len(words) == len(asked) and all(map(_is_nearly, words, asked)):
                yield "/".join(one if _is_name(word) else word for word, one in zip(words, asked, strict=True))


def _is_nearly(word: str, asked: str) -> bool:
    return word == asked or _is_name(word) or SequenceMatcher(None, word, asked).ratio() >= NEARLY


def _is_name(word: str) -> bool:
    """Whether anything may stand in its place."""
    return word.startswith("{")
