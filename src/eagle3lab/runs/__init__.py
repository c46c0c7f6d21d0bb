"""What a run of a server leaves behind: a folder with its plan, log, events and requests, read again by anyone."""
