"""What `from privsyn_flower import ...` gives, for type checkers and editors."""

from privsyn_flower.client_apps import private_evaluation as private_evaluation
from privsyn_flower.client_apps import private_training as private_training
from privsyn_flower.config import AveragingConfig as AveragingConfig
from privsyn_flower.config import FtrlConfig as FtrlConfig
from privsyn_flower.config import TrainingConfig as TrainingConfig
from privsyn_flower.privacy import PrivacyStatement as PrivacyStatement
from privsyn_flower.privacy import Sampler as Sampler
from privsyn_flower.privacy import account as account
from privsyn_flower.privacy import calibrate as calibrate
from privsyn_flower.protocol import Query as Query
from privsyn_flower.strategies import CTCL as CTCL
from privsyn_flower.strategies import DPFTRL as DPFTRL
from privsyn_flower.strategies import AllNodesFailed as AllNodesFailed
from privsyn_flower.strategies import Callback as Callback
from privsyn_flower.strategies import DPFedAvg as DPFedAvg
from privsyn_flower.strategies import NoRelease as NoRelease
from privsyn_flower.strategies import NothingLearned as NothingLearned
from privsyn_flower.strategies import PldAccountant as PldAccountant
from privsyn_flower.strategies import POPri as POPri
from privsyn_flower.strategies import PrEText as PrEText
from privsyn_flower.strategies import PrivateEvaluation as PrivateEvaluation
from privsyn_flower.strategies import PrivateEvolution as PrivateEvolution
from privsyn_flower.strategies import SynthesisStrategy as SynthesisStrategy
from privsyn_flower.strategies import TooFewNodes as TooFewNodes
from privsyn_flower.strategies.ctcl.config import CtclConfig as CtclConfig
from privsyn_flower.strategies.pe.config import PeConfig as PeConfig
from privsyn_flower.strategies.popri.config import PopriConfig as PopriConfig
from privsyn_flower.strategies.pretext.config import PreTextConfig as PreTextConfig
from privsyn_flower.summation import secure_sum as secure_sum
from privsyn_flower.summation import secure_vector as secure_vector
from privsyn_flower.text import HuggingFaceGenerator as HuggingFaceGenerator
from privsyn_flower.text import MaskFill as MaskFill
from privsyn_flower.text import OpenAIGenerator as OpenAIGenerator
from privsyn_flower.text import PreferenceTrainer as PreferenceTrainer
from privsyn_flower.text import Retrieval as Retrieval
from privsyn_flower.text import load_embedder as load_embedder
from privsyn_flower.text import load_topics as load_topics
from privsyn_flower.text import make_topics as make_topics
from privsyn_flower.text import shipped_model as shipped_model

NO_TELEMETRY: dict[str, str]
__version__: str
