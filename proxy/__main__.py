"""`python -m proxy`: the same as `rollpin`."""

from proxy.cli import main

if __name__ == "__main__":
    main()
