"""One file for each harness or family of them."""
