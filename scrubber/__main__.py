"""``python -m scrubber`` is ``autoclave``."""

from scrubber import cli

if __name__ == "__main__":
    cli.main()
