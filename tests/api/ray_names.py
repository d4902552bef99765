"""The arguments that Ray Data 2.60 has; test_ray_names says what becomes of each."""

PLACED = "label_selector fallback_strategy max_calls resources accelerator_type runtime_env "
NEEDS = "num_cpus num_gpus memory concurrency " + PLACED
# Of functions of rows and batches, of readers of files, and of writers of files.
CALL = "fn compute fn_args fn_kwargs fn_constructor_args fn_constructor_kwargs ray_remote_args_fn " + NEEDS
BLOCKS = "parallelism concurrency override_num_blocks "
FOUND = (
    "paths filesystem partition_filter partitioning include_paths ignore_missing_paths shuffle "
    "file_extensions arrow_open_stream_args concurrency override_num_blocks "
)
READ = FOUND + "parallelism ray_remote_args " + NEEDS
PUT = (
    "path filesystem try_create_dir arrow_open_stream_args filename_provider min_rows_per_file "
    "num_rows_per_file ray_remote_args concurrency mode "
)
LOOP = "prefetch_batches batch_size drop_last local_shuffle_buffer_size local_shuffle_seed "
TABLE = "override_num_blocks ray_remote_args " + NEEDS

# The arguments of what is offered, without those that come by ``**kwargs``.
ARGUMENTS = {
    "Dataset.with_column": "column_name expr batch_format compute " + NEEDS,
    "Dataset.columns": "fetch_if_missing",
    "Dataset.count": "",
    "Dataset.drop_columns": "cols compute " + NEEDS,
    "Dataset.explain": "",
    "Dataset.filter": "expr " + CALL,
    "Dataset.flat_map": CALL,
    "Dataset.input_files": "",
    "Dataset.iter_batches": "batch_format " + LOOP,
    "Dataset.iter_rows": "",
    "Dataset.iter_tf_batches": "dtypes " + LOOP,
    "Dataset.iter_torch_batches": "dtypes device collate_fn pin_memory " + LOOP,
    "Dataset.limit": "limit",
    "Dataset.map": CALL,
    "Dataset.map_batches": "batch_size batch_format zero_copy_batch udf_modifying_row_count " + CALL,
    "Dataset.materialize": "",
    "Dataset.max": "on ignore_nulls",
    "Dataset.mean": "on ignore_nulls",
    "Dataset.min": "on ignore_nulls",
    "Dataset.random_sample": "fraction seed",
    "Dataset.rename_columns": "names " + NEEDS,
    "Dataset.repartition": "num_blocks target_num_rows_per_block strict shuffle keys sort",
    "Dataset.schema": "fetch_if_missing",
    "Dataset.select_columns": "cols compute " + NEEDS,
    "Dataset.show": "limit",
    "Dataset.size_bytes": "",
    "Dataset.stats": "",
    "Dataset.std": "on ddof ignore_nulls",
    "Dataset.sum": "on ignore_nulls",
    "Dataset.take": "limit",
    "Dataset.take_all": "limit",
    "Dataset.take_batch": "batch_size batch_format",
    "Dataset.to_daft": "",
    "Dataset.to_pandas": "limit",
    "Dataset.to_tf": "feature_columns label_columns additional_columns feature_type_spec label_type_spec "
    "additional_type_spec " + LOOP,
    "Dataset.train_test_split": "test_size shuffle seed stratify",
    "Dataset.aggregate": "",
    "Dataset.groupby": "key num_partitions",
    "Dataset.join": "ds join_type num_partitions on right_on left_suffix right_suffix partition_size_hint "
    "aggregator_ray_remote_args validate_schemas",
    "Dataset.random_shuffle": "seed",
    "Dataset.sort": "key descending boundaries",
    "Dataset.split": "n equal locality_hints",
    "Dataset.split_at_indices": "indices",
    "Dataset.split_proportionately": "proportions",
    "Dataset.union": "",
    "Dataset.zip": "",
    "Dataset.unique": "column ignore_nulls",
    "Dataset.write_csv": "arrow_csv_args_fn " + PUT,
    "Dataset.write_json": "pandas_json_args_fn " + PUT,
    "Dataset.write_parquet": "partition_cols catalog arrow_parquet_args_fn max_rows_per_file min_bytes_per_file "
    + PUT,
    "Dataset.write_numpy": "column " + PUT,
    "Dataset.write_webdataset": "encoder " + PUT,
    "Dataset.write_delta": "path catalog mode partition_by storage_options schema_mode filesystem name description "
    "ray_remote_args concurrency",
    "Dataset.write_iceberg": "table_identifier catalog_kwargs catalog snapshot_properties mode overwrite_filter "
    "upsert_kwargs overwrite_kwargs ray_remote_args concurrency",
    "Dataset.write_lance": "path schema mode min_rows_per_file max_rows_per_file data_storage_version "
    "storage_options table_id namespace_impl namespace_properties ray_remote_args concurrency",
    "Dataset.write_sql": "sql connection_factory ray_remote_args concurrency",
    "Dataset.write_images": "path column file_format filesystem try_create_dir arrow_open_stream_args "
    "filename_provider ray_remote_args concurrency mode",
    "Dataset.write_tfrecords": "tf_schema " + PUT,
    "read_webdataset": "paths filesystem partition_filter include_paths file_extensions shuffle "
    "arrow_open_stream_args decoder fileselect filerename suffixes verbose_open expand_json "
    + BLOCKS
    + NEEDS,
    "from_arrow": "tables override_num_blocks",
    "from_daft": "df",
    "from_huggingface": "dataset " + BLOCKS,
    "from_items": "items parallelism override_num_blocks",
    "from_numpy": "ndarrays",
    "from_pandas": "dfs override_num_blocks",
    "from_spark": "df parallelism override_num_blocks",
    "from_torch": "dataset local_read",
    "range": "n " + BLOCKS,
    "range_tensor": "n shape " + BLOCKS,
    "read_binary_files": READ,
    "read_csv": READ,
    "read_delta": "path version storage_options filesystem catalog columns parallelism shuffle include_paths "
    + TABLE,
    "read_iceberg": "table_identifier row_filter parallelism selected_fields snapshot_id scan_kwargs catalog_kwargs "
    "catalog num_cpus num_gpus memory override_num_blocks ray_remote_args " + PLACED,
    "read_images": "size mode arrow_open_file_args " + READ.replace("arrow_open_stream_args ", ""),
    "read_json": "lines " + READ,
    "read_audio": READ.replace("parallelism ", ""),
    "read_video": "include_timestamps fps resize " + READ.replace("parallelism ", ""),
    "read_tfrecords": "tf_schema " + READ.replace("partitioning ", ""),
    "read_lance": "uri version columns filter storage_options scanner_options " + TABLE,
    "read_avro": READ.replace("ray_remote_args ", ""),
    "read_orc": READ.replace("ray_remote_args ", "").replace("arrow_open_stream_args ", ""),
    "read_numpy": "parallelism allow_pickle " + FOUND,
    "read_parquet": "catalog columns tensor_column_schema include_row_hash skip_paths "
    + READ.replace("arrow_open_stream_args ", ""),
    "read_sql": "sql connection_factory sql_params shard_keys shard_hash_fn parallelism " + TABLE,
    "read_text": "encoding drop_empty_lines " + READ,
    "ActorPoolStrategy": "size min_size max_size initial_size max_tasks_in_flight_per_actor "
    "max_concurrent_calls_per_actor enable_true_multi_threading",
    "TaskPoolStrategy": "size",
}
