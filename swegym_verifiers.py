"""The environment `swegym-verifiers` of verifiers, which finds environments by a module of their name."""

from swegym_env.adapters.verifiers import SwegymEnv, SwegymHarness, SwegymTaskset

__all__ = ["SwegymEnv", "SwegymHarness", "SwegymTaskset"]
