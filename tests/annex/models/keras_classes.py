"""A layer and a model of one's own, as a user's script has them."""

from __future__ import annotations

from typing import Any

import keras


class Doubled(keras.layers.Layer):
    def call(self, inputs: Any) -> Any:
        return inputs * 2


class Subclass(keras.Model):
    def __init__(self, width: int = 2, **options: Any) -> None:
        super().__init__(**options)
        self.width = width
        self.dense = keras.layers.Dense(width)
        self.doubled = Doubled()

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.doubled(self.dense(inputs))

    def get_config(self) -> Any:
        return {**super().get_config(), "width": self.width}
