"""Made-up public texts, and with `python texts.py` the texts of forty users in users.jsonl."""

import json
import random
from pathlib import Path

GARDEN = "roses soil seeds tomato compost spade hedge pruning tulips mulch lawn bees".split()
OFFICE = "meeting deadline budget report manager email invoice contract agenda desk".split()
draw = random.Random(0).choices

PUBLIC = [" ".join(draw(GARDEN if n % 4 == 0 else OFFICE, k=8)) for n in range(400)]

if __name__ == "__main__":
    rows = [{"user_id": n // 3, "text": " ".join(draw(GARDEN, k=8))} for n in range(120)]
    Path("users.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
