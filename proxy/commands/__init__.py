"""What the commands do that look at a running proxy; the command line itself is `proxy/cli.py`."""
