"""What a trainer may decide about assembly: which calls are beside the task, and what becomes of bent samples."""

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from proxy.trajectory.call_facts import CallFacts

Action = Literal["exclude", "label", "keep"]


@dataclass(frozen=True, slots=True)
class SideRule:
    """A kind of call that is no part of the task, or surely is; every condition that is given must hold."""

    name: str
    """Stands in the reason, as `side_rule_NAME`."""
    action: Action = "exclude"
    """Left out; labelled as one that may be a side call; or kept, whatever later rules say."""
    requested_model: str | None = None
    """A pattern with * and ? over the model name that was asked for."""
    system_contains: str | None = None
    """A piece of the leading system or developer messages, in any case."""
    system_matches: re.Pattern[str] | None = None
    """Found in those messages."""
    signals: tuple[tuple[str, str], ...] = ()
    """Lane signals by lower-case name, and a pattern over the value of each; one that was not sent matches none."""
    has_tools: bool | None = None
    most_messages: int | None = None
    """Holds where the request has no more messages than this."""
    alone: bool = False
    """Holds for a root without tools that is never continued, in a rollout where other calls have tools."""

    def matches(self, call: CallFacts, *, is_alone: bool) -> bool:
        """Whether the call is of this kind."""
        return all(
            (
                self.requested_model is None or fnmatchcase(call.requested_model or "", self.requested_model),
                self.system_contains is None or self.system_contains.lower() in call.system_text.lower(),
                self.system_matches is None or self.system_matches.search(call.system_text),
                all(name in call.signals and fnmatchcase(call.signals[name], value) for name, value in self.signals),
                self.has_tools is None or self.has_tools == call.has_tools,
                self.most_messages is None or call.message_count <= self.most_messages,
                is_alone or not self.alone,
            )
        )


# Title calls of coding agents go to the main model, in the main session, so nothing but their text tells them.
TITLE_CALL = SideRule("title_call", system_contains="title", most_messages=3, alone=True)
# What harnesses do for themselves, by their own words (Aider 0.86.2, Qwen Code 0.24.4): nothing else tells it, as the
# one has no tools in any call, and the other's agent has tools and the conversation in front.
KNOWN_CALLS = (
    SideRule("commit_message", system_contains="commit messages based on the provided diffs", has_tools=False),
    SideRule("memory_extraction", system_contains="managed memory extraction subagent"),
)
BUILT_IN = (TITLE_CALL, *KNOWN_CALLS)


@dataclass(frozen=True, slots=True)
class TrajectoryRules:
    """The choices that assembly leaves to a trainer."""

    side_rules: tuple[SideRule, ...] = BUILT_IN
    """The first that matches a call decides about it."""
    other_model_is_side: bool = True
    """Whether a lone root that asks for another model than the agent's is taken for a side call."""
    side_uncertain: Literal["keep", "drop"] = "keep"
    """What becomes of calls that look like side calls and cannot be proven to be."""
    constrained_training: Literal["keep", "mask"] = "mask"
    """Whether tokens drawn under a bent distribution are trained on."""
