"""What an engine is fit for, found out by experiment: `rollpin check`.

Each check asks one question, draws what it needs through the engine's gate, and says what was seen, what it means for
training, and the flag that mends it. Nothing that is known to harm an engine is sent (docs/engines.md): no ids but the
engine's own, no `min_p` beside a seed. Calls of the filtering class are made only where nothing else runs.
"""
