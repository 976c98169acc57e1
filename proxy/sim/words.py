"""The toy model's language: a few short words, and which kind may follow which.

No word begins with another of the kinds that may stand in its place, so a half-printed word is never ambiguous.
Accented letters are there on purpose: their first byte is a token that adds no text by itself.
"""

from collections.abc import Mapping

END = ""
"""Stands for the end of the thought, or of the turn."""
KINDS: Mapping[str, tuple[str, ...]] = {
    "first": ("so", "well", "hm", "yes", "no"),
    "which": ("the", "this", "one", "every", "my"),
    "how": ("old", "red", "shy", "naïve", "dim", "calm"),
    "what": ("fox", "tide", "café", "élan", "lamp", "idea", "moth", "bell"),
    "does": ("finds", "keeps", "meets", "turns", "hides", "sings"),
    "when": ("soon", "twice", "à jour", "now", "later"),
}
FOLLOWS: Mapping[str, Mapping[str, float]] = {
    END: {"first": 3, "which": 2},
    "first": {"which": 2, END: 1},
    "which": {"how": 1, "what": 2},
    "how": {"what": 1},
    "what": {"does": 1, END: 1},
    "does": {"which": 1, "when": 2},
    "when": {END: 3, "which": 1},
}
