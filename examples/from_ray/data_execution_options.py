# The calls are those of ray-project/ray, doc/source/data/execution-configurations.rst.
from headrace.compat import ray
from headrace.compat.ray.data import ExecutionOptions, ExecutionResources

ctx = ray.data.DataContext.get_current()
ctx.execution_options.preserve_order = True
ctx.execution_options.verbose_progress = True
ctx.execution_options.resource_limits = ExecutionResources(cpu=2, object_store_memory=1e9)
ctx.execution_options.resource_limits = ctx.execution_options.resource_limits.copy(cpu=1)
ctx.execution_options.exclude_resources = ExecutionResources(cpu=0)
ctx.target_max_block_size = 64 << 20
ctx.max_errored_blocks = 0
ctx.use_push_based_shuffle = True
options = ExecutionOptions(preserve_order=True)
assert options.preserve_order
ds = ray.data.range(10, override_num_blocks=5).map_batches(lambda batch: batch)
assert [row["id"] for row in ds.take_all()] == list(range(10))
ds.context.execution_options.preserve_order = True
ctx.execution_options = ExecutionOptions()
