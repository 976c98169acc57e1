"""After the rollout: recorded calls become rows to train on.

Pure: documents in, values out; nothing here reads a store, asks an engine or knows the time. docs/trajectories.md tells
every rule and every field.
"""
