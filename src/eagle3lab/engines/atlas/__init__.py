"""What every release does: the facts of all releases, read from the releases themselves."""
