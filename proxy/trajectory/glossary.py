"""Every reason that keeps tokens out of training or begins a branch: what it means, and what to do about it.

The one place for both: `rollpin rollouts why` tells them, and docs/trajectories.md and docs/records.md are checked
against it. A meaning completes "… since"; a remedy is an advice, or says that none is needed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

Place = Literal[
    "excluded",
    "branch",
    "trajectory",
    "fork",
    "link",
    "parent",
    "unresolved",
    "prefix",
    "failure",
    "masked",
    "doubtful",
]
FINE = "nothing: this is as it should be"
PLACEHOLDERS = ("NAME", "REASON")


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason word, as it stands in documents."""

    places: tuple[Place, ...]
    word: str
    """In capitals: what varies. `side_rule_NAME` stands for every word that begins with `side_rule_`."""
    meaning: str
    remedy: str

    def filled(self, word: str) -> "Reason":
        """The entry for one word of a pattern, with what varies put in."""
        for placeholder in PLACEHOLDERS:
            if self.word.endswith(placeholder):
                varies = word.removeprefix(self.word.removesuffix(placeholder))
                return replace(self, word=word, meaning=self.meaning.replace(placeholder, f"`{varies}`"))
        return self

    def stands_for(self, word: str) -> bool:
        """Whether this is the word's own entry, or a pattern that it follows."""
        stem = next((self.word.removesuffix(one) for one in PLACEHOLDERS if self.word.endswith(one)), None)
        return word == self.word if stem is None else word.startswith(stem)


def _reasons(*places: Place, **told: tuple[str, str]) -> Iterator[Reason]:
    for word, (meaning, remedy) in told.items():
        yield Reason(places, word, meaning, remedy)


REASONS: tuple[Reason, ...] = (
    *_reasons(
        "excluded",
        no_outcome_yet=(
            "it is running, or its end is not yet known",
            "wait until it has ended; a lease that lapses makes it `proxy_died`",
        ),
        late=(
            "its result came after the rollout was closed",
            "finish the rollout only after the harness has ended, or give it a longer `ttl_s`",
        ),
        missing_ids=(
            "its ids or logprobs are not whole",
            "see `capture.gaps` of the call; something between strips them, or the engine cannot return them",
        ),
    ),
    *_reasons(
        "excluded",
        "branch",
        side_rule_NAME=(
            "the side-call rule NAME matches",
            "if such calls are part of the task, switch the rule off or make it narrower: setting `side_calls`",
        ),
        side_other_model=(
            "it is a lone call that asks for another model than the agent's",
            "if such calls are part of the task, set `side_other_model = false`",
        ),
        maybe_side=(
            "it may be a side call, and `side_uncertain` is `drop`",
            'set `side_uncertain = "keep"`, or write a rule that tells such calls apart',
        ),
        unused_choice=("another choice of the request is the path", FINE),
        retried=("nobody got the reply, and it was asked for again", FINE),
    ),
    *_reasons(
        "branch",
        unresolved_REASON=(
            "it begins with a call whose parent was not found (REASON)",
            "see that reason; a header that names the lane keeps such calls trainable",
        ),
        constrained=(
            "all that it generated was drawn under a bent distribution",
            (
                "let the harness not force tools or formats, drop such fields (`constrained_fields`), or set "
                '`constrained_training = "keep"`'
            ),
        ),
        no_generated_tokens=("its own calls generated nothing", FINE),
    ),
    *_reasons(
        "branch",
        "trajectory",
        missing_ids=(
            "a reply of the rollout came without whole ids, and `missing_ids` is `mask`",
            "see `capture.gaps` of the excluded call: the engine cannot return ids, or something strips them",
        ),
        rollout_expired=("the rollout's time ran out", "give it a longer `ttl_s`, and finish it in time"),
    ),
    *_reasons(
        "trajectory",
        no_calls=(
            "the harness made no call",
            "see that the harness uses the rollout's `base_url`, and its own log",
        ),
        side_calls_only=(
            "every usable call is a side call",
            "see the rules that matched: one may be too wide",
        ),
    ),
    *_reasons(
        "fork",
        second_child=("another call goes on from the same parent, and that one's branch owns it", FINE),
        other_lane=("it is another agent's, which takes none of its parent's tokens for its own", FINE),
    ),
    *_reasons(
        "link",
        extends=("its prompt begins with its parent's tokens", FINE),
    ),
    *_reasons(
        "link",
        "unresolved",
        by_tokens=("it was found by tokens alone: the prompt begins with those of one earlier call of its lane", FINE),
    ),
    *_reasons(
        "fork",
        "link",
        not_extending=(
            "its prompt was tokenised anew and does not begin with its parent's tokens",
            (
                "supply exact prefixes (`prefix_supply`); where they are on, the reason of the prefix tells "
                "what stood in the way"
            ),
        ),
        parent_REASON=("the parent is excluded (REASON)", "see what is told of the parent"),
        parent_not_kept=("the parent is a side call, an unused choice or a retry", FINE),
    ),
    *_reasons(
        "masked",
        constrained=(
            "they were drawn under a bent distribution",
            (
                "let the harness not force tools or formats, drop such fields (`constrained_fields`), or set "
                '`constrained_training = "keep"`'
            ),
        ),
    ),
    *_reasons(
        "doubtful",
        maybe_side=(
            "it looks like a side call, and cannot be proven to be one",
            'write a rule that tells (`side_calls`), or set `side_uncertain = "drop"`',
        ),
        side_rule_NAME=(
            "the side-call rule NAME matches, and its action is to label, or the call named no model",
            'let the rule exclude such calls, or set `side_uncertain = "drop"`',
        ),
    ),
    *_reasons(
        "parent",
        first_turn=("no assistant has spoken yet", FINE),
        foreign_history=("no call of this rollout said its assistant turns: worked examples, greetings", FINE),
        plain_prompt=("it is a prompt of the completions API, which has no turns to find a parent by", FINE),
        one_match=("exactly one earlier call said what it goes on from", FINE),
        same_tokens=("several earlier calls said it, equal in every token", FINE),
        no_match=(
            "no earlier call said what it goes on from: the harness rewrote its history, or lost a turn",
            "compare its `messages` with the `message` of the calls before it; let the harness echo turns as they came",
        ),
        ambiguous=(
            "several earlier calls said it, and they differ in tokens",
            "let the harness echo tool-call ids and reasoning, which tell such replies apart",
        ),
    ),
    *_reasons(
        "prefix",
        off_in_profile=("the profile's `prefix_supply` is off", "set `prefix_supply = true` in the profile"),
        parent_without_ids=("the parent's own ids are not whole", "see what is told of the parent"),
        engine_ignores_ids=(
            "the engine takes no exact prompts: too old, or behind a router that drops the field",
            "see docs/prefixes.md for the versions that do, and ask the engine without the router",
        ),
        another_tokenizer=(
            "the parent was drawn by an engine of another fingerprint, or this one does not tell",
            "serve one model, tokenizer and template on all engines of a pool",
        ),
        vocabulary_unknown=(
            "SGLang does not tell its vocabulary, and an id outside of it would kill it",
            "see `GET /engines`, and the engine's version",
        ),
        tools_hidden=(
            "the parent's `tool_choice` named a tool, and SGLang then shows the model no other",
            "let the harness name no tool, or offer that one alone",
        ),
        id_out_of_vocabulary=(
            "an id is not one of the engine's",
            "serve one model, tokenizer and template on all engines of a pool",
        ),
        continues_final_message=("the request asks for its last message to be continued", FINE),
        media=("the conversation holds images or audio: ids alone do not hold them", FINE),
        nothing_new=("the request ends with the reply that it echoes", FINE),
        assistant_after_parent=(
            "an assistant message that no call said stands behind the parent's turn",
            "let the harness echo turns as they came",
        ),
        nothing_sampled=("the parent sampled no token", FINE),
        cut_in_reasoning=(
            "the parent's turn broke off in its reasoning",
            "raise what cut it: the harness's `max_tokens`, or `max_tokens_cap` of the profile",
        ),
        cut_in_call=(
            "the parent's turn broke off in a tool call",
            "raise what cut it: the harness's `max_tokens`, or `max_tokens_cap` of the profile",
        ),
        cut_not_in_answer=(
            "the parent's turn broke off where its echo does not show it",
            "raise what cut it: the harness's `max_tokens`, or `max_tokens_cap` of the profile",
        ),
        another_end=(
            "the parent's turn ended with a token that the template does not end such a turn with",
            "check the chat template against the model's end tokens",
        ),
        turn_not_rendered=("the template does not print the parent's turn at all", "check the chat template"),
        tail_depends_on_history=(
            "the tail changes with what stands before the turn, in a way that cannot be settled",
            "check the chat template",
        ),
        new_message_not_rendered=(
            "the template leaves a new message out, or prints it elsewhere",
            "check the chat template",
        ),
        new_message_altered=(
            "the template prints a new message otherwise than as it is, trimmed or as JSON",
            "check the chat template",
        ),
        text_not_split=("the tokenizer's text of the tail cannot be told from what stands before it", FINE),
        template_refuses=(
            "the template raises on this conversation",
            "see the detail, which has its words, and what the harness sends",
        ),
        too_many_texts=("the new messages hold more texts than can be told apart in a render", FINE),
        sentinel_in_request=("all words that could stand in occur in the request", FINE),
        render_failed=(
            "the engine did not answer `/tokenize` or `/detokenize`",
            "see the detail, and the engine's load",
        ),
        other_ids_came_back=(
            "the ids were sent, and those that came back are others",
            "see that the engine reads the prompt ids of chat requests, and that nothing in between drops them",
        ),
        no_ids_came_back=(
            "the ids were sent, and none came back to prove that they were taken",
            "see `capture.gaps` of the call; something between strips them, or the engine cannot return them",
        ),
    ),
    *_reasons(
        "failure",
        engine_refused=(
            "the engine answered 4xx",
            "see `failure.message`: the harness asked what the engine cannot do",
        ),
        context_length_exceeded=(
            "the engine answered 4xx because prompt and reply do not fit its context",
            "let the harness compact earlier, or serve a longer context",
        ),
        engine_busy=("the engine answered 429 or 503", "fewer calls at once, or more engines"),
        engine_error=(
            (
                "the engine answered 5xx, refused the proxy's own credentials, sent an error inside its stream, "
                "or ended the reply with one"
            ),
            "see `failure.message` and the engine's log",
        ),
        engine_malformed=(
            "the engine's answer is not what its API promises: HTML, half a JSON document",
            "see what stands between proxy and engine",
        ),
        engine_unreachable=("no connection, or none in time", "see that the engine runs and its URL is right"),
        engine_cut=("the connection, or the stream, ended before the reply did", "see the engine's log for a crash"),
        engine_unconfirmed=(
            "another server may have answered than the one that the call was planned for",
            "see the log for `engine changed`: an engine was replaced behind its URL",
        ),
        engine_stalled=(
            "the engine fell silent for longer than its timeout",
            "see the engine's load, or raise `timeouts.silence_s`",
        ),
        engine_aborted=(
            "the engine ended the reply by an abort of its own, and it was not resumed",
            "see who aborts or pauses the engine",
        ),
        resume_failed=(
            "the parts of an interrupted reply do not make one message",
            "none: the harness may ask again; update weights between replies where it happens often",
        ),
        engines_paused=(
            "a trainer had paused the engines, and they were not resumed in time",
            "resume within the lease of `POST /pause`, or renew it; see `timeouts.pause_wait_s`",
        ),
        reply_too_large=("the reply is over `limits.reply_bytes`", "raise the limit, or cap the reply's length"),
        missing_ids=(
            "the reply's ids, logprobs and counts do not agree, and `missing_ids` is `fail`",
            "see `failure.message`; something between strips them, or the engine cannot return them",
        ),
        call_timeout=("the call took longer than `timeouts.call_s`", "raise the timeout, or cap the reply's length"),
        sibling_failed=(
            "another choice of the same request failed; this one was cut, or had even ended, and fails with it",
            "see the choice that failed",
        ),
        client_gone=(
            "every client left, and the grace for a return is over",
            "raise the harness's timeout, or `timeouts.orphan_grace_s`",
        ),
        token_budget_spent=(
            (
                "the rollout had no tokens left to generate: no engine was asked, and the client got an empty reply "
                "that ended by `length`"
            ),
            "give the rollout a larger `token_budget`",
        ),
        internal_error=("the proxy itself failed in this call; its log says how", "report it, with the log"),
        store_unavailable=(
            (
                "the reply came whole, but the store could not keep it for `timeouts.commit_wait_s`; the client was "
                "told so, and this was written once the store could. With several proxies also: the engine's weights "
                "could not be looked up"
            ),
            "see the disk that the store is on",
        ),
        cassette_departure=(
            "a cassette was played, which leaves no record: never found in a store",
            "ask as the recorded run did, or record it anew",
        ),
        proxy_stopped=("the proxy was told to stop while the call ran", "none: the harness may ask again"),
        proxy_died=(
            "the proxy ended before it recorded an outcome: found when its lease lapsed or the store was opened again",
            "see why the proxy ended; an answer of the same conversation makes up for it",
        ),
        late=("the result came after the rollout was closed", "finish the rollout only after the harness has ended"),
    ),
)


def find_reason(word: str, *places: Place) -> Reason | None:
    """The entry for a word at the first of these places that knows it."""
    known = (reason for place in places for reason in REASONS if place in reason.places and reason.stands_for(word))
    found = next(known, None)
    return found and found.filled(word)


def explain(word: str, *places: Place) -> Reason:
    """The same, and the bare word where nobody wrote an entry."""
    return find_reason(word, *places) or Reason(places, word, f"`{word}`", "see docs/records.md")
