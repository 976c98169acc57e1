"""The toy vocabulary of `proxy/sim`."""

from proxy.sim.tokens import (
    CALL_END,
    CALL_START,
    END_OF_TEXT,
    THINK_END,
    THINK_START,
    TURN_END,
    TURN_START,
    VOCABULARY_SIZE,
    decode,
    encode,
)

__all__ = [
    "CALL_END",
    "CALL_START",
    "END_OF_TEXT",
    "THINK_END",
    "THINK_START",
    "TURN_END",
    "TURN_START",
    "VOCABULARY_SIZE",
    "decode",
    "encode",
]
