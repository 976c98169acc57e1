"""Processes for proxies that are to be killed or signalled, forked from a warm one, so that each start costs little."""

import multiprocessing

forkserver = multiprocessing.get_context("forkserver")
forkserver.set_forkserver_preload(["tests.warm"])
