from annex.ray.ray_nodes import address as address
from annex.ray.ray_nodes import hidden as hidden
from stores.conftest import _proxy as _proxy
from stores.conftest import bucket as bucket
from stores.conftest import port as port
from stores.conftest import proxy as proxy
from stores.conftest import raw as raw
