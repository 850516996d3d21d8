"""What a model is made of, read from its config.json."""

from stepgrade.hardware.models.config import ARCHITECTURES, model_from_config, read_model
from stepgrade.hardware.models.shape import Layer, Linear, ModelShape

__all__ = ["ARCHITECTURES", "Layer", "Linear", "ModelShape", "model_from_config", "read_model"]
