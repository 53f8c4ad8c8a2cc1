"""Preference training (DPO or SFT) of a LoRA adapter on pairs of completions."""

from privsyn_flower.text.preference.trainer import PreferenceTrainer

__all__ = ["PreferenceTrainer"]
