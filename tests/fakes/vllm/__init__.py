"""vLLM's dialect of `proxy/sim`."""
