"""The matrix's other side for vLLM: answers prompts with the release's own engine and tells every verification.

Started as a script, never imported by eagle3lab, by the interpreter of an environment that has vLLM. It imports the
release once and answers one request a line in JSON, each in a process forked for it: a head that brings the engine
down, or lets it hang, takes nothing else with it, and no engine meets what an earlier one has left.

Prompts are answered one after the other. So the counters of the release, read after every step of its engine, say how
many drafts each single verification accepted.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Mapping
from typing import Any

#: As the release runs on a CPU in one process with one thread.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
KV_CACHE_BYTES = 1 << 28
_DRAFTS, _PER_POSITION = "vllm:spec_decode_num_drafts", "vllm:spec_decode_num_accepted_tokens_per_pos"


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Load target and drafter in float32, answer every prompt greedily.

    Returns:
        `outputs`, token ids of each answer, and `rounds`, drafts accepted at each of its verifications.
    """
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=request["target"],
        speculative_config={
            "model": request["drafter"],
            "method": "eagle3",
            "num_speculative_tokens": request["steps"],
        },
        dtype="float32",
        enforce_eager=True,
        skip_tokenizer_init=True,
        disable_log_stats=False,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=KV_CACHE_BYTES,
        max_num_seqs=1,
    )
    parameters = SamplingParams(
        temperature=0.0,
        max_tokens=request["max_new_tokens"],
        stop_token_ids=request["stop_ids"],
        detokenize=False,
    )
    outputs, rounds = [], []
    drafts, accepted = counted(llm)
    for index, prompt in enumerate(request["prompts"]):
        llm.llm_engine.add_request(str(index), {"prompt_token_ids": prompt}, parameters)
        told: list[Any] = []
        rows: list[int] = []
        while llm.llm_engine.has_unfinished_requests():
            told = llm.llm_engine.step() or told
            before = drafts, accepted
            drafts, accepted = counted(llm)
            if drafts - before[0] > 1:
                raise RuntimeError(f"{drafts - before[0]} verifications of one request in one step")
            if drafts > before[0]:
                rows.append(accepted - before[1])
        outputs.append(list(told[-1].outputs[0].token_ids))
        rounds.append(rows)
    return {"outputs": outputs, "rounds": rounds}


def counted(llm: Any) -> tuple[int, int]:
    """Verifications and accepted drafts since the engine started."""
    values = {metric.name: metric for metric in llm.get_metrics()}
    if _DRAFTS not in values:
        return 0, 0
    return int(values[_DRAFTS].value), int(sum(values[_PER_POSITION].values))


def in_a_process(request: Mapping[str, Any]) -> dict[str, Any]:
    """Answer in a forked process, for at most `limit_s` seconds; what ends it is the reply then."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            reply = answer(request)
        except BaseException as error:  # whatever ends the engine is what this cell is about
            reply = {"stops": f"{type(error).__name__}: {error}"}
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(json.dumps(reply).encode())
        os._exit(0)
    os.close(writing)
    content, deadline = b"", time.monotonic() + request["limit_s"]
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        while select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
            if not (chunk := pipe.read(1 << 16)):
                break
            content += chunk
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return {"timeout": f"no answer within {request['limit_s']} s"}
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not content:
        return {"stops": f"the process ended with status {status}"}
    reply = json.loads(content)
    assert isinstance(reply, dict)
    return reply


def main() -> None:
    """Import the release, then answer one request a line."""
    os.environ.update(ENVIRONMENT)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    sys.path.pop(0)  # the folder of this script: nothing in it is meant for the release's imports
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the release prints must not be taken for a reply
    import torch
    import transformers
    import vllm
    import vllm.v1.engine.llm_engine
    import vllm.v1.worker.cpu_worker

    release = vllm.__version__.partition("+")[0]
    versions = {"vllm": release, "torch": torch.__version__, "transformers": transformers.__version__}
    replies.write(json.dumps({"ready": release, "file": vllm.__file__}) + "\n")
    replies.flush()
    for line in io.TextIOWrapper(os.fdopen(0, "rb"), encoding="utf-8"):
        replies.write(json.dumps(in_a_process(json.loads(line)) | {"versions": versions}) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
