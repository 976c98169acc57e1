"""Random cases, each drawn by its seed."""

import random
import re
from collections.abc import Sequence

from proxy.model import JsonObject
from tests.joint.case import Case, Finish, spelt
from tests.joint.engine import UnrenderableError
from tests.joint.styles import Call
from tests.joint.telling import Telling
from tests.joint.texts import WORD
from tests.joint.vocabulary import Vocabulary, vocabulary

STOP = "###STOP"


def make_case(template: str, seed: str, chance: random.Random) -> Case | None:
    """One case; None where the template has no words for the conversation that came out."""
    try:
        return _Maker(template, chance).case(seed)
    except UnrenderableError:
        return None


class _Maker(Telling):
    """The choices behind one case."""

    # --- the conversation -------------------------------------------------------------------------------------

    def case(self, seed: str) -> Case:
        history = self.history()
        prompt = self.engine.text(spelt(history, None)).rstrip()
        opens, closes = (tag.strip() for tag in self.family.style.think)
        is_open, is_closed = prompt.endswith(opens), prompt.endswith(closes)
        finish = self.finish(may_think=not is_closed)
        calls, reasoning, answer = self.turn(finish)
        reasoning = "" if is_closed else reasoning
        written, echo_answer, whole = self.written(finish, reasoning, answer, calls, is_open=is_open)
        end = self.end(finish, calls)
        echo, calls_told = self.echo(finish, reasoning, echo_answer, calls)
        new = self.after(calls_told)
        messages = (*history, *echo, *new)
        sampled = self.sample(written)
        if finish == "length in the answer" and self.is_so(0.2):
            sampled += self.vocabulary.encode("🦤")[:-1]
        if finish == "stop token":
            sampled += self.vocabulary.encode_plain(" halt")[-1:]
        if end is not None:
            sampled += (self.vocabulary.controls[end],)
        self.engine.text(spelt(messages, None))
        return Case(
            self.template, seed, self.engine, messages, len(history), len(history) + len(echo), sampled, end,
            finish, self.finish_reason(finish, calls), self.matched_stop(finish, sampled[-1:], calls),
            self.stops(finish, end, written), has_stop_ids=finish == "stop token" or self.is_so(0.05),
            knows_ends=self.is_so(0.5), reasoning=self.literals.real(reasoning), whole_echo=whole,
            literals=self.literals,
        )  # fmt: skip

    @property
    def vocabulary(self) -> Vocabulary:
        return vocabulary(self.family.all_controls)

    def history(self) -> list[JsonObject]:
        messages = list[JsonObject]()
        if self.is_so(0.5):
            messages.append({"role": "system", "content": self.content(self.texts.prose())})
        for _ in range(self.chance.choice((0, 0, 1, 2))):
            messages += [*self.asked(), *self.rounds(), self.earlier([])]
            if self.is_so(0.05):
                messages.append({"role": "system", "content": self.texts.prose()})
        return [*messages, *self.asked(), *self.rounds()]

    def rounds(self) -> list[JsonObject]:
        """Turns of calls with their results."""
        if not self.is_so(0.4 if self.family.has_tools else 0.05):
            return []
        messages = list[JsonObject]()
        for _ in range(self.chance.choice((1, 1, 2))):
            calls = self.calls()
            messages += [self.earlier(calls), *self.results(calls)]
        return messages

    def earlier(self, calls: Sequence[Call]) -> JsonObject:
        """A turn of the assistant's from before the parent's."""
        answer = "" if calls and self.is_so(0.7) else self.texts.prose()
        (message,) = self.told(self.texts.prose() if self.is_so(0.4) else "", answer, calls)
        return message

    # --- the turn ---------------------------------------------------------------------------------------------

    def finish(self, *, may_think: bool) -> Finish:
        kinds: dict[Finish, int] = {
            "natural": 60, "length at the end": 2, "length in the answer": 10, "length in reasoning": 4,
            "length in a call": 5, "stop string": 5, "stop string is the end": 4, "stop token": 3, "another end": 4,
            "end in reasoning": 3,
        }  # fmt: skip
        able = [kind for kind in kinds if may_think or "in reasoning" not in kind]
        return self.chance.choices(able, weights=[kinds[kind] for kind in able])[0]

    def turn(self, finish: Finish) -> tuple[list[Call], str, str]:
        """Calls, reasoning and answer, each possibly empty."""
        reasoning = self.texts.brief() if self.is_so(0.5) or "reasoning" in finish else ""
        if finish in ("length in the answer", "stop string", "stop token"):
            return [], reasoning, self.texts.brief()
        if "reasoning" in finish:
            return [], reasoning, ""
        wants_calls = finish == "length in a call" or self.is_so(0.45 if self.family.has_tools else 0.1)
        calls = self.calls() if wants_calls else []
        is_silent = self.is_so(0.7) if calls else self.is_so(0.06)
        return calls, reasoning, "" if is_silent else self.texts.brief()

    def written(
        self, finish: Finish, reasoning: str, answer: str, calls: Sequence[Call], *, is_open: bool
    ) -> tuple[str, str, bool]:
        """What was sampled but for its end, the answer as the engine tells it, and whether that is all of it."""
        style = self.family.style
        thought = style.reasoning(reasoning, is_open=is_open) if reasoning or is_open else ""
        match finish:
            case "length in reasoning" | "end in reasoning":
                return thought.removesuffix(style.think[1]), "", False
            case "length in the answer" | "stop token":
                return thought + style.say + answer, answer, True
            case "stop string":
                return thought + style.say + answer + STOP + self.chance.choice(("", "", " on")), answer, True
            case "length in a call":
                return self.half_called(thought, answer, calls)
            case _:
                return thought + style.answer(answer, calls), answer, True

    def half_called(self, thought: str, answer: str, calls: Sequence[Call]) -> tuple[str, str, bool]:
        """The same where the limit fell into a call, or into text behind one."""
        style = self.family.style
        said = style.say + answer + style.say_then_call if answer else ""
        block = style.all_calls(calls)
        half = block[: max(len(block) * self.chance.randrange(4, 9) // 10, len("<tool_call>") + 1)]
        half = half[: half.rfind("Zm")] if "Zm" in half[-6:] else half
        half += answer if self.is_so(0.2) else ""  # an argument that begins like the answer
        if self.is_so(0.2):  # a call that no parser understood, and text behind it
            rest = self.texts.prose()
            return thought + block + "\n" + rest, rest, True
        if self.is_so(0.5):  # vLLM leaves half a call in the text, SGLang drops it
            return thought + said + half, self.literals.neutral(answer + half, self.family.all_controls), True
        return thought + said + half, answer, False

    def end(self, finish: Finish, calls: Sequence[Call]) -> str | None:
        family = self.family
        if finish in ("length in the answer", "length in reasoning", "length in a call", "stop string", "stop token"):
            return None
        usual = self.chance.choice(family.call_ends) if calls and family.call_ends else family.text_end
        if finish == "another end":
            others = {*family.strays, family.text_end, *family.call_ends, *family.pairs.values()} - {usual}
            return self.chance.choice(sorted(others))
        return usual

    def finish_reason(self, finish: Finish, calls: Sequence[Call]) -> str:
        if finish.startswith("length"):
            return "length"
        return "tool_calls" if calls else "stop"

    def matched_stop(self, finish: Finish, last: tuple[int, ...], calls: Sequence[Call]) -> int | str | None:
        """vLLM names all but the first end token; SGLang names each, but nothing where calls were parsed."""
        if finish.startswith("length") or (self.engine.kind == "sglang" and calls):
            return None
        if finish == "stop string":
            return STOP
        if self.engine.kind == "sglang" and finish == "stop string is the end":
            return self.vocabulary.decode(last)
        is_first = last == (self.vocabulary.controls[self.family.text_end],)
        return None if not last or (self.engine.kind == "vllm" and is_first) else last[0]

    def stops(self, finish: Finish, end: str | None, written: str) -> tuple[str, ...]:
        """Those that ended the turn, and rarely others, which then were not said."""
        if finish == "stop string is the end" and end:
            return (end,)
        unmatched: tuple[str, ...] = self.chance.choice(((),) * 14 + (("\n\n",), (STOP, "\n")))
        unmatched = tuple(stop for stop in unmatched if stop not in written)
        return (STOP, *unmatched) if finish == "stop string" else unmatched

    def sample(self, written: str) -> tuple[int, ...]:
        """Ids as a model might choose them: text split anywhere, markup as control tokens, the talk of it spelt out."""
        ids: tuple[int, ...] = ()
        for piece, is_control in _pieces(written, self.family.all_controls):
            if is_control:
                ids += (self.vocabulary.controls[piece],)
                continue
            if WORD.fullmatch(piece):
                ids += self.vocabulary.encode_plain(self.literals.real(piece))
                continue
            cut = self.chance.randrange(len(piece) + 1)
            ids += self.vocabulary.encode_plain(piece[:cut]) + self.vocabulary.encode_plain(piece[cut:])
        return ids

    # --- what harnesses send back -----------------------------------------------------------------------------

    def echo(
        self, finish: Finish, reasoning: str, answer: str, calls: Sequence[Call]
    ) -> tuple[list[JsonObject], Sequence[Call]]:
        """The messages, and the calls in them."""
        if finish == "length in a call":
            calls = calls[:-1] if self.is_so(0.5) else ()
        elif calls and self.is_so(0.05):  # invalid arguments are echoed as an empty object
            calls = [*calls[:-1], (calls[-1][0], {})]
        # A template that counts messages counts a turn in two pieces twice, which the turn was not.
        if calls and answer and self.is_so(0.15) and self.template != "own_numbered":
            return [*self.told(reasoning, answer, []), *self.told("", "", calls)], calls
        return self.told(reasoning, answer, calls), calls

    # --- what is new ------------------------------------------------------------------------------------------

    def after(self, calls: Sequence[Call]) -> list[JsonObject]:
        """Results of calls, a user's words, or both."""
        if calls and self.is_so(0.9):
            results = self.results(calls)
            return [*results, *self.asked()] if self.is_so(0.25) else results
        if self.is_so(0.01):
            return []
        if self.is_so(0.04):
            return [{"role": "system", "content": self.texts.prose()}, *self.asked()]
        if self.is_so(0.03):
            return [*self.asked(), {"role": "assistant", "content": self.texts.prose()}, *self.asked()]
        if self.is_so(0.03):
            return [self.result("call_x", [])]
        if self.is_so(0.03):
            return [{"role": "user", "content": self.chance.choice(("", " ", "\n"))}]
        return self.asked()


def _pieces(text: str, controls: Sequence[str]) -> list[tuple[str, bool]]:
    """The text cut at control tokens and neutral words; whether each piece is a control token."""
    longest_first = sorted(controls, key=len, reverse=True)
    splitter = re.compile("(" + "|".join(map(re.escape, longest_first)) + "|" + WORD.pattern + ")")
    return [(piece, piece in controls) for piece in splitter.split(text) if piece]
