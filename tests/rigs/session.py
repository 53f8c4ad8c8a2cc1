"""What several tests share about session."""

from __future__ import annotations

from typing import Any

from privsyn_flower.secagg import Member


def members(n: int, **changes: Any) -> list[Member]:
    def key(kind: int, i: int) -> bytes:
        return bytes([kind, i]) * 16

    return [
        Member(**{"id": 9 - i, "weight": 1, "identity": key(1, i), "cipher": key(2, i),
                  "mask": key(3, i), **(changes if i == 1 else {})})
        for i in range(n)
    ]  # fmt: skip
