"""Ray's ``ray.data.datasource.filename_provider``: names of ``ray.data.datasource``."""

from headrace.compat.ray.data.datasource.custom import *  # noqa: F403
