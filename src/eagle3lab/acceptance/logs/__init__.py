"""Server logs of SGLang and vLLM, scripts' and benchmarks' figures: one reader, one pass, bounded memory."""

from eagle3lab.acceptance.logs.observations import Event, Observation, Unparsed
from eagle3lab.acceptance.logs.reader import Example, LogReading, Server, parse_line, read_logs

__all__ = ["Event", "Example", "LogReading", "Observation", "Server", "Unparsed", "parse_line", "read_logs"]
