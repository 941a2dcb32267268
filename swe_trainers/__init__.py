"""Trains language models by reinforcement learning in any Gymnasium environment.

```python
from swe_trainers import PPO, LanguageModel, Trainer

trainer = Trainer(LanguageModel.load("Qwen/Qwen3-0.6B"), "CartPole-v1", PPO(learning_rate=1e-5))
trainer.train(updates=100)
```

Names are imported when they are first used: `import swe_trainers` imports no torch.
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from swe_trainers.algorithms import BUILT_IN, alternative
from swe_trainers.errors import install_hint

if TYPE_CHECKING:
    from swe_trainers.algorithms.algorithm import Algorithm
    from swe_trainers.algorithms.cloning import Cloning
    from swe_trainers.algorithms.grpo import DAPO, GRPO, GSPO, RLOO, DrGRPO
    from swe_trainers.algorithms.policy_gradient import PolicyGradient
    from swe_trainers.algorithms.ppo import PPO
    from swe_trainers.algorithms.reinforce import REINFORCE, REINFORCEPlusPlus
    from swe_trainers.algorithms.reward_model import RewardModel
    from swe_trainers.algorithms.tree import MonteCarloTree
    from swe_trainers.model.language_model import LanguageModel
    from swe_trainers.model.lora import LoRA
    from swe_trainers.model.tokenizers import WordTokenizer
    from swe_trainers.rollout.adapters import AnyText, TextAdapter
    from swe_trainers.rollout.trajectory import Trajectory
    from swe_trainers.run_config import EvaluationConfig
    from swe_trainers.trainer import Trainer

__all__ = [
    "DAPO",
    "GRPO",
    "GSPO",
    "PPO",
    "REINFORCE",
    "RLOO",
    "Algorithm",
    "AnyText",
    "Cloning",
    "DrGRPO",
    "EvaluationConfig",
    "LanguageModel",
    "LoRA",
    "MonteCarloTree",
    "PolicyGradient",
    "REINFORCEPlusPlus",
    "RewardModel",
    "TextAdapter",
    "Trainer",
    "Trajectory",
    "WordTokenizer",
    "__version__",
]

try:
    __version__ = version("swegym-env")  # one distribution holds both packages
except PackageNotFoundError:
    __version__ = "0+checkout"  # the source without an installation; pyproject.toml has the version

_MODULES = {
    "Algorithm": "swe_trainers.algorithms.algorithm",
    "AnyText": "swe_trainers.rollout.adapters",
    "EvaluationConfig": "swe_trainers.run_config",
    "LanguageModel": "swe_trainers.model.language_model",
    "LoRA": "swe_trainers.model.lora",
    "PolicyGradient": "swe_trainers.algorithms.policy_gradient",
    "TextAdapter": "swe_trainers.rollout.adapters",
    "Trainer": "swe_trainers.trainer",
    "Trajectory": "swe_trainers.rollout.trajectory",
    "WordTokenizer": "swe_trainers.model.tokenizers",
} | {name: module for module, _, name in (path.partition(":") for path in BUILT_IN.values())}
__all__ += [name for name in _MODULES if name not in __all__]  # algorithms that only their registry lists


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        if instead := alternative(name, classes=True):
            # `from swe_trainers import DPO` would hide the message of an AttributeError.
            raise ImportError(f"{name} is not available in {__name__}. Try: {instead}", name=name)
        similar = get_close_matches(name.lower(), [each.lower() for each in _MODULES], n=1)
        hint = next((f". Did you mean {each!r}?" for each in _MODULES if each.lower() in similar), "")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}", name=name)
    try:
        return getattr(import_module(_MODULES[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(f"{name} needs PyTorch. {install_hint('train')}", name=error.name) from error


def __dir__() -> list[str]:
    return sorted(__all__)
