"""`python -m tinyaot`: the command line."""

import sys

from tinyaot.cli import main

if __name__ == "__main__":
    sys.exit(main())
