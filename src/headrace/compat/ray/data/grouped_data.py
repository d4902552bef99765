"""Ray's ``ray.data.grouped_data``."""

from headrace.compat.ray.data.aggregate import Groups

GroupedData = Groups
