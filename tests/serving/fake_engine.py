"""A stand-in for SGLang's main module: it takes milliseconds to start, and fails in the ways that servers do.

`FAKE` in its environment says how: see the functions below.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from sglang.texts import HARMLESS, TRACEBACKS

HOW = os.environ.get("FAKE", "")
# The request that goes wrong where things go wrong midway.
LATER = 3
KEY = sys.argv[sys.argv.index("--api-key") + 1] if "--api-key" in sys.argv else None

asked: list[str] = []


def say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def leave_a_daemon() -> None:
    """A grandchild in a session of its own, its parent gone, deaf to every signal but the last, holding the output."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
                signal.signal(number, signal.SIG_IGN)
            time.sleep(600)
        os._exit(0)
    os.wait()


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass

    def answer(self, content: object, status: int = 200) -> None:
        data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        if self.path == "/server_info":
            self.answer(
                {
                    "version": "0.5.9",
                    "model_path": "m",
                    "speculative_algorithm": "EAGLE3",
                    "speculative_num_draft_tokens": 4,
                    "api_key": KEY,
                    "launch_command": f"--model m --api-key {KEY}",
                    "internal_states": [{"api_key": KEY}],
                }
            )
        elif self.path == "/metrics" and "--enable-metrics" in sys.argv:
            self.answer(f'requests_total{{key="{KEY}"}} {len(asked)}\n')
        elif self.path == "/metrics":
            self.answer("Not Found", 404)
        else:
            self.answer({"key": self.headers.get("Authorization")})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asked.append(self.path)
        if HOW == "refuses" and len(asked) == LATER:
            self.answer("the prompt is too long", 400)
            return
        if HOW == "dies-midway" and len(asked) == LATER:
            say(HARMLESS + TRACEBACKS)
            os.kill(os.getpid(), signal.SIGQUIT)
        if HOW == "silent-midway" and len(asked) == LATER:
            time.sleep(600)
        if HOW == "dies-serving":
            say(HARMLESS + TRACEBACKS)
            os.kill(os.getpid(), signal.SIGQUIT)
        if HOW == "silent":
            time.sleep(600)
        time.sleep(0.02)
        if "messages" in body:
            text = f"after {body['messages'][-1]['content']}"
            usage = {"prompt_tokens": 3, "completion_tokens": body["max_tokens"]}
            self.answer({"choices": [{"message": {"content": text}}], "usage": usage})
            return
        length = body["sampling_params"]["max_new_tokens"]
        prompt = body.get("text") or body["input_ids"]
        # Four verifications: one of them accepts nothing, two of them one draft, one all three.
        meta = {"id": "1", "prompt_tokens": len(prompt), "completion_tokens": length}
        if HOW != "plain":
            meta |= {"spec_verify_ct": 4, "spec_accept_rate": 5 / 12, "spec_accept_histogram": [1, 2, 0, 1]}
        self.answer({"text": f"after {prompt}", "output_ids": list(range(length)), "meta_info": meta})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    arguments, _ = parser.parse_known_args()
    say(
        f"[2026-01-01 00:00:00] server_args=ServerArgs({sys.argv[1:]!r}, token={os.environ.get('HF_TOKEN')!r})\n"
    )
    if HOW != "alone":
        leave_a_daemon()
    say(
        "[2026-01-01 00:00:00] Load weight begin.\nLoading checkpoint shards:   0%\rLoading checkpoint shards: 100%\n"
    )
    if HOW == "dies-loading":
        say(TRACEBACKS)
        os.kill(os.getpid(), signal.SIGQUIT)
    if HOW == "exits":
        raise SystemExit(3)
    if HOW == "loads-slowly":  # 0.5.23's progress bar: no line ends before it is full
        for percent in range(0, 100, 5):
            say(f"\rMulti-thread loading shards: {percent:3}%")
            time.sleep(0.15)
    if HOW == "hangs":
        time.sleep(600)
    if HOW == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say(HARMLESS + "[2026-01-01 00:00:00] Uvicorn running on http://127.0.0.1\n")
    ThreadingHTTPServer(("127.0.0.1", arguments.port), Handler).serve_forever()


main()
