"""What the simulated model does in these tests: a part for each task, played with the harness's own tools.

Which part it is follows from the task in the conversation, and which turn from the replies since then. So a harness may
put examples or greetings in front, and several agents may talk to one engine at once.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proxy.sim.script import Say, ToolSay
from tests.harnesses.harness import Harness, ToolUse
from tests.harnesses.heard import Heard, heard_in, text_of

Json = dict[str, Any]
READ = "Read the note in note.txt and tell me what it says."
GREET = "Good morning to you."
"""Takes no tool."""
DELEGATE = "Let another agent read the note for you, and tell me what it says."
LOOK = "Find out what the note holds."
"""What the other agent is told."""
SECRET = re.compile(r"turquoise-\d+")
NOTE = "turquoise-41"
ANSWER = f"The note says {NOTE}."
"""Nobody can know it without having read the note."""
TORSO = "Now that I know the size I will read the note."
"""What a reply begins with that breaks off in its text."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Words, and the call that goes with them."""

    say: str
    call: ToolUse | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """Turns up to the answer, which is given once the note was read."""

    turns: tuple[Turn, ...]
    finish: Callable[[str], ToolUse] | None
    wait: Callable[[str], ToolUse] | None = None
    needs_tools: bool = True
    """Without tools a request about the task is something else, such as one for a title."""

    def turn(self, messages: Sequence[Json]) -> Turn:
        """The turn that these messages, from the task on, have led to."""
        number = turns_in(messages)
        if number < len(self.turns):
            return self.turns[number]
        told = [found for message in messages[1:] for found in SECRET.findall(text_of(message))]
        if not told:
            return Turn("I wait for the note.", self.wait(text_of(messages[-1])) if self.wait else None)
        answer = f"The note says {told[-1]}."
        return Turn(answer, self.finish(answer) if self.finish else None)


class Play:
    """The parts of a harness."""

    def __init__(self, parts: Mapping[str, Part]) -> None:
        self._parts = parts
        self.heard: list[Heard] = []
        """What each request about a task told, in order."""

    def says(self, body: Json) -> list[Say]:
        """The one turn that fits; none where the conversation is about no task of ours."""
        if (scene := self._scene(body)) is None:
            return []
        task, messages = scene
        self.heard.append(heard_in(messages))
        turn = self._parts[task].turn(messages)
        calls = (ToolSay(turn.call[0], json.dumps(turn.call[1])),) if turn.call else ()
        return [Say(turn.say, calls=calls)]

    def is_under_way(self, body: Json, task: str) -> bool:
        """Whether this request is for a later turn of the task than its first."""
        scene = self._scene(body)
        return scene is not None and scene[0] == task and turns_in(scene[1]) > 0

    def _scene(self, body: Json) -> tuple[str, Sequence[Json]] | None:
        """The task that is played, and the conversation from there on."""
        messages = body["messages"]
        for place, message in enumerate(messages):
            for task, part in self._parts.items():
                if message["role"] == "user" and task in text_of(message):
                    return (task, messages[place:]) if body.get("tools") or not part.needs_tools else None
        return None


def parts_for(harness: Harness) -> dict[str, Part]:
    """The same parts for any harness that has a shell."""
    if harness.shell is None:
        return {READ: Part(tuple(map(Turn, harness.words)), None, needs_tools=False)}
    look = (
        Turn("First its size.", harness.shell("wc -c note.txt")),
        Turn("Now the note.", harness.shell("cat note.txt")),
    )
    greeting = Turn("Good morning.", harness.finish("Good morning.") if harness.finish else None)
    parts = {
        READ: Part(look, harness.finish),
        LOOK: Part(look[1:], harness.finish),
        GREET: Part((greeting,), harness.finish),
    }
    if harness.delegate:
        parts[DELEGATE] = Part((Turn("I will ask another.", harness.delegate(LOOK)),), harness.finish, harness.wait)
    return parts


def turns_in(messages: Sequence[Json]) -> int:
    """Whole replies; some harnesses keep the torso of one that broke off, and have it gone on with."""
    return sum(message["role"] == "assistant" and not is_torso(message) for message in messages)


def is_torso(message: Json) -> bool:
    """A message that holds the beginning of the reply that breaks off, and nothing else."""
    text = text_of(message).strip()
    return bool(text) and TORSO.startswith(text) and not message.get("tool_calls")
