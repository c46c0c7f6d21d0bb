"""What the user gave, read lazily: checkpoint, target, engine release, launch command, log."""
