"""Made-up public texts; `python texts.py` makes up the texts of 200 users, who write of gardens."""

import json
import random
from pathlib import Path

GARDEN = "roses soil seeds tomato compost spade hedge pruning tulips mulch lawn bees".split()
OFFICE = "meeting deadline budget report manager email invoice contract agenda desk".split()
draw = random.Random(0).choices

PUBLIC = [" ".join(draw(GARDEN if n % 4 == 0 else OFFICE, k=8)) for n in range(1000)]

if __name__ == "__main__":
    rows = [{"user_id": n // 3, "text": " ".join(draw(GARDEN, k=8))} for n in range(600)]
    file = Path.home() / "privsyn-quickstart.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
