"""Public text asked of a model: what of a server's throughput the asking uses.

    python benchmarks/public_text.py [--slots 32] [--seconds 0.25] [--token-seconds 0.002]
    python benchmarks/public_text.py --vllm          # a real vLLM with the shipped generator

Prints for two jobs the ratio to a plain load generator: threads that send the same requests from a
list, each on a connection of its own, and keep nothing. `filter` is one token for each text; `chat`
is a chain in which an answer's lines lead to further requests, which the plain one knows
beforehand. Both ask one server in one run, in turns; goal: at least 0.90. The canned server answers
so many requests at once as it has slots, and says how full they were. A last line is the processor
time of a request on our side.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import privsyn_flower
from privsyn_flower.app.public.asking import Answer, Asker, Request
from privsyn_flower.text.serving.http_generator import OpenAIGenerator
from privsyn_flower.text.serving.vllm_server import VllmGenerator, VllmServer

TINY = Path(privsyn_flower.__file__).parent / "assets" / "generator"
CANNED = Path(__file__).parents[1] / "tests" / "app" / "public" / "canned.py"
WORDS = "Is this something that people write about on a phone? Say 1 or 0. A text about "
LINES = "\n".join(f"line {i} of {{digest}}" for i in range(4))
SAID = " ".join(["Me: hello there. Mom: hello you, and what have you done today?"] * 8)
RULES = [["STAGE 3", SAID], ["STAGE", LINES], ["", "1"]]
DEPTH, BRANCHES = 3, 4  # of a chain: receivers, subjects, conversation
TOKENS = {1: 60, 2: 60, 3: 150}  # of a chain's answers, by stage


def filtering(texts: int, mark: str) -> list[Request]:
    """One token for each text."""
    return [Request(f"{WORDS}{mark} {i}", 1, note=DEPTH) for i in range(texts)]


def personas(count: int, mark: str) -> Iterator[Request]:
    """Beginnings of chains."""
    for i in range(count):
        yield Request(f"STAGE 1 {mark} persona {i}: to whom do you write?", TOKENS[1], note=1)


def lines(answer: Answer) -> Iterator[Request]:
    """The next stage of a chain: a request for each of the first lines of an answer."""
    stage = answer.request.note + 1
    if stage <= DEPTH:
        found = [line for line in (answer.text or "").splitlines() if line.strip()]
        for number in range(BRANCHES):  # always as many: a small model may write fewer lines
            line = found[number % len(found)] if found else ""
            scene = answer.request.prompt.partition(" ")[2].partition(" ")[2]
            yield Request(f"STAGE {stage} {scene} {number} {line}", TOKENS[stage], note=stage)


class Plain:
    """The plain load generator."""

    def __init__(self, model: OpenAIGenerator, key: str, threads: int) -> None:
        self.url = urllib.parse.urlsplit(model.client.base_url)
        self.model, self.key, self.threads = model, key, threads

    def run(self, requests: Iterable[Request]) -> None:
        """Send all requests, one after another on each of the connections."""
        bodies = iter([self.body(number, request) for number, request in enumerate(requests)])
        lock = threading.Lock()

        def worker() -> None:
            assert self.url.hostname is not None
            connection = http.client.HTTPConnection(self.url.hostname, self.url.port)
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.key}"}
            place = "/v1/chat/completions" if self.model.chat else "/v1/completions"
            while True:
                with lock:
                    body = next(bodies, None)
                if body is None:
                    return
                connection.request("POST", place, body, headers)
                assert json.loads(connection.getresponse().read())["choices"]

        threads = [threading.Thread(target=worker) for _ in range(self.threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def body(self, number: int, request: Request) -> bytes:
        body: dict[str, Any] = {
            "model": self.model.model, "n": 1, "seed": number, "temperature": 0.2, "top_p": 1.0,
            "top_k": 40, "max_tokens": request.max_tokens,
        }  # fmt: skip
        turn = {"messages": [{"role": "user", "content": request.prompt}]}
        return json.dumps(body | (turn if self.model.chat else {"prompt": request.prompt})).encode()


@contextmanager
def canned(arguments: argparse.Namespace, folder: Path) -> Iterator[tuple[OpenAIGenerator, str]]:
    """The canned server, in a process of its own."""
    plan = {
        "rules": RULES, "slots": arguments.slots, "seconds": arguments.seconds,
        "token_seconds": arguments.token_seconds,
    }  # fmt: skip
    (folder / "plan.json").write_text(json.dumps(plan))
    with subprocess.Popen(
        [sys.executable, "-I", CANNED, folder / "plan.json"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        root = f"http://127.0.0.1:{int(process.stdout.readline())}"
        try:
            yield OpenAIGenerator(root, "canned", api_key_env="", chat=True, stop=()), ""
        finally:
            process.kill()


@contextmanager
def vllm(arguments: argparse.Namespace, folder: Path) -> Iterator[tuple[OpenAIGenerator, str]]:
    """A vLLM server; the shipped generator knows no chat."""
    server = VllmServer(arguments.model, log=folder / "vllm.log", python=arguments.python)
    generator = VllmGenerator(server, stop=(), progress=False)
    try:
        generator.reach()
        yield generator, server.api_key
    finally:
        generator.close()


def slots(model: OpenAIGenerator, path: str) -> float:
    """The share of the canned server's slots that were busy; /reset: count anew."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(model.client.base_url.removesuffix("/v1") + path) as answer:
        return float(json.loads(answer.read()).get("share", 0.0))


def measure(
    name: str,
    ours: Callable[[Asker, str], Iterator[Answer]],
    model: OpenAIGenerator,
    key: str,
    arguments: argparse.Namespace,
    folder: Path,
) -> None:
    """Ours and the plain one in turns; prompts are new each time, as no cache knows them."""
    plain = Plain(model, key, arguments.slots)
    seconds: dict[str, list[float]] = {"ours": [], "plain": []}
    full: dict[str, list[float]] = {"ours": [], "plain": []}
    processor = 0.0
    asked: list[Request] = []
    for number in range(arguments.repeats + 1):
        mark = f"{name}-{number}"
        for who in ("ours", "plain"):
            if not arguments.vllm:
                slots(model, "/reset")
            start, used = time.perf_counter(), time.process_time()
            if who == "ours":
                with Asker(
                    model, folder / mark, name="m", temperature=0.2, top_k=40,
                    concurrency=arguments.slots,
                ) as asker:  # fmt: skip
                    asked = [answer.request for answer in ours(asker, mark)]
                    assert asker.counts.sent == len(asked)
                processor = (time.process_time() - used) / len(asked)
            else:
                plain.run(
                    Request(request.prompt.replace(mark, mark + "b"), request.max_tokens)
                    for request in asked
                )
            if number:  # the first turn is a warm-up
                seconds[who].append(time.perf_counter() - start)
                full[who].append(0.0 if arguments.vllm else slots(model, "/stats"))
    one, other = statistics.median(seconds["ours"]), statistics.median(seconds["plain"])
    shares = "" if arguments.vllm else (
        f"   slots busy {statistics.median(full['ours']):.2f} and "
        f"{statistics.median(full['plain']):.2f}"
    )  # fmt: skip
    print(
        f"{name}: {len(asked)} requests   ours {len(asked) / one:.1f}/s   plain "
        f"{len(asked) / other:.1f}/s   ratio {other / one:.2f}{shares}   ours, processor "
        f"{processor * 1000:.2f} ms a request"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slots", type=int, default=32, help="requests answered at once")
    parser.add_argument("--seconds", type=float, default=0.25, help="canned: of an answer")
    parser.add_argument("--token-seconds", type=float, default=0.002, help="canned: of a word")
    parser.add_argument("--texts", type=int, default=2000, help="to filter")
    parser.add_argument("--personas", type=int, default=60, help="that chat")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--vllm", action="store_true", help="a real server; needs `make vllm`")
    parser.add_argument("--model", type=Path, default=TINY)
    parser.add_argument("--python", type=Path, default=None, help="of vLLM's environment")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (vllm if arguments.vllm else canned)(arguments, folder) as (model, key):
            jobs: dict[str, Callable[[Asker, str], Iterator[Answer]]] = {
                "filter": lambda asker, mark: asker.ask(filtering(arguments.texts, mark)),
                "chat": lambda asker, mark: asker.grow(personas(arguments.personas, mark), lines),
            }
            for job, ours in jobs.items():
                measure(job, ours, model, key, arguments, folder)


if __name__ == "__main__":
    main()
