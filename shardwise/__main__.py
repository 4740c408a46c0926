"""The front door of a checkout: `python -m shardwise` is the command `shardwise`."""

from shardwise.cli import main

if __name__ == "__main__":
    main()
