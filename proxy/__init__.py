"""Rollpin: a reverse proxy that makes any agent harness's model calls trainable."""

__version__ = "0.1.0"
