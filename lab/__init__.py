"""The laboratory makes, breaks and measures specimens. It imports torch, and the wheel of eagle3lab leaves it out."""
