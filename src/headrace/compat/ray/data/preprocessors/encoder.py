"""Ray's ``ray.data.preprocessors.encoder``: names of ``ray.data.preprocessors``."""

from headrace.compat.ray.data.fitted import *  # noqa: F403
