"""Text models: embedders, variations, generators and prompts.

Importing this package, or any module in it, loads neither torch nor transformers; the classes
that need them import them when they are made. Names are imported when first asked for.
"""

from typing import TYPE_CHECKING

from privsyn_flower.common.on_demand import on_demand
from privsyn_flower.text.protocols import (
    AdaptableGenerator,
    Embedder,
    Generator,
    Trained,
    Trainer,
    Variation,
)

if TYPE_CHECKING:
    from privsyn_flower.text.conditions import described_pairs, public_pairs
    from privsyn_flower.text.embedders import embedder_fingerprint, load_embedder
    from privsyn_flower.text.generators import HuggingFaceGenerator
    from privsyn_flower.text.models.devices import resolve_device
    from privsyn_flower.text.models.pretrained import ModelUnavailableError
    from privsyn_flower.text.pair_training import PairTraining, train_on_pairs
    from privsyn_flower.text.preference.trainer import PreferenceTrainer
    from privsyn_flower.text.prompts import (
        TooFewTextsError,
        expand,
        expand_prompt,
        parse_completion,
    )
    from privsyn_flower.text.serving.http_generator import OpenAIGenerator
    from privsyn_flower.text.tiny.assets import shipped_model
    from privsyn_flower.text.topic_training import make_topics
    from privsyn_flower.text.topics import TopicModel, load_topics, save_topics
    from privsyn_flower.text.variation import MaskFill, Mixed, Retrieval
else:
    __getattr__ = on_demand(
        __name__,
        {
            "conditions": "described_pairs public_pairs",
            "embedders": "embedder_fingerprint load_embedder",
            "generators": "HuggingFaceGenerator",
            "models.devices": "resolve_device",
            "models.pretrained": "ModelUnavailableError",
            "pair_training": "PairTraining train_on_pairs",
            "preference.trainer": "PreferenceTrainer",
            "prompts": "TooFewTextsError expand expand_prompt parse_completion",
            "serving.http_generator": "OpenAIGenerator",
            "tiny.assets": "shipped_model",
            "topic_training": "make_topics",
            "topics": "TopicModel load_topics save_topics",
            "variation": "MaskFill Mixed Retrieval",
        },
    )

__all__ = [
    "AdaptableGenerator",
    "Embedder",
    "Generator",
    "HuggingFaceGenerator",
    "MaskFill",
    "Mixed",
    "ModelUnavailableError",
    "OpenAIGenerator",
    "PairTraining",
    "PreferenceTrainer",
    "Retrieval",
    "TooFewTextsError",
    "TopicModel",
    "Trained",
    "Trainer",
    "Variation",
    "described_pairs",
    "embedder_fingerprint",
    "expand",
    "expand_prompt",
    "load_embedder",
    "load_topics",
    "make_topics",
    "parse_completion",
    "public_pairs",
    "resolve_device",
    "save_topics",
    "shipped_model",
    "train_on_pairs",
]
