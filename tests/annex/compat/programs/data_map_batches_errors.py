"""What is wrong with a function's result, or raised in it, is an error."""

import ray

ray.data.DataContext.get_current().log_internal_stack_trace = False
ds = ray.data.range(3)


def raises(batch):
    raise KeyError("nothing")


def attempt(name, dataset):
    try:
        dataset.take_all()
        print(name, "passed")
    except Exception as error:
        print(name, isinstance(error, (ray.exceptions.RayTaskError, ray.exceptions.UserCodeException)))


attempt("raises", ds.map_batches(raises))
attempt("unequal lengths", ds.map_batches(lambda batch: {"a": [1, 2], "b": [1]}))
attempt("a number", ds.map_batches(lambda batch: 3))
attempt("missing column", ds.map_batches(lambda batch: {"a": batch["b"]}))
attempt("a row that is a number", ds.map(lambda row: 3))
attempt("rows that are numbers", ds.flat_map(lambda row: [3]))
attempt("fine", ds.map_batches(lambda batch: batch))
