"""A corpus of public text in one folder: filtered, written and converted by an instruction model.

Gboard paper (Wu et al. 2024), section 3: FOLDER/filter.jsonl has public texts whose subject people
write about on phones, chat.jsonl conversations of invented people, convert.jsonl filtered texts
that became conversations; `mixing` puts them together. Each stage streams, and goes on where it was
interrupted without asking anything twice: answers are kept (`asking`), and what was written of them
(`journal`). The order of lines is that in which answers came.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from privsyn_flower.app.public.asking import Answer, Asker, Request
from privsyn_flower.app.public.chats import (
    JUDGE_TEMPERATURE,
    Persona,
    Sieve,
    conversation_prompt,
    convert_prompt,
    draw,
    items,
    judge_prompt,
    message_prompt,
    parse_judgement,
    parse_list,
    receivers_prompt,
    topics_prompt,
    turns,
)
from privsyn_flower.app.public.journal import Journal, Position, lines_of, read_state
from privsyn_flower.app.public.source import STATEMENT, Source, carried, hand_on, together
from privsyn_flower.common.files import DataError
from privsyn_flower.common.progress import Progress, silent
from privsyn_flower.common.randomness import seeded
from privsyn_flower.common.terminal import one_line
from privsyn_flower.config.public import PublicTextConfig, SampledConfig
from privsyn_flower.text.protocols import Answering

Opened = Callable[[], AbstractContextManager[Answering]]  # the model, loaded when it is needed
WORD = 10  # characters of a word with its space: more than any language has on average
UNREAD = 32  # judgements from the first that cannot be read, before none of them could be
LEAST_TURNS = 2  # of a conversation; an answer with fewer is a refusal, or something else
EXAMPLE = Persona("", "", "", "", "")  # in a prompt whose words alone matter


def corpus_folder(config: PublicTextConfig) -> Path:
    """Where the corpus lies."""
    return Path(config.folder).expanduser()


def filter_texts(config: PublicTextConfig, opened: Opened, progress: Progress = silent) -> None:
    """Judge the texts of `filter.source` and keep those that are likely (section 3.1).

    A line has the text as it was read and its place (file, row). Counts: kept, rejected, unread
    (the judgement is neither 0 nor 1) and failed (there was none). Raises DataError, also where
    each of the first judgements is unread, and ServerError.
    """
    own = config.filter
    source = Source(own.source, own.text_column, public_users=own.public_users)
    settings = {
        "filter.source": source.identity(),
        "filter.text-column": own.text_column,
        "filter.words": own.words,
        "filter.max-tokens": own.max_tokens,
        **_of_model(config, judge_prompt("")),
    }
    with Journal(corpus_folder(config), "filter", settings) as journal:
        _hand_on(config, source.carried)
        if journal.until == own.limit:
            return
        total = _Total(source.size, own.limit)

        def requests() -> Iterator[Request]:
            for position, text in journal.take(source.texts(journal.start), own.limit):
                total.count(text)
                shown = _first_words(text, own.words)
                yield Request(judge_prompt(shown), own.max_tokens, (position, text))

        with opened() as model, _asker(config, model, JUDGE_TEMPERATURE) as asker:
            for answer in asker.ask(requests()):
                position, text = answer.request.note
                judgement = parse_judgement(answer.text or "")
                if judgement:
                    journal.add({"text": text, "stage": "filter", "place": position})
                verdict = "unread" if judgement is None else "kept" if judgement else "rejected"
                journal.counts += _cost(answer, verdict)
                journal.done(position)
                _look_whether_judged(journal.counts, answer, own.max_tokens)
                journal.tick()
                progress("filter", _finished(journal), total.of(journal), f"{journal.lines:,} kept")
        journal.until = own.limit


def _hand_on(config: PublicTextConfig, claim: str = "") -> None:
    """What is made of a source, by a model, carries what these carry. Raises DataError for a folder
    with another statement, which may be a run's own."""
    folder, model = corpus_folder(config), Path(config.models.generator).expanduser()
    claim = together([claim, carried(model) if model.is_dir() else ""])
    before = carried(folder) if (folder / STATEMENT).exists() else ""
    if claim in before:
        return
    if (folder / STATEMENT).exists() and (not before or before not in claim):
        raise DataError(
            f"{folder / STATEMENT} is of something else than filter.source and models.generator, "
            "whose own must lie there: name another folder"
        )
    hand_on(claim, folder)


def _look_whether_judged(counts: Mapping[str, int], answer: Answer, tokens: int) -> None:
    """Raise DataError for a model that has given no judgement yet: each answer costs."""
    if counts["unread"] >= UNREAD and not counts["kept"] + counts["rejected"]:
        raise DataError(
            f"none of the first {counts['unread']} judgements was 0 or 1; the last was "
            f"{one_line(answer.text or '', 40)!r}. A model that begins with a space or a thought "
            f"needs more than filter.max-tokens = {tokens}; else name another model, in both cases "
            "with another folder, or without filter.jsonl and filter.state.json"
        )


def convert_texts(config: PublicTextConfig, opened: Opened, progress: Progress = silent) -> None:
    """Make conversations of a share of the filtered texts (section 3.3).

    Which ones, their own hash and the seed say. A line has the conversation, and `of`, the place of
    its text. When the filter has gone on meanwhile, the same call converts what it added. Raises
    DataError where nothing was filtered, ServerError.
    """
    own, folder = config.convert, corpus_folder(config)
    state = read_state(folder, "filter")
    if state is None:
        raise DataError(f"{folder} has no filtered text to convert: run `privsyn public filter`")
    settings = {
        "filter.jsonl begun as": state.get("begun"),  # its lines are known by their offsets
        "seed": config.seed,
        "convert.share": own.share,
        "convert.words": own.words,
        "convert.max-tokens": own.max_tokens,
        **_of_model(config, convert_prompt(""), own),
    }
    with Journal(folder, "convert", settings) as journal:
        _hand_on(config)
        if journal.until == state["bytes"]:
            return
        drawn = _Drawn(config.seed, own.share)
        filtered = lines_of(folder, "filter", (journal.start or (0,))[0])
        pieces = (((offset,), line) for offset, line in filtered if line["text"] in drawn)

        def requests() -> Iterator[Request]:
            for position, line in journal.take(pieces):
                shown = _first_words(line["text"], own.words)
                yield Request(convert_prompt(shown), own.max_tokens, (position, line["place"]))

        expected = max(1.0, own.share * state["lines"])
        with opened() as model, _asker(config, model, own.temperature, own.top_k) as asker:
            for answer in asker.ask(requests()):
                position, place = answer.request.note
                _keep(journal, answer, {"stage": "convert", "of": place})
                journal.done(position)
                journal.tick()
                progress("convert", _finished(journal), max(expected, journal.taken))
        journal.until = state["bytes"]


def write_chats(config: PublicTextConfig, opened: Opened, progress: Progress = silent) -> None:
    """Write conversations of invented people: receivers, subjects, conversations (section 3.2).

    A line has the conversation, its persona, receiver and topic. Counts: lists, empty ones (without
    any item), failed requests. Raises DataError, ServerError.
    """
    own = config.chat
    if own.form == "messages":
        write_messages(config, opened, progress)
        return
    settings = {
        "seed": config.seed,
        "chat.receivers": own.receivers,
        "chat.topics": own.topics,
        "chat.list-tokens": own.list_tokens,
        "chat.max-tokens": own.max_tokens,
        **_of_model(
            config,
            receivers_prompt(EXAMPLE)
            + topics_prompt(EXAMPLE, "")
            + conversation_prompt(EXAMPLE, "", ""),
            own,
        ),
    }
    with Journal(corpus_folder(config), "chat", settings) as journal:
        _hand_on(config)
        if journal.until == own.personas:
            return
        chains = _Chains(config, journal)
        with opened() as model, _asker(config, model, own.temperature, own.top_k) as asker:
            for answer in asker.grow(chains.first(), chains.more):
                chains.add_conversation(answer)
                journal.tick()
                note = f"{journal.lines:,} conversations"
                progress("chat", _finished(journal), max(1, own.personas), note)
        journal.until = own.personas


def write_messages(config: PublicTextConfig, opened: Opened, progress: Progress = silent) -> None:
    """Write short messages of invented people, one list for each persona (`chat.form`).

    A line has the message, its persona and topic. Counts: messages kept, and left out by cause.
    """
    own = config.chat
    prompt = message_prompt(EXAMPLE, seeded(0, "messages"))[1]
    settings = {
        "seed": config.seed,
        "chat.form": own.form,
        "chat.max-tokens": own.max_tokens,
        **_of_model(config, prompt, own),
    }
    with Journal(corpus_folder(config), "chat", settings) as journal:
        _hand_on(config)
        if journal.until == own.personas:
            return
        personas = draw(own.personas, seeded(config.seed, "personas"))
        sieve = Sieve(line["text"] for _, line in lines_of(journal.folder, "chat"))

        def requests() -> Iterator[Request]:
            pieces = (((at,), persona) for at, persona in enumerate(personas))
            for position, persona in journal.take(pieces):
                rng = seeded(config.seed, "messages", *position)
                topic, prompt = message_prompt(persona, rng)
                yield Request(prompt, own.max_tokens, _Step(position, persona, topic=topic))

        with opened() as model, _asker(config, model, own.temperature, own.top_k) as asker:
            for answer in asker.ask(requests()):
                _keep_messages(journal, answer, sieve)
                journal.tick()
                progress(
                    "chat", _finished(journal), max(1, own.personas), f"{journal.lines:,} kept"
                )
        journal.until = own.personas


def _keep_messages(journal: Journal, answer: Answer, sieve: Sieve) -> None:
    step: _Step = answer.request.note
    found = items(answer.text or "", cut=_cut(answer))
    for text in found:
        cause, kept = sieve.sift(text)
        journal.counts[cause or "messages"] += 1
        if not cause:
            about = {"draw": step.position[0], "persona": list(step.persona), "topic": step.topic}
            journal.add({"text": kept, "stage": "chat", "form": "messages", **about})
    journal.counts += _cost(answer, "lists" if found else "empty_lists")
    journal.done(step.position)


class _Step(NamedTuple):
    """Of a chain: what a request is about, as far as it is known."""

    position: Position
    persona: Persona
    receiver: str = ""
    topic: str = ""


class _Chains:
    """The trees of requests of all personas under way, and when each is done."""

    def __init__(self, config: PublicTextConfig, journal: Journal) -> None:
        self.own, self.journal = config.chat, journal
        self.personas = draw(self.own.personas, seeded(config.seed, "personas"))
        self.waited = Counter[Position]()  # requests of a persona without their answers yet
        # Conversations that personas under way have already: at most those of a few.
        self.there = {
            _Step((line["draw"],), Persona(*line["persona"]), line["receiver"], line["topic"])
            for _, line in lines_of(journal.folder, "chat")
            if (line["draw"],) in journal.again
        } if journal.again else set[_Step]()  # fmt: skip

    def first(self) -> Iterator[Request]:
        """For each persona, the request for its receivers."""
        pieces = (((draw,), persona) for draw, persona in enumerate(self.personas))
        for position, persona in self.journal.take(pieces):
            self.waited[position] = 1
            yield self._request(_Step(position, persona))

    def more(self, answer: Answer) -> list[Request]:
        """What follows from a list; nothing, from a conversation."""
        step: _Step = answer.request.note
        if step.topic:
            return []
        most = self.own.topics if step.receiver else self.own.receivers
        items = parse_list(answer.text or "", most, cut=_cut(answer))
        steps = [
            step._replace(topic=item) if step.receiver else step._replace(receiver=item)
            for item in items
        ]
        following = [self._request(one) for one in steps if one not in self.there]
        cost = _cost(answer, "lists" if items else "empty_lists")
        self.journal.open[step.position].update(cost)
        self._settle(step.position, 1 - len(following))
        return following

    def add_conversation(self, answer: Answer) -> None:
        """Keep the conversation, if the answer is one."""
        step: _Step = answer.request.note
        if step.topic:
            about = {"draw": step.position[0], "persona": list(step.persona)}
            about |= {"receiver": step.receiver, "topic": step.topic}
            _keep(self.journal, answer, {"stage": "chat", **about}, step.position)
            self._settle(step.position, 1)

    def _settle(self, position: Position, answered: int) -> None:
        self.waited[position] -= answered
        if not self.waited[position]:
            del self.waited[position]
            self.journal.done(position)

    def _request(self, step: _Step) -> Request:
        if step.topic:
            prompt = conversation_prompt(step.persona, step.receiver, step.topic)
            return Request(prompt, self.own.max_tokens, step)
        if step.receiver:
            return Request(topics_prompt(step.persona, step.receiver), self.own.list_tokens, step)
        return Request(receivers_prompt(step.persona), self.own.list_tokens, step)


def _keep(
    journal: Journal, answer: Answer, about: Mapping[str, Any], open_piece: Position | None = None
) -> None:
    """Write an answer that is a conversation, and count it.

    open_piece: of a piece that goes on, what has no line is counted when it is done: after a kill
    it is asked for again.
    """
    cut = _cut(answer)
    talk = len(turns(answer.text or "", cut=cut)) >= LEAST_TURNS
    if talk:
        journal.add({"text": answer.text, **about, **({"cut": True} if cut else {})})
    cost = _cost(answer, "conversations" if talk else "unread")
    if talk or open_piece is None:
        journal.counts += cost
    else:
        journal.open[open_piece].update(cost)


def _cost(answer: Answer, kind: str) -> Counter[str]:
    """What an answer counts as, and the tokens that it cost when it was asked."""
    return Counter(
        {
            "failed" if answer.text is None else kind: 1,
            "answers": 1,
            "prompt_tokens": answer.prompt_tokens or 0,
            "completion_tokens": answer.tokens or 0,
        }
    )


def _cut(answer: Answer) -> bool:
    """Whether an answer ended because it had its most tokens."""
    return answer.tokens is not None and answer.tokens >= answer.request.max_tokens


def _asker(config: PublicTextConfig, model: Answering, temperature: float, top_k: int = 0) -> Asker:
    return Asker(
        model,
        corpus_folder(config),
        name=config.models.generator,
        temperature=temperature,
        top_k=top_k,
        concurrency=config.generation.concurrency,
    )


def _of_model(
    config: PublicTextConfig, prompt: str, sampled: SampledConfig | None = None
) -> dict[str, Any]:
    """What a stage's lines owe to the model: settings of its journal."""
    found: dict[str, Any] = {
        "models.generator": config.models.generator,
        "prompts": hashlib.sha256(prompt.encode()).hexdigest()[:16],
    }
    if sampled is not None:
        found |= {"temperature": sampled.temperature, "top-k": sampled.top_k}
    return found


def _first_words(text: str, most: int) -> str:
    """The text, or so much of it as has `most` words, with its white space; not more characters
    than WORD for each, which also cuts a text without spaces, as Chinese or Japanese is."""
    words = text.split(maxsplit=most)
    text = text[: len(text) - len(words[most])].rstrip() if len(words) > most else text
    return text[: WORD * most]


def _finished(journal: Journal) -> int:
    return journal.taken - len(journal.open)


class _Drawn:
    """The share of all texts whose hash is low; which ones, the seed says."""

    def __init__(self, seed: int, share: float) -> None:
        self.key, self.below = f"convert {seed}".encode(), share * 2**64

    def __contains__(self, text: str) -> bool:
        data = text.encode("utf-8", "replace")
        digest = hashlib.blake2b(data, key=self.key[:64], digest_size=8).digest()
        return int.from_bytes(digest) < self.below


class _Total:
    """How many texts a source has: its limit, or by its bytes and those of the texts so far."""

    def __init__(self, size: int, limit: int) -> None:
        self.size, self.limit = size, limit
        self.texts = self.bytes = 0

    def count(self, text: str) -> None:
        self.texts += 1
        self.bytes += len(text) + len('{"text": ""}\n')

    def of(self, journal: Journal) -> float:
        """Never less than were taken."""
        found = self.size * self.texts / max(1, self.bytes)
        return max(1, journal.taken, round(min(found, self.limit or found)))
