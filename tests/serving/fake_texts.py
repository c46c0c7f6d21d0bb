"""What SGLang's processes write when they fail, and when they do not."""

# As its ranks write them: the first says what happened, the others what came of it.
TRACEBACKS = """[2026-01-01 00:00:00 TP1] Scheduler hit an exception: Traceback (most recent call last):
  File "scheduler.py", line 1, in run
    load()
KeyError: 'midlayer.fc'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "scheduler.py", line 2, in run
    raise
ValueError: the drafter does not fit
  its width is 7

[2026-01-01 00:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):
RuntimeError: connection closed by peer

[2026-01-01 00:00:01] Received sigquit from a child process.
"""
# 0.5.9 starts in good health after this.
HARMLESS = """[2026-01-01 00:00:00] Can not initialize OpenAIServingResponses, error: Traceback (most recent call last):
  File "http_server.py", line 1, in lifespan
ModuleNotFoundError: No module named 'openai_harmony'

[2026-01-01 00:00:00] INFO:     Application startup complete.
"""
