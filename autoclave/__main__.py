"""``python -m autoclave`` is ``autoclave``."""

from autoclave import cli

if __name__ == "__main__":
    cli.main()
