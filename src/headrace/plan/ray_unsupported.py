"""What Ray Data has and Headrace has not, and why: verbs and functions. Data only; ``ray_arguments`` has arguments.

A name that is not offered is answered by ``NotOffered`` with the reason given here.
"""

from __future__ import annotations

from headrace.plan.ray_arguments import ORDER

# ---------------------------------------------------------------- verbs of a dataset

_BLOCKS = "blocks are not visible here"
_REFS = "there is no object store behind a dataset"
_DATABASE = "outputs are folders of files, which a kill cannot tear. Write Parquet, and load that"
_FORMAT = "there is no writer for this format. Write Parquet, and convert that"

NO_VERBS = {
    "add_column": "with_column(name, function of a batch) adds a column; headrace.compat.ray.data has it by both "
    "names.",
    "context": "there are no global settings. with_options says how this dataset's plan runs.",
    "copy": "a dataset never changes, so there is no need for a copy of it.",
    "deserialize_lineage": "a dataset is pickled as it is: cloudpickle.loads reads it.",
    "get_dataset_id": "a run is known by its output folder, and result.run names it.",
    "get_internal_block_refs": f"{_REFS}. iter_batches(batch_format='pyarrow') gives the rows.",
    "get_stats_summary": "stats() describes the last run in words, and a Result's ledger has its numbers.",
    "has_serializable_lineage": "a dataset is pickled as it is: cloudpickle.dumps writes any that can run.",
    "iter_internal_ref_bundles": f"{_REFS}. iter_batches(batch_format='pyarrow') gives the rows.",
    "iter_jax_batches": "iter_batches gives arrays, and jax.device_put moves one to a device.",
    "iterator": "datasets have iter_batches() and iter_rows(); those of headrace.compat.ray have iterator(), too.",
    "map_batches_internal": "map_batches is the public name, and its arguments say what is done with batches.",
    "mix": f"datasets are not interleaved: {ORDER}. union puts one after the other.",
    "name": "a run is known by its output folder, and result.run names it.",
    "num_blocks": f"{_BLOCKS}. explain() says how many shards a run has, and batch_size= what a function gets.",
    "randomize_block_order": f"{_BLOCKS}. random_shuffle(seed=1) shuffles rows; read_* takes shuffled paths.",
    "serialize_lineage": "a dataset is pickled as it is: cloudpickle.dumps writes it.",
    "set_name": "a run is known by its output folder, and result.run names it.",
    "streaming_split": "split(n) gives parts, each of which is read by itself. Feeding several trainers at a time is "
    "not what Headrace is for.",
    "streaming_train_test_split": "train_test_split(0.2, seed=1) is lazy, and divides by a hash of file and row.",
    "summary": "aggregate(Sum('x'), Quantile('x'), …) gives several numbers about columns at once.",
    "to_arrow_refs": f"{_REFS}. to_arrow() gives one table.",
    "to_dask": "there is no adapter. Write Parquet, and dask.dataframe.read_parquet reads it.",
    "to_mars": "there is no adapter. to_pandas() gives a DataFrame; or write Parquet, which it reads.",
    "to_modin": "there is no adapter. to_pandas() gives a DataFrame; or write Parquet, which it reads.",
    "to_numpy_refs": f"{_REFS}. take_batch() or iter_batches() give arrays.",
    "to_pandas_refs": f"{_REFS}. to_pandas() gives one DataFrame, iter_batches(batch_format='pandas') several.",
    "to_random_access_dataset": "rows are not served by key. Write Parquet, and look keys up with DuckDB.",
    "to_spark": "there is no adapter. Write Parquet, and spark.read.parquet reads it.",
    "with_columns": "with_column(name, expression) adds one column; say it once for each.",
    "write_bigquery": f"{_DATABASE}.",
    "write_clickhouse": f"{_DATABASE}.",
    "write_datasink": "Ray's datasinks commit by other rules. A format of your own fills the port "
    "headrace.core.target_ports.Format, a table of your own headrace.core.target_ports.Target.",
    "write_kafka": f"{_DATABASE}.",
    "write_mongo": f"{_DATABASE}.",
    "write_orc": f"{_FORMAT}: pyarrow.orc.write_table takes what pyarrow.parquet reads.",
    "write_snowflake": f"{_DATABASE}.",
    "write_turbopuffer": f"{_DATABASE}.",
}

_LAZY = "a dataset describes work, and only some of its methods read data"
FAMILIAR_VERBS = {
    "apply": "map has a function of one row, map_batches one of many rows as arrays (or batch_format='pandas').",
    "assign": "with_column(name, expression or function of a batch) adds a column.",
    "batch": "map_batches(fn, batch_size=…) works in batches, iter_batches(batch_size=…) yields them.",
    "collect": "take_all gives rows, to_pandas, to_arrow and to_polars tables.",
    "column_names": "columns() gives them, and schema() their types.",
    "distinct": "drop_duplicates() keeps one of rows that are the same, drop_duplicates(key) one of each key.",
    "drop": "drop_columns leaves columns out, filter rows.",
    "dtypes": "schema() gives columns and their types.",
    "features": "schema() gives columns and their types.",
    "head": "take(5) gives the first rows, show(5) prints them, limit(5).to_pandas() makes a frame of them.",
    "iloc": "take(n) gives the first rows, filter chooses rows, select_columns columns.",
    "iterrows": "iter_rows() yields rows as dicts.",
    "loc": "filter chooses rows, select_columns columns.",
    "merge": "join(other, on=…, how=…) puts rows beside those that have the same key.",
    "nlargest": "top_k(n, by=…) keeps the rows with the biggest values.",
    "order_by": "sort(key, descending=…) does it.",
    "num_rows": "count() counts them.",
    "rename": "rename_columns({'old': 'new'}) does it.",
    "rename_column": "rename_columns({'old': 'new'}) does it.",
    "remove_columns": "drop_columns does it.",
    "save_to_disk": "write_parquet(folder) writes it.",
    "select": "select_columns chooses columns, filter rows.",
    "shuffle": "random_shuffle(seed=…) shuffles rows, the same way each time.",
    "shape": f"{_LAZY}: count() counts rows, columns() names columns.",
    "sample": "random_sample(fraction) gives the same rows each time; limit(n) the first ones.",
    "tail": "rows come from the front: take(n). For the last ones, filter by what is in the row.",
    "value_counts": "groupby(column).count() counts the rows of each value.",
    "to_csv": "write_csv(folder) writes it.",
    "to_dict": "take_all() gives a list of dicts, to_arrow().to_pydict() a dict of columns.",
    "to_json": "write_json(folder) writes it.",
    "to_list": "take_all() gives a list of dicts.",
    "to_numpy": "take_batch(n) gives a dict of arrays, iter_batches() many.",
    "to_parquet": "write_parquet(folder) writes it.",
    "values": "take_batch(n) gives a dict of arrays, iter_batches() many.",
}
"""Of pandas, Polars and Hugging Face's datasets."""

# ---------------------------------------------------------------- functions of the module

_SERVER = (
    "Headrace reads files and what is in memory. Export the table to Parquet, or fetch it as Arrow for "
    "from_arrow"
)
_NO_READER = "there is no reader for this format. Convert it to Parquet, or give from_arrow what"
_NO_REFS = f"{_REFS}. Get the values first"

_ONE = (
    "for one dict of columns: from_arrow(pyarrow.table(columns)), or from_pandas(pandas.DataFrame(columns))"
)
_AIR = "it is Ray AIR's name, in headrace.compat.ray.train"
_AIR_MODEL = "dataset.predict takes the model itself, or its file."
FAMILIAR_FUNCTIONS = {
    "DataFrame": "from_pandas takes one, and read_* makes a dataset of files.",
    "BatchPredictor": f"{_AIR}.batch_predictor; dataset.predict(model) does the same.",
    "Checkpoint": f"{_AIR}, by library: {_AIR_MODEL}",
    **{
        f"{library}Checkpoint": f"{_AIR}.{library.lower()}: {_AIR_MODEL}"
        for library in ("Torch", "Sklearn", "XGBoost", "LightGBM", "Tensorflow")
    },
    "KerasCheckpoint": f"{_AIR}.tensorflow, as TensorflowCheckpoint: {_AIR_MODEL}",
    "OnnxCheckpoint": f"it has gone: {_AIR_MODEL}",
    "TransformersCheckpoint": f"{_AIR}.huggingface: {_AIR_MODEL}",
    "TensorflowPredictor": "KerasPredictor is its name.",
    "data": "the functions of ray.data are here themselves: hr.read_parquet(…), hr.from_items(…), ….",
    "from_dict": f"{_ONE}. from_items takes a list of dicts, one per row.",
    "from_dicts": "from_items takes a list of dicts, one per row.",
    "from_generator": "from_items(generator) takes what fits into memory.",
    "from_list": "from_items takes a list of values, or of dicts, one per row.",
    "from_pydict": f"{_ONE}.",
    "from_pylist": "from_items takes a list of dicts, one per row.",
    "from_records": "from_items takes a list of dicts, one per row.",
    "from_tensor_slices": "from_numpy takes arrays, from_arrow and from_pandas tables of columns.",
    "init": "nothing has to be started: a dataset starts its workers, and connect() is for calls of functions.",
    "load_dataset": "from_huggingface takes what datasets.load_dataset(…) returns.",
    "pipeline": "predict takes the folder of a model, or TransformersPredictor(folder, task=…).",
    "read_excel": "from_pandas(pandas.read_excel(path)) takes what fits into memory; else save it as CSV.",
    "read_feather": "from_arrow(pyarrow.feather.read_table(path)) takes it.",
    "read_pickle": "from_pandas(pandas.read_pickle(path)) takes a frame that you trust.",
    "read_table": "read_csv(path, delimiter=…) reads text with columns, read_parquet Parquet.",
    "scan_csv": "read_csv is lazy.",
    "scan_parquet": "read_parquet is lazy.",
}
"""Of other libraries: pandas, Polars, Hugging Face, ``tf.data``."""

NO_FUNCTIONS = {
    "DataContext": "there are no global settings. with_options says how one dataset's plan runs; programs for Ray "
    "Data "
    "find theirs in headrace.compat.ray.data.",
    "DatasetContext": "there are no global settings. with_options says how one dataset's plan runs.",
    "ExecutionOptions": "with_options says how a plan runs: workers=, memory_limit=, ....",
    "from_blocks": "there are no blocks here. from_arrow and from_pandas take a list of tables or DataFrames.",
    "from_arrow_refs": f"{_NO_REFS}: from_arrow(ray.get(refs)).",
    "from_dask": "there is no adapter. from_pandas(ddf.compute()) takes it if it fits into memory, else write "
    "Parquet.",
    "from_mars": "there is no adapter. from_pandas(df.to_pandas().fetch()) takes it, else write Parquet.",
    "from_modin": "there is no adapter. from_pandas(df.modin.to_pandas()) takes it.",
    "from_numpy_refs": f"{_NO_REFS}: from_numpy(ray.get(refs)).",
    "from_pandas_refs": f"{_NO_REFS}: from_pandas(ray.get(refs)).",
    "from_tf": "from_items(list(dataset.as_numpy_iterator())) takes what fits into memory.",
    "read_bigquery": f"{_SERVER}.",
    "read_clickhouse": f"{_SERVER}.",
    "read_databricks_tables": f"{_SERVER}.",
    "read_datasource": "Ray's datasources cut their input by other rules. Dataset.from_source takes whatever "
    "fills the "
    "port headrace.core.source_ports.Source.",
    "read_delta_sharing_tables": f"{_SERVER}.",
    "read_hudi": f"{_NO_READER} its own library reads.",
    "read_kafka": f"{_SERVER}.",
    "read_lerobot": "there is no reader for it. Its tables are Parquet, for read_parquet.",
    "read_mcap": f"{_NO_READER} its own library reads.",
    "read_mongo": f"{_SERVER}.",
    "read_snowflake": f"{_SERVER}.",
    "read_unity_catalog": f"{_SERVER}.",
    "read_videos": "read_video is its name here; headrace.compat.ray.data has it by both.",
    "read_zarr": f"{_NO_READER} its own library reads; from_numpy takes its arrays.",
}
