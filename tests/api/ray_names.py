"""The arguments that Ray Data 2.60 has; test_ray_names says what becomes of each."""

PLACED = "label_selector fallback_strategy max_calls resources accelerator_type runtime_env"

# The arguments of what is offered, without those that come by ``**kwargs``.
ARGUMENTS = {
    "Dataset.with_column": "column_name expr batch_format compute concurrency num_cpus num_gpus memory "
    + PLACED,
    "Dataset.columns": "fetch_if_missing",
    "Dataset.count": "",
    "Dataset.drop_columns": "cols compute concurrency num_cpus num_gpus memory " + PLACED,
    "Dataset.explain": "",
    "Dataset.filter": (
        "fn expr compute fn_args fn_kwargs fn_constructor_args fn_constructor_kwargs num_cpus num_gpus "
        "memory concurrency ray_remote_args_fn " + PLACED
    ),
    "Dataset.flat_map": (
        "fn compute fn_args fn_kwargs fn_constructor_args fn_constructor_kwargs num_cpus num_gpus memory "
        "concurrency ray_remote_args_fn " + PLACED
    ),
    "Dataset.input_files": "",
    "Dataset.iter_batches": (
        "prefetch_batches batch_size batch_format drop_last local_shuffle_buffer_size local_shuffle_seed"
    ),
    "Dataset.iter_rows": "",
    "Dataset.iter_tf_batches": (
        "prefetch_batches batch_size dtypes drop_last local_shuffle_buffer_size local_shuffle_seed"
    ),
    "Dataset.iter_torch_batches": (
        "prefetch_batches batch_size dtypes device collate_fn drop_last local_shuffle_buffer_size "
        "local_shuffle_seed pin_memory "
    ),
    "Dataset.limit": "limit",
    "Dataset.map": (
        "fn compute fn_args fn_kwargs fn_constructor_args fn_constructor_kwargs num_cpus num_gpus memory "
        "concurrency ray_remote_args_fn " + PLACED
    ),
    "Dataset.map_batches": (
        "fn batch_size compute batch_format zero_copy_batch fn_args fn_kwargs fn_constructor_args "
        "fn_constructor_kwargs num_cpus num_gpus memory concurrency udf_modifying_row_count "
        "ray_remote_args_fn " + PLACED
    ),
    "Dataset.materialize": "",
    "Dataset.max": "on ignore_nulls",
    "Dataset.mean": "on ignore_nulls",
    "Dataset.min": "on ignore_nulls",
    "Dataset.random_sample": "fraction seed",
    "Dataset.rename_columns": "names concurrency num_cpus num_gpus memory " + PLACED,
    "Dataset.repartition": "num_blocks target_num_rows_per_block strict shuffle keys sort",
    "Dataset.schema": "fetch_if_missing",
    "Dataset.select_columns": "cols compute concurrency num_cpus num_gpus memory " + PLACED,
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
    "Dataset.to_tf": (
        "feature_columns label_columns additional_columns prefetch_batches batch_size drop_last "
        "local_shuffle_buffer_size local_shuffle_seed feature_type_spec label_type_spec "
        "additional_type_spec "
    ),
    "Dataset.train_test_split": "test_size shuffle seed stratify",
    "Dataset.aggregate": "",
    "Dataset.groupby": "key num_partitions",
    "Dataset.join": (
        "ds join_type num_partitions on right_on left_suffix right_suffix partition_size_hint "
        "aggregator_ray_remote_args validate_schemas"
    ),
    "Dataset.random_shuffle": "seed",
    "Dataset.sort": "key descending boundaries",
    "Dataset.split": "n equal locality_hints",
    "Dataset.split_at_indices": "indices",
    "Dataset.split_proportionately": "proportions",
    "Dataset.union": "",
    "Dataset.zip": "",
    "Dataset.unique": "column ignore_nulls",
    "Dataset.write_csv": (
        "path filesystem try_create_dir arrow_open_stream_args filename_provider arrow_csv_args_fn "
        "min_rows_per_file ray_remote_args concurrency num_rows_per_file mode "
    ),
    "Dataset.write_json": (
        "path filesystem try_create_dir arrow_open_stream_args filename_provider pandas_json_args_fn "
        "min_rows_per_file ray_remote_args concurrency num_rows_per_file mode "
    ),
    "Dataset.write_parquet": (
        "path partition_cols filesystem catalog try_create_dir arrow_open_stream_args filename_provider "
        "arrow_parquet_args_fn min_rows_per_file max_rows_per_file min_bytes_per_file ray_remote_args "
        "concurrency num_rows_per_file mode "
    ),
    "Dataset.write_numpy": (
        "path column filesystem try_create_dir arrow_open_stream_args filename_provider min_rows_per_file "
        "ray_remote_args concurrency num_rows_per_file mode "
    ),
    "Dataset.write_webdataset": (
        "path filesystem try_create_dir arrow_open_stream_args filename_provider min_rows_per_file "
        "ray_remote_args encoder concurrency num_rows_per_file mode "
    ),
    "Dataset.write_delta": (
        "path catalog mode partition_by storage_options schema_mode filesystem name description ray_remote_args "
        "concurrency"
    ),
    "Dataset.write_iceberg": (
        "table_identifier catalog_kwargs catalog snapshot_properties mode overwrite_filter upsert_kwargs "
        "overwrite_kwargs ray_remote_args concurrency"
    ),
    "Dataset.write_lance": (
        "path schema mode min_rows_per_file max_rows_per_file data_storage_version storage_options table_id "
        "namespace_impl namespace_properties ray_remote_args concurrency"
    ),
    "Dataset.write_sql": "sql connection_factory ray_remote_args concurrency",
    "read_webdataset": (
        "paths filesystem parallelism num_cpus num_gpus memory arrow_open_stream_args partition_filter decoder "
        "fileselect filerename suffixes verbose_open shuffle include_paths file_extensions concurrency "
        "override_num_blocks expand_json " + PLACED
    ),
    "Dataset.write_images": (
        "path column file_format filesystem try_create_dir arrow_open_stream_args filename_provider "
        "ray_remote_args concurrency mode "
    ),
    "from_arrow": "tables override_num_blocks",
    "from_daft": "df",
    "from_huggingface": "dataset parallelism concurrency override_num_blocks",
    "from_items": "items parallelism override_num_blocks",
    "from_numpy": "ndarrays",
    "from_pandas": "dfs override_num_blocks",
    "from_spark": "df parallelism override_num_blocks",
    "from_torch": "dataset local_read",
    "range": "n parallelism concurrency override_num_blocks",
    "range_tensor": "n shape parallelism concurrency override_num_blocks",
    "read_binary_files": (
        "paths include_paths filesystem parallelism num_cpus num_gpus memory arrow_open_stream_args "
        "partition_filter partitioning ignore_missing_paths shuffle file_extensions concurrency "
        "override_num_blocks ray_remote_args " + PLACED
    ),
    "read_csv": (
        "paths filesystem parallelism num_cpus num_gpus memory arrow_open_stream_args partition_filter "
        "partitioning include_paths ignore_missing_paths shuffle file_extensions concurrency "
        "override_num_blocks ray_remote_args " + PLACED
    ),
    "read_delta": (
        "path version storage_options filesystem catalog columns parallelism num_cpus num_gpus memory shuffle "
        "include_paths concurrency override_num_blocks ray_remote_args " + PLACED
    ),
    "read_iceberg": (
        "table_identifier row_filter parallelism selected_fields snapshot_id scan_kwargs catalog_kwargs catalog "
        "num_cpus num_gpus memory override_num_blocks ray_remote_args " + PLACED
    ),
    "read_images": (
        "paths filesystem parallelism num_cpus num_gpus memory arrow_open_file_args partition_filter "
        "partitioning size mode include_paths ignore_missing_paths shuffle file_extensions concurrency "
        "override_num_blocks ray_remote_args " + PLACED
    ),
    "read_json": (
        "paths lines filesystem parallelism num_cpus num_gpus memory arrow_open_stream_args "
        "partition_filter partitioning include_paths ignore_missing_paths shuffle file_extensions "
        "concurrency override_num_blocks ray_remote_args " + PLACED
    ),
    "read_audio": (
        "paths filesystem arrow_open_stream_args partition_filter partitioning include_paths ignore_missing_paths "
        "file_extensions shuffle concurrency override_num_blocks num_cpus num_gpus memory ray_remote_args "
        + PLACED
    ),
    "read_video": (
        "paths filesystem arrow_open_stream_args partition_filter partitioning include_paths include_timestamps fps "
        "resize ignore_missing_paths file_extensions shuffle concurrency override_num_blocks num_cpus num_gpus "
        "memory ray_remote_args " + PLACED
    ),
    "read_tfrecords": (
        "paths filesystem parallelism num_cpus num_gpus memory arrow_open_stream_args partition_filter include_paths "
        "ignore_missing_paths tf_schema shuffle file_extensions concurrency override_num_blocks ray_remote_args "
        + PLACED
    ),
    "Dataset.write_tfrecords": (
        "path tf_schema filesystem try_create_dir arrow_open_stream_args filename_provider min_rows_per_file "
        "ray_remote_args concurrency num_rows_per_file mode "
    ),
    "read_lance": (
        "uri version columns filter storage_options scanner_options num_cpus num_gpus memory concurrency "
        "override_num_blocks ray_remote_args " + PLACED
    ),
    "read_avro": (
        "paths filesystem parallelism num_cpus num_gpus memory arrow_open_stream_args partition_filter "
        "partitioning include_paths ignore_missing_paths shuffle file_extensions concurrency "
        "override_num_blocks " + PLACED
    ),
    "read_orc": (
        "paths filesystem parallelism num_cpus num_gpus memory partition_filter partitioning include_paths "
        "ignore_missing_paths shuffle file_extensions concurrency override_num_blocks " + PLACED
    ),
    "read_numpy": (
        "paths filesystem parallelism arrow_open_stream_args partition_filter partitioning include_paths "
        "ignore_missing_paths shuffle file_extensions concurrency override_num_blocks allow_pickle"
    ),
    "read_parquet": (
        "paths filesystem catalog columns parallelism num_cpus num_gpus memory tensor_column_schema "
        "partition_filter partitioning shuffle include_paths include_row_hash file_extensions "
        "ignore_missing_paths skip_paths concurrency override_num_blocks ray_remote_args " + PLACED
    ),
    "read_sql": (
        "sql connection_factory sql_params shard_keys shard_hash_fn parallelism num_cpus num_gpus memory "
        "concurrency override_num_blocks ray_remote_args " + PLACED
    ),
    "read_text": (
        "paths encoding drop_empty_lines filesystem parallelism num_cpus num_gpus memory "
        "arrow_open_stream_args partition_filter partitioning include_paths ignore_missing_paths shuffle "
        "file_extensions concurrency override_num_blocks ray_remote_args " + PLACED
    ),
    "ActorPoolStrategy": (
        "size min_size max_size initial_size max_tasks_in_flight_per_actor "
        "max_concurrent_calls_per_actor enable_true_multi_threading "
    ),
    "TaskPoolStrategy": "size",
}
