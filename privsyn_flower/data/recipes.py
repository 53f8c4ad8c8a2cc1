"""Files of the papers' data, made of public sources. All of it is PUBLIC.

PrE-Text's (Hou et al., ICML 2024) as its author describes it in issue 3 of the repository: c4 in
English streamed and shuffled, the rows whose address holds a site, and of each page its lines.
PubMed, OpenReview and Yelp are the files of Aug-PE's authors, their splits put together.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from privsyn_flower.common.files import DataError, write_atomic

SITES = {"jobs": "linkedin.com", "forums": "reddit.com", "microblog": "twitter.com"}
PUBLIC = "c4-public"  # pages of no site
PUBLIC_WORDS = 48  # of a page; about 64 tokens, where the authors cut their population
SEED, BUFFER = 100, 1_000_000  # of the shuffle
AUG_PE = {
    "pubmed": [f"pubmed/{part}.csv" for part in ("train", "dev", "test")],
    "openreview": [f"openreview/iclr23_reviews_{part}.csv" for part in ("train", "val", "test")],
    "yelp": [f"yelp/{part}.csv" for part in ("train", "dev", "test")],
}
STARS = "Review Stars: "  # in a label of Yelp's


def c4_stream() -> Iterable[Mapping[str, Any]]:
    """c4's pages in the author's order. Raises DataError where the hub cannot be reached."""
    try:
        import datasets

        data = datasets.load_dataset("allenai/c4", "en", split="train", streaming=True)
        return data.shuffle(seed=SEED, buffer_size=BUFFER)  # type: ignore[no-any-return]
    except Exception as error:  # the hub's client raises errors of several libraries
        raise DataError(f"allenai/c4 cannot be streamed: {error}") from None


def c4_sites(
    pages: Iterable[Mapping[str, Any]], folder: Path, lines: int, public: int
) -> dict[str, int]:
    """Write jobs, forums, microblog and c4-public.jsonl into `folder`; how many texts each has.

    pages: {"url", "text"}, read until every file is full: `lines` of each site, the first ones,
    empty ones left out, and `public` beginnings of pages of no site. Nothing is written unless all
    are full. Raises DataError for a page without those two, or too few of them.
    """
    wanted = {**dict.fromkeys(SITES, lines), PUBLIC: public}
    kept: dict[str, list[str]] = {name: [] for name in wanted}
    for number, page in enumerate(pages, start=1):
        url, text = page.get("url"), page.get("text")
        if not isinstance(url, str) or not isinstance(text, str):
            raise DataError(f"page {number} has no text in 'url' and 'text': it is not c4's")
        name = next((name for name, site in SITES.items() if site in url), PUBLIC)
        first = [" ".join(text.split()[:PUBLIC_WORDS])]
        own = first if name == PUBLIC else text.splitlines()
        kept[name] += [line for line in own if line.strip()][: wanted[name] - len(kept[name])]
        if all(len(kept[name]) == count for name, count in wanted.items()):
            break
    if short := {name: len(own) for name, own in kept.items() if len(own) < wanted[name]}:
        told = ", ".join(f"{name} {count} of {wanted[name]}" for name, count in short.items())
        raise DataError(f"the pages ended before there was enough text ({told}): lower the numbers")
    for name, own in kept.items():
        write_rows(folder / f"{name}.jsonl", ({"text": text} for text in own))
    return {name: len(own) for name, own in kept.items()}


def aug_pe(source: Path, folder: Path) -> dict[str, int]:
    """Write the data sets of Aug-PE's `data` folder that are there; how many texts each has.

    NAME.jsonl has the lines of the training, validation and test files in this order, with a label
    where there are classes: OpenReview's recommendation, Yelp's stars. Raises DataError where none
    is there, or a part of one is missing or no such file.
    """
    counts = {}
    for name, parts in AUG_PE.items():
        there = [source / part for part in parts if (source / part).is_file()]
        if not there:
            continue
        if len(there) < len(parts):
            missing = [part for part in parts if not (source / part).is_file()]
            raise DataError(f"{source} has no {', '.join(missing)}: {name} needs all of its parts")
        rows = [row for path in there for row in _aug_pe_rows(path, name)]
        write_rows(folder / f"{name}.jsonl", rows)
        counts[name] = len(rows)
    if not counts:
        raise DataError(f"{source} has none of {', '.join(AUG_PE)}: name Aug-PE's folder data")
    return counts


def _aug_pe_rows(path: Path, name: str) -> Iterator[dict[str, str]]:
    csv.field_size_limit(sys.maxsize)
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            labels = [value or "" for key, value in row.items() if str(key).startswith("label")]
            if "text" not in row or (name != "pubmed" and not labels):
                raise DataError(f"{path} has no column 'text', or none that begins with 'label'")
            kept = {"text": row["text"]}
            if name == "openreview":  # "Recommendation: 8: accept, good paper"
                kept["label"] = (row.get("label2") or "").partition(": ")[2].partition(",")[0]
            elif name == "yelp":  # "Review Stars: 5.0"
                stars = next((one for one in labels if one.startswith(STARS)), "")
                number = stars.removeprefix(STARS).partition(".")[0]
                kept["label"] = f"{number} star{'' if number == '1' else 's'}" if number else ""
            yield kept


def write_rows(path: Path, rows: Iterable[Mapping[str, str]]) -> None:
    """A .jsonl file, whole or not at all."""
    write_atomic(path, (f"{json.dumps(row)}\n".encode() for row in rows))
