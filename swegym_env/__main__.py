"""`python -m swegym_env` is `swegym`."""

import sys

from swegym_env.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
