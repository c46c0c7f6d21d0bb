"""The draft vocabulary: what d2t holds, which tokens the head's rows stand for, what they reach of a text."""
