"""The file of `privsyn public`: public text made to look like the private, before any run.

A configuration of its own: it names no users and no budget, because what it names must be public.
Whether a text is, nobody but its owner knows; a source with a column of users is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationError, model_validator

from privsyn_flower.config.models import GenerationConfig
from privsyn_flower.config.section import (
    ConfigError,
    Scalar,
    Section,
    explain,
    flatten,
    nested,
    split_list,
)
from privsyn_flower.config.toml import parse_override, read_flat

STAGES = ("filter", "chat", "convert")  # that make text; `mix` puts it together


class WriterConfig(Section):
    """`[models]` of this file: the one model that judges and writes."""

    generator: str = Field(
        "", description="a model taught to follow instructions: the server's name for it, a "
        "folder, or a hub name"
    )  # fmt: skip
    device: str = Field("auto", description="huggingface: auto, cpu, cuda, cuda:0, mps")


class FilterConfig(Section):
    """`[filter]`: public texts whose subject people write about on phones (section 3.1)."""

    source: str = Field(
        "", description="public text: a .jsonl, .csv, .tsv or .parquet file, a folder of such "
        "files, or hub:NAME[@CONFIG][#SPLIT[:ROWS]]"
    )  # fmt: skip
    text_column: str = Field("text", description="of the source")
    public_users: bool = Field(
        False, description="true: the source has a column user_id and is public all the same; "
        "else it is taken for private text and refused"
    )  # fmt: skip
    limit: int = Field(0, ge=0, description="texts that are judged; 0: all")
    words: int = Field(
        400, ge=1, description="of a text that the model is shown, and at most ten characters each"
    )  # fmt: skip
    max_tokens: int = Field(1, ge=1, description="of a judgement")


class SampledConfig(Section):
    """How the model's words are drawn (section 3.2)."""

    temperature: float = Field(0.2, ge=0, description="of the sampling; 0: the likeliest word")
    top_k: int = Field(40, ge=0, description="words that are drawn from; 0: all")


class ChatConfig(SampledConfig):
    """`[chat]`: conversations, or single messages, of invented people (section 3.2)."""

    form: Literal["conversations", "messages"] = Field(
        "conversations", description="conversations: lists of receivers and topics, then both "
        "sides; messages: each persona continues one list of short messages, which small models "
        "can do; receivers, topics and list-tokens are not read then"
    )  # fmt: skip
    personas: int = Field(
        100, ge=0, le=73_920, description="drawn of the 73,920, each once; each has at most "
        "receivers x topics conversations"
    )  # fmt: skip
    receivers: int = Field(20, ge=1, description="taken of one list, at most")
    topics: int = Field(20, ge=1, description="taken of one list, at most")
    list_tokens: int = Field(256, ge=1, description="of a list")
    max_tokens: int = Field(768, ge=1, description="of a conversation")


class ConvertConfig(SampledConfig):
    """`[convert]`: filtered texts become conversations (section 3.3)."""

    share: float = Field(0.2, gt=0, le=1, description="of the filtered texts, drawn by their hash")
    words: int = Field(
        600, ge=1, description="of a text that the model is shown, and at most ten characters each"
    )  # fmt: skip
    max_tokens: int = Field(1024, ge=1, description="of a conversation")


class MixConfig(Section):
    """`[mix]`: the stages' texts in one file (sections 3.4 and C.1)."""

    stages: str = Field("filter,chat,convert", description="whose texts; a list with commas")
    examples: Literal["turns", "texts"] = Field(
        "turns", description="turns: an example is a turn of a chat, without its writer's name, or "
        "a sentence of a filtered text; texts: a whole conversation or text"
    )  # fmt: skip
    repeats: Literal["keep", "remove"] = Field(
        "keep", description="of whole conversations and texts, exact ones; keep: as in the paper"
    )
    limit: int = Field(0, ge=0, description="examples; 0: all")

    @property
    def chosen(self) -> Sequence[str]:
        """The stages, each once, in the file's order."""
        return list(dict.fromkeys(split_list(self.stages)))

    @model_validator(mode="after")
    def _known_stages(self) -> Self:
        unknown = [name for name in self.chosen if name not in STAGES]
        if unknown or not self.chosen:
            raise ValueError(
                f"mix.stages = {self.stages!r}: must be one or more of {', '.join(STAGES)}"
            )
        return self


class PublicTextConfig(Section):
    """The whole file."""

    folder: str = Field("public-text", description="of the corpus; made by the first stage")
    seed: int = Field(0, ge=0, description="of the personas, and of what is converted")
    vocabulary: str = Field(
        "", description="for coverage: a file with a word on each line, or the folder of an lstm"
    )
    models: WriterConfig = Field(default_factory=WriterConfig)
    generation: GenerationConfig = Field(default_factory=lambda: GenerationConfig(chat=True))
    filter: FilterConfig = Field(default_factory=FilterConfig)
    chat: ChatConfig = Field(default_factory=ChatConfig)
    convert: ConvertConfig = Field(default_factory=ConvertConfig)
    mix: MixConfig = Field(default_factory=MixConfig)

    @model_validator(mode="after")
    def _follows_instructions(self) -> Self:
        if not self.generation.chat and self.chat.form != "messages":
            raise ValueError(
                "generation.chat = false: the prompts are instructions; set generation.chat = true "
                "and name a model that was taught to follow them, or set chat.form = 'messages'"
            )
        return self


def load_public_config(path: Path, settings: Sequence[str] = ()) -> PublicTextConfig:
    """A TOML file with `key=value` settings on top. Raises ConfigError."""
    defaults = flatten(PublicTextConfig().model_dump(by_alias=True))
    values: dict[str, Scalar] = {"generation.chat": True}  # need not be said
    values |= read_flat(path) | dict(parse_override(text, defaults) for text in settings)
    try:
        return PublicTextConfig.model_validate(nested(values, defaults))
    except ValidationError as error:
        raise ConfigError(explain(error)) from None
