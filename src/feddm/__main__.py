"""``python -m feddm`` is ``feddm``."""

from feddm.cli import main

if __name__ == "__main__":
    main()
