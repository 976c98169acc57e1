"""The real engines, on a processor without a GPU: how to install them, feed them, start and stop them."""
