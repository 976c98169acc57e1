"""How the harnesses are installed, kept away from everything but loopback, started and ended."""
