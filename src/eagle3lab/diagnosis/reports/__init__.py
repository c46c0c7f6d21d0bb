"""A diagnosis written out: for a terminal, a program, a code-scanning service, a colleague."""
