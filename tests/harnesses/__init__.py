"""Real agent harnesses, each doing a small task through Rollpin in front of the simulated engine."""
