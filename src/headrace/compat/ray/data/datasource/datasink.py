"""Ray's ``ray.data.datasource.datasink``: names of ``ray.data.datasource``."""

from headrace.compat.ray.data.datasource.custom import *  # noqa: F403
