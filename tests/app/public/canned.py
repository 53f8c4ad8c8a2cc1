"""A process that is an OpenAI-compatible server with canned answers, slots, and faults to order.

    python canned.py PLAN.json      prints its port

The plan: {"rules": [[part of a prompt, answer], ...], "faults": [{"kind", "part", "times", ...}],
"slots": 16, "seconds": 0.0, "token_seconds": 0.0}. A prompt has the answer of the first rule whose
part it holds, with {digest} replaced by eight characters of the prompt's own; no rule: "echo: " and
its first words. An answer takes one of `slots` for `seconds` + words x `token_seconds`.

A fault hits prompts that hold its part, each the first `times` times (-1: always): status (with
"status", "retry_after"), hang ("seconds"), cut (the connection ends within the answer), half (half
the JSON, as a whole answer), empty (no choices), withheld (content_filter), silent (no content),
long (finish_reason length, half the words). /stats: what was asked, and how full the slots
were.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

Body = dict[str, Any]


class Slots:
    """At most `count` answers at once; `share` of the slots were busy since the first request."""

    def __init__(self, count: int) -> None:
        self.count, self.busy, self.most, self.area = count, 0, 0, 0.0
        self.free = asyncio.Semaphore(count)
        self.first = self.last = 0.0

    def _change(self, step: int) -> None:
        now = time.monotonic()
        self.first = self.first or now
        self.area += self.busy * (now - (self.last or now))
        self.last, self.busy = now, self.busy + step
        self.most = max(self.most, self.busy)

    async def work(self, seconds: float) -> None:
        async with self.free:
            self._change(1)
            await asyncio.sleep(seconds)
            self._change(-1)

    def share(self) -> float:
        return self.area / (self.count * (self.last - self.first)) if self.area else 0.0


class Server:
    def __init__(self, plan: Body) -> None:
        self.plan = {"rules": [], "faults": [], "slots": 16, "seconds": 0.0, "token_seconds": 0.0}
        self.plan |= plan
        self.slots = Slots(self.plan["slots"])
        self.asked: list[Body] = []
        self.hits: Counter[tuple[int, str]] = Counter()

    def fault(self, prompt: str) -> Body:
        for number, fault in enumerate(self.plan["faults"]):
            if fault.get("part", "") in prompt:
                self.hits[number, prompt] += 1
                times = fault.get("times", 1)
                if times < 0 or self.hits[number, prompt] <= times:
                    return fault
        return {"kind": ""}

    def words(self, prompt: str, most: int) -> list[str]:
        for part, answer in self.plan["rules"]:
            if part in prompt:
                digest = hashlib.sha256(prompt.encode("utf-8", "replace")).hexdigest()[:8]
                return answer.replace("{digest}", digest).split(" ")[:most]
        return ["echo:", *prompt.split(" ")][:most]

    async def complete(self, body: Body, chat: bool) -> tuple[int, Body, Body]:
        """Status, answer, and the fault that hit."""
        prompt = body["messages"][-1]["content"] if chat else body["prompt"]
        self.asked.append(body)
        fault = self.fault(prompt)
        kind = fault["kind"]
        if kind == "status":
            return fault["status"], {"error": {"message": "to order"}}, fault
        if kind == "hang":
            await asyncio.sleep(fault["seconds"])
        words = self.words(prompt, body["max_tokens"])
        if kind == "long":
            words = words[: len(words) // 2]
        await self.slots.work(self.plan["seconds"] + len(words) * self.plan["token_seconds"])
        reason = {"long": "length", "withheld": "content_filter"}.get(kind, "stop")
        text = None if kind == "silent" else " ".join(words)
        choice: Body = {"index": 0, "finish_reason": reason}
        choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": len(words)}
        return 200, {"choices": [] if kind == "empty" else [choice], "usage": usage}, fault

    async def answer(self, path: str, body: Body) -> tuple[int, Body, Body]:
        if path in {"/v1/chat/completions", "/v1/completions"}:
            return await self.complete(body, "chat" in path)
        if path == "/v1/models":
            return 200, {"data": [{"id": "canned"}]}, {"kind": ""}
        if path == "/stats":
            found = {"asked": self.asked, "most": self.slots.most, "share": self.slots.share()}
            return 200, found, {"kind": ""}
        if path == "/reset":
            self.slots, self.asked = Slots(self.plan["slots"]), []
            return 200, {}, {"kind": ""}
        return 404, {"error": {"message": "no such path"}}, {"kind": ""}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Requests of one connection, until it ends."""
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode("latin-1"):
                lines = head.split("\r\n")
                fields = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
                size = int(fields.get("content-length", 0))
                body = json.loads(await reader.readexactly(size)) if size else {}
                status, answer, fault = await self.answer(lines[0].split(" ")[1], body)
                data = json.dumps(answer).encode()
                if fault["kind"] == "half":
                    data = data[: len(data) // 2]
                extra = f"Retry-After: {fault['retry_after']}\r\n" if "retry_after" in fault else ""
                writer.write(
                    f"HTTP/1.1 {status} Canned\r\nContent-Type: application/json\r\n{extra}"
                    f"Content-Length: {len(data)}\r\n\r\n".encode()
                )
                if fault["kind"] == "cut":
                    writer.write(data[: len(data) // 2])
                    break
                writer.write(data)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


async def main() -> None:
    server = Server(json.loads(Path(sys.argv[1]).read_text("utf-8")))
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, backlog=1024)
    print(listening.sockets[0].getsockname()[1], flush=True)
    # The process that started this one holds the other end: its end is this one's too.
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
