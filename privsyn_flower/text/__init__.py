"""Text models: embedders, variations, generators and prompts.

Importing this package, or any module in it, loads neither torch nor transformers; the classes
that need them import them when they are made. Names are imported when first asked for.
"""

from typing import TYPE_CHECKING

from privsyn_flower.common.on_demand import names_of, on_demand
from privsyn_flower.text.protocols import AdaptableGenerator as AdaptableGenerator
from privsyn_flower.text.protocols import Embedder as Embedder
from privsyn_flower.text.protocols import Generator as Generator
from privsyn_flower.text.protocols import Trained as Trained
from privsyn_flower.text.protocols import Trainer as Trainer
from privsyn_flower.text.protocols import Variation as Variation

if TYPE_CHECKING:
    from privsyn_flower.text.conditions import described_pairs as described_pairs
    from privsyn_flower.text.conditions import public_pairs as public_pairs
    from privsyn_flower.text.embedders import embedder_fingerprint as embedder_fingerprint
    from privsyn_flower.text.embedders import load_embedder as load_embedder
    from privsyn_flower.text.generators import HuggingFaceGenerator as HuggingFaceGenerator
    from privsyn_flower.text.models.devices import resolve_device as resolve_device
    from privsyn_flower.text.models.pretrained import ModelUnavailableError as ModelUnavailableError
    from privsyn_flower.text.pair_training import PairTraining as PairTraining
    from privsyn_flower.text.pair_training import train_on_pairs as train_on_pairs
    from privsyn_flower.text.preference.trainer import PreferenceTrainer as PreferenceTrainer
    from privsyn_flower.text.prompts import TooFewTextsError as TooFewTextsError
    from privsyn_flower.text.prompts import expand as expand
    from privsyn_flower.text.prompts import expand_prompt as expand_prompt
    from privsyn_flower.text.prompts import parse_completion as parse_completion
    from privsyn_flower.text.serving.http_generator import OpenAIGenerator as OpenAIGenerator
    from privsyn_flower.text.tiny.assets import shipped_model as shipped_model
    from privsyn_flower.text.topic_training import make_topics as make_topics
    from privsyn_flower.text.topics import TopicModel as TopicModel
    from privsyn_flower.text.topics import load_topics as load_topics
    from privsyn_flower.text.topics import save_topics as save_topics
    from privsyn_flower.text.variation import MaskFill as MaskFill
    from privsyn_flower.text.variation import Mixed as Mixed
    from privsyn_flower.text.variation import Retrieval as Retrieval
else:
    _HOMES = {
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
    }
    __getattr__ = on_demand(__name__, _HOMES)
    __all__ = names_of(
        _HOMES, "AdaptableGenerator", "Embedder", "Generator", "Trained", "Trainer", "Variation"
    )
