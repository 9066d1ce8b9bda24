"""`python -m l2i` is the command line."""

from l2i.cli import main

main()
