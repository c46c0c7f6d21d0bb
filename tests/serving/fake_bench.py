"""A stand-in for SGLang's serving benchmark: a few requests, and a result of one line."""

from __future__ import annotations

import argparse
import json
import os
import urllib.request
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--backend", "--base-url", "--model", "--output-file"):
        parser.add_argument(name, required=True)
    parser.add_argument("--num-prompts", type=int, default=1)
    arguments, _ = parser.parse_known_args()
    print("the key is", os.environ.get("OPENAI_API_KEY"), flush=True)
    for _ in range(arguments.num_prompts):
        body = json.dumps({"text": "a", "sampling_params": {"max_new_tokens": 5}}).encode()
        urllib.request.urlopen(arguments.base_url + "/generate", body).read()
    with Path(arguments.output_file).open("a") as file:
        result = {
            "total_output_tokens": 5 * arguments.num_prompts,
            "duration": 2.0,
            "url": arguments.base_url,
        }
        file.write(json.dumps(result) + "\n")


main()
