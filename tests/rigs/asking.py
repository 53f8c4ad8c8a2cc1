"""What several tests share about asking."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from privsyn_flower.app.public.asking import Answer, Asker, Request
from tests.app.public.conftest import Canned

Start = Callable[..., Canned]


def asker(server: Canned, folder: Path, concurrency: int = 4, **options: Any) -> Asker:
    sampling = {"temperature": 0.2, "top_k": 40} | options.pop("sampling", {})
    model = server.generator(**options)
    return Asker(model, folder, name="canned", **sampling, concurrency=concurrency)


def requests(count: int, part: str = "text") -> list[Request]:
    return [Request(f"{part} {i}", 8, note=i) for i in range(count)]


def texts(answers: Iterable[Answer]) -> dict[Any, str | None]:
    return {answer.request.note: answer.text for answer in answers}


def chain(branches: int, depth: int) -> Callable[[Answer], Iterator[Request]]:
    def more(answer: Answer) -> Iterator[Request]:
        path = answer.request.note
        if len(path) < depth:
            for i in range(branches):
                yield Request(f"{answer.request.prompt}.{i}", 4, note=(*path, i))

    return more
