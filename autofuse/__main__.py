"""`python -m autofuse`."""

from autofuse.cli import main

main()
