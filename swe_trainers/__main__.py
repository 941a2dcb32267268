"""`python -m swe_trainers` is `swe-train`."""

import sys

from swe_trainers.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
