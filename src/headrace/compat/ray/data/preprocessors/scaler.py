"""Ray's ``ray.data.preprocessors.scaler``: names of ``ray.data.preprocessors``."""

from headrace.compat.ray.data.fitted import *  # noqa: F403
