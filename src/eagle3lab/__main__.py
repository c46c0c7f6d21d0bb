"""`python -m eagle3lab`."""

from eagle3lab.cli import main

main()
