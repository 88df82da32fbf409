"""Teaching kernel models from measured kernels."""

from jaxscale.training.train import RECIPES, train

__all__ = ["RECIPES", "train"]
