"""`python -m leapgen`."""

from leapgen.cli import main

main()
