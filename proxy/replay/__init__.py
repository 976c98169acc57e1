"""Recorded calls asked again: the same tokens, or today's logprobs of the recorded ones; nothing is recorded here.

A recorded call becomes its plan once more (`remake`), each of its segments is asked of an engine like the one that drew
it (`choose`, `again`), and what comes back is held against the record (`verdict`). docs/replay.md tells the rules.
"""
