"""What a launch command says: read from a command line, a script, a deployment file or Python, and never executed."""
