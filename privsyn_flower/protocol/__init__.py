"""What the two sides say to each other: typed questions and answers <-> Flower's records."""

from typing import TYPE_CHECKING

from privsyn_flower.common.on_demand import on_demand

if TYPE_CHECKING:
    from privsyn_flower.protocol.greeting import Hello, answer_hello
    from privsyn_flower.protocol.question import Query
else:
    __getattr__ = on_demand(__name__, {"greeting": "Hello answer_hello", "question": "Query"})

__all__ = [
    "Hello",
    "Query",
    "answer_hello",
]
