"""The ways in which people's tools hand out a log: each takes a program's lines and gives the bytes of a file."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence

Wrap = Callable[[Sequence[str]], bytes]
STAMP = "2026-07-02T22:11:{second:02d}.123456789Z"


def _stamp(number: int) -> str:
    return STAMP.format(second=number % 60)


def _prefix(form: str) -> Wrap:
    """`form` before each line; `{stamp}` and `{n}` are filled in."""

    def wrap(lines: Sequence[str]) -> bytes:
        made = [form.format(stamp=_stamp(n), n=n) + line for n, line in enumerate(lines)]
        return ("\n".join(made) + "\n").encode()

    return wrap


def _records(record: Callable[[str, int], object]) -> Wrap:
    return lambda lines: "".join(json.dumps(record(x, n)) + "\n" for n, x in enumerate(lines)).encode()


def _pieces(lines: Sequence[str]) -> bytes:
    """Docker's json-file, each line cut in two as it cuts those of more than 16 KB."""
    made = []
    for n, line in enumerate(lines):
        for piece in (line[: len(line) // 2], line[len(line) // 2 :] + "\n"):
            made.append(json.dumps({"log": piece, "stream": "stderr", "time": _stamp(n)}) + "\n")
    return "".join(made).encode()


def _cri_pieces(lines: Sequence[str]) -> bytes:
    made = []
    for n, line in enumerate(lines):
        half = len(line) // 2
        made += [f"{_stamp(n)} stderr P {line[:half]}\n", f"{_stamp(n)} stderr F {line[half:]}\n"]
    return "".join(made).encode()


def _coloured(lines: Sequence[str]) -> bytes:
    return "".join(f"\x1b[0;36m(EngineCore pid=9)\x1b[0;0m {line}\n" for line in lines).encode()


def _escapes_lost(lines: Sequence[str]) -> bytes:
    return "".join(f"[0;36m(EngineCore pid=9)[0;0m {line}\n" for line in lines).encode()


def _crlf(lines: Sequence[str]) -> bytes:
    return "".join(f"{line}\r\n" for line in lines).encode()


def _utf16(lines: Sequence[str]) -> bytes:
    return "".join(f"{line}\r\n" for line in lines).encode("utf-16")


def _bars(lines: Sequence[str]) -> bytes:
    bar = "\rLoading safetensors checkpoint shards: 50% Completed | 1/2 [00:01<00:01,  1.2s/it]\r"
    return "".join(f"{bar}{line}\n" for line in lines).encode()


def _loki_answer(lines: Sequence[str]) -> bytes:
    values = [[str(1_773_223_200_000_000_000 + n), line] for n, line in enumerate(lines)]
    result = [{"stream": {"app": "llm", "pod": "llm-0"}, "values": values}]
    return json.dumps({"status": "success", "data": {"resultType": "streams", "result": result}}).encode()


def _grafana_export(lines: Sequence[str]) -> bytes:
    return json.dumps(
        [
            {"line": line, "timestamp": str(n), "date": _stamp(n), "fields": {}}
            for n, line in enumerate(lines)
        ],
        indent=2,
    ).encode()


def _logfmt(lines: Sequence[str]) -> bytes:
    quoted = (line.replace("\\", "\\\\").replace('"', '\\"') for line in lines)
    return "".join(f'time="{_stamp(n)}" level=info msg="{x}"\n' for n, x in enumerate(quoted)).encode()


WRAPPERS: dict[str, Wrap] = {
    "plain": _prefix(""),
    "docker logs -t": _prefix("{stamp} "),
    "compose": _prefix("sglang-server-1  | "),
    "compose with a file": _prefix("2026-04-19 17:31:10.944 | "),
    "CRI": _prefix("{stamp} stderr F "),
    "CRI in pieces": _cri_pieces,
    "kubectl --prefix": _prefix("[pod/llm-0/server] "),
    "kubectl --prefix --timestamps": _prefix("[pod/llm-0/server] {stamp} "),
    "journald": _prefix("Jul 02 22:11:19 gpu-box vllm[4711]: "),
    "journald, ISO": _prefix("2026-07-02T22:11:19+0000 gpu-box docker[12]: "),
    "Ray": _prefix("(SGLangEngine pid=4711, ip=10.0.0.3) "),
    "torchrun": _prefix("[rank0]: "),
    "vLLM worker": _prefix("(EngineCore_DP0 pid=263) ERROR 01-02 03:04:05 [core.py:1100] "),
    "logcli": _prefix('{stamp} {{app="llm", pod="llm-0"}} '),
    "docker json-file": _records(lambda x, n: {"log": x + "\n", "stream": "stderr", "time": _stamp(n)}),
    "docker json-file in pieces": _pieces,
    "Kubernetes JSON": _records(
        lambda x, n: {"log": x, "@timestamp": _stamp(n), "kubernetes": {"pod_name": "llm-0"}}
    ),
    "Loki JSON lines": _records(lambda x, n: {"labels": {"pod": "llm-0"}, "line": x, "timestamp": _stamp(n)}),
    "Loki answer": _loki_answer,
    "Grafana export": _grafana_export,
    "journald JSON": _records(lambda x, n: {"MESSAGE": x, "_PID": "9", "_HOSTNAME": "gpu-box"}),
    "journald JSON, bytes": _records(lambda x, n: {"MESSAGE": list(x.encode()), "_PID": "9"}),
    "cloud JSON": _records(lambda x, n: {"severity": "INFO", "message": x, "timestamp": _stamp(n)}),
    "logfmt": _logfmt,
    "colours": _coloured,
    "colours without their escape": _escapes_lost,
    "CRLF": _crlf,
    "UTF-16": _utf16,
    "progress bars": _bars,
    "gzip": lambda lines: gzip.compress("".join(f"{line}\n" for line in lines).encode()),
    "compose of a Ray cluster with colours": lambda lines: "".join(
        f"\x1b[36mray-head-1  | \x1b[0m\x1b[36m(Worker pid=77)\x1b[0m {line}\n" for line in lines
    ).encode(),
    "json-file of CRI": _records(
        lambda x, n: {"log": f"{_stamp(n)} stdout F {x}\n", "stream": "stderr", "time": _stamp(n)}
    ),
}
