from annex.ray.ray_nodes import address as address
from annex.ray.ray_nodes import hidden as hidden
