"""What of the tests waits for the night (`make soak`): further cells of what the others prove by day.

Each promise is proven by day once, on the cheapest real component of a kind: a folder, a store, a database, a lake.
Each adapter plays its contract by day, without faults. The same mechanism with another adapter, seed, width or
program is for the night. What is named here is a test, or a file; with the cells that run by day all the same: all
whose names have one of these words in them (and none of those behind a ``!``), or one in so many.
"""

from __future__ import annotations

import pytest

DAY: dict[str, int | tuple[str, ...]] = {
    # A fault at each point: a folder, a lake, a database; every other target without faults (`test_asked.py`).
    "output/test_targets.py::test_rows_are_there_once": ("!s3", "!postgresql"),
    "output/test_targets.py::test_no_rows": ("!s3", "!postgresql"),
    "output/test_targets.py::test_a_fault_at_any_moment_neither_loses_nor_doubles": (
        "[parquet-1]", "[delta-1]", "[sqlite-3]",
    ),
    "output/test_targets.py::test_new_input_is_added": ("[parquet]", "[lance]", "[sqlite]"),
    "output/test_targets.py::test_nothing_is_seen_of_what_is_not_as_required": ("[parquet]", "[delta]", "[sqlite]"),
    "output/test_targets.py::test_other_rows_take_their_place": ("[parquet]", "[iceberg]", "[sqlite]"),
    "output/test_targets.py::test_what_is_as_required_is_seen_at_the_end": ("[parquet]", "[delta]", "[sqlite]"),
    "annex/together/test_retried_tables.py::test_as_if_they_had_never_failed": (
        "partitioned -withheld", "sqlite overwrite-withheld", "[delta -seen",
    ),
    # Machines of a fleet: in a folder by day, and in a store at night, when `make hosts` has hosts of their own, too.
    "annex/fleet/test_fleet.py::test_machines_take_the_place_of_an_output_that_readers_see_until_then": ("[folder]",),
    "annex/fleet/test_fleet.py::test_machines_share_a_store": (),
    "annex/fleet/test_fleet.py::test_what_a_slow_machine_has_is_done_by_another": ("[folder]",),
    "annex/fleet/test_fleet.py::test_a_complete_output_is_looked_at_while_another_holds_it": ("[folder]",),
    "annex/fleet/test_fleet.py::test_machines_add_rows_to_a_table_once": ("[Delta]", "[Sqlite]"),
    "annex/fleet/test_spending.py::test_machines_have_one_rate": ("[False]",),
    "annex/fleet/test_fleet.py::test_what_a_dead_machine_leaves_is_done_by_another": 2,
    "annex/fleet/test_fleet.py::test_cleaning_does_not_go_by_clocks": (),
    # The command line.
    "annex/cli/test_estimate.py::test_a_sample_ends_when_its_time_is_over": (),
    "annex/cli/test_terminal.py::test_a_run_on_a_terminal_of_any_width": ("[80]",),
    "annex/cli/test_terminal.py::test_a_closed_stream_is_nobody_elses": ("[2>&-]",),
    "annex/cli/test_terminal.py::test_a_scheduler_ends_a_run_as_ctrl_c_does": ("[15]",),
    "annex/cli/test_terminal.py::test_a_reader_that_has_enough_ends_it_in_silence": ("inspect",),
    "annex/cli/test_terminal.py::test_an_answer_that_cannot_be_written_is_an_error_of_one_line": ("[json1]",),
    "annex/cli/test_terminal.py::test_help_fits_two_screens": ("[80-",),
    "annex/cli/test_clean_hostile.py::test_links_and_pipes_are_neither_followed_nor_waited_for": 3,
    "annex/cli/test_clean_hostile.py::test_a_pointer_that_leads_elsewhere_is_not_followed": 3,
    "annex/cli/test_resume.py::test_nothing_in_an_output_is_ever_run": 3,
    "annex/cli/test_verify.py::test_damage_is_found": ("parquet", "csv-drop"),
    # Programs: each page by day, and of each library of programs a part.
    "annex/compat/test_from_ray.py::test_a_program_runs": 8,
    "annex/compat/test_programs.py::test_programs_print_the_same": (),
    "annex/compat/test_batch_predictor_example.py::test_batch_predictor": (),
    "annex/compat/test_checkpoints.py::test_keras_has_a_checkpoint_too": (),
    "programs/test_programs.py::test_program": ("killed",),
    "docs/test_output_format.py::test_the_page_has_what_outputs_have": (),
    "museum/test_museum.py::test_an_output_of_an_earlier_version": ("!: store, ",),
    # Stores.
    "stores/test_uploaded.py::test_big_parts_and_big_states_go_the_same_way": (),
    "stores/test_queries.py::test_a_killed_run_goes_on_if_the_result_is_the_same": (),
    "stores/test_writing.py::test_commands_take_addresses": (),
    "output/test_asked.py::test_each_cell": (
        "folder", "database", "lance", "incremental-store", "'overwrite'-store", "require-delta",
    ),
    "stores/test_killed.py::test_killed_again_and_again": ("points0",),
    "stores/test_killed.py::test_an_overwrite_killed_again_and_again": ("False-points0",),
    "stores/test_killed.py::test_a_further_run_killed_again_and_again": (),
    "stores/test_writing.py::test_exact_whatever_the_store_answers": ("lost-False", "503"),
    "stores/test_compared.py::test_outputs_in_a_store": (),
    "stores/test_uploaded.py::test_an_upload_that_is_not_what_it_says_is_not_committed": ("[other]",),
    "stores/test_uploaded.py::test_other_sinks": (),
    "stores/test_uploaded.py::test_a_driver_that_was_taken_for_dead_may_copy_what_it_has_committed": (),
    "stores/test_reading.py::test_what_a_command_says_to_a_refusal": (),
    "stores/test_reading.py::test_outputs_take_it_too_where_the_store_lets_everybody_write": (),
    "stores/test_reading.py::test_rows_are_those_of_files": 3,
    "stores/test_reading.py::test_what_passes_is_tried_again": ("503", "drop"),
    # Databases: SQLite by day, the two others read, write and merge once.
    "annex/databases/test_rows_taken_out.py": ("sqlite",),
    "annex/databases/test_upsert.py": ("sqlite", "test_rows_are_inserted_or_take_the_place"),
    "annex/databases/test_reading.py::test_each_row_is_in_one_range_whatever_the_column": ("duckdb",),
    "annex/databases/test_reading.py::test_only_new_keys": ("sqlite",),
    "annex/databases/test_reading.py::test_changes_are_noticed": ("sqlite",),
    # Lakes: what is alike in all of them with one by day.
    "annex/lakes/test_rows_taken_out.py": ("!Iceberg",),
    "annex/lakes/test_further_runs.py": ("!Iceberg",),
    "annex/lakes/test_add_columns.py::test_killed_anywhere": ("delta-at0", "lance-at"),
    "annex/lakes/test_add_columns.py": ("[delta", "lance]"),
    "annex/lakes/test_tables.py::test_a_finished_run_looks_whether_the_table_has_its_rows": ("overwritten",),
    "annex/lakes/test_tables.py::test_the_answer_to_the_commit_is_lost": ("[lost]",),
    "annex/lakes/test_iceberg_partitions.py::test_every_row_is_found_by_filters_on_what_it_is_partitioned_by": 4,
    "annex/lakes/test_further_runs.py::test_histories": ("Delta-id", "Lance-]"),
    "annex/lakes/test_rows_taken_out.py::test_a_table_without_the_rows_is_refused_and_found": (
        "Delta", "Iceberg-overwritten",
    ),
    "annex/lakes/test_rows_taken_out.py::test_an_unfinished_run_does_not_make_the_table_anew": ("Delta",),
    "annex/lakes/test_every_lake.py::test_killed_anywhere_the_rows_are_added_once": ("TestDelta", "[table.filled"),
    # Language models.
    "annex/llm/test_via_batch.py::test_killed_at_any_point_nothing_is_paid_twice": ("[second]",),
    "annex/llm/test_via_batch.py::test_what_a_batch_does_not_answer_goes_into_another": ("openai",),
    "annex/llm/test_caps.py::test_a_killed_run_goes_on_within_its_cap": (),
    "annex/llm/test_caps.py::test_three_workers_have_one_budget": (),
    "annex/llm/test_caps.py::test_whatever_goes_wrong_the_cap_is_kept": ("hedge",),
    "annex/llm/test_spending.py::test_a_count_that_makes_no_sense_is_none": ("[None]", "[-5]"),
    "annex/llm/test_judge.py::test_a_killed_job_judges_again_only_what_was_under_way": (),
    # Reports.
    "annex/report/test_watch.py::test_new_columns_of_a_table_have_a_value_for_each_row": (),
    "annex/report/test_watch.py::test_rows_of_a_keyed_run_are_set_aside_once_that_is_asked": (),
    "observers/test_stages_shown.py::test_from_its_first_seconds": (),
    "annex/report/test_watch.py::test_it_is_paused_changed_and_ended": ("[1280]",),
    "annex/report/test_watch.py::test_a_run_into_a_store_is_watched_through_it": (),
    "annex/report/test_watch.py::test_from_another_terminal": (),
    "annex/report/test_watch.py::test_a_run_that_was_ended_goes_on": (),
    "annex/report/test_runs.py::test_a_store_is_asked_for_little": (),
    "annex/report/test_in_browser.py::test_it_draws_and_asks_for_nothing": ("[360-True]",),
    "annex/report/test_report.py::test_values_that_make_no_sense_still_make_a_page": ("[x]", "[None]"),
    "annex/report/test_report.py::test_it_stays_small_however_big_the_run": (),
    "annex/report/test_record.py::test_a_hundred_thousand_shards_are_a_few_megabytes": (),
    "annex/report/test_advice.py::test_more_workers": ("given0",),
    # Queries.
    "annex/queries/test_faults.py::test_killed_in_groups_and_behind_them": ("group-57-inline", "behind-inline"),
    "annex/queries/test_faults.py::test_killed_at_any_point": 2,
    "annex/queries/test_faults.py::test_killed_at_random_until_it_is_done": (),
    "annex/queries/test_full_disk.py::test_a_full_disk": ("spills",),
    "annex/queries/test_ray_cases.py::test_a_case": 3,
    "annex/queries/test_tpch.py::test_the_answer_is_that_of_the_engine": 4,
    "annex/queries/test_read_by_the_engine.py::test_the_rows_are_those_that_we_read": 2,
    # Kills and faults of drivers and workers in a folder.
    "faults/test_memory_limit.py::test_batches_shrink_before_workers_are_ended": (),
    "faults/test_memory_limit.py::test_rows_that_nobody_has_counted_are_divided": (),
    "faults/test_kill.py::test_drivers_killed": 3,
    "faults/test_kill.py::test_workers_killed": 3,
    "faults/test_copied.py::test_killed": 3,
    "faults/test_power.py::test_power_is_lost": ("new output-10",),
    "faults/test_retried.py::test_killed_anywhere_and_given_again": ("[True]",),
    "faults/test_memory_limit.py::test_a_driver_that_is_killed_in_the_midst_of_it_goes_on": (),
    "faults/test_memory_limit.py::test_rows_that_fail_in_a_part_are_told_by_their_place_in_the_file": (),
    "faults/test_memory_limit.py::test_an_input_that_changes_after_its_shard_was_divided_is_read_anew": (),
    "faults/test_memory_limit.py::test_a_stage_that_leaks_comes_to_its_end": (),
    "faults/test_matrix.py::test_mild": 3,
    "faults/test_matrix.py::test_mild_and_killed": 2,
    "faults/test_matrix.py::test_rows_that_end_their_worker": ("SIGKILL", "exit-random"),
    "faults/test_retried.py::test_a_wrong_file_changes_nothing": 3,
    "faults/test_anew.py::test_the_second_time": 3,
    "faults/test_anew.py::test_the_first_time": 2,
    # Steps.
    "worker/test_fast_road.py::test_batches": 3,
    "worker/test_fast_road.py::test_rows": 3,
    "worker/test_predicting.py::test_every_type_through_files": 3,
    "worker/test_copied_columns.py::test_every_type_written_in_every_way": 3,
    "worker/test_input_check.py::test_nothing_is_committed_of_a_file_that_changed": 2,
    # Programs as they are started, and packages that are installed.
    "api/test_examples.py::test_quick_start_huggingface": (),
    "api/test_door.py::test_the_package_on_the_page_about_extending": (),
    "api/test_door.py::test_commands_find_it": (),
    "api/test_launching.py::test_without_a_main_guard": ("[script]",),
    "api/test_signals.py::test_workers_die_and_are_replaced_whatever_signals_the_program_was_started_with": (
        "blocked",
    ),
    "api/test_examples.py::test_quick_start": ("[torch]",),
    "api/test_batch_sizes.py::test_limits_and_ledgers_are_those_of_one_stage": 4,
    "api/test_batch_sizes.py::test_batches_bigger_than_a_block": ("[True]",),
    "sources/test_bad_json.py::test_a_line_that_is_nested_too_deeply_is_one_bad_row": ("5000",),
    # Models in processes of their own.
    "annex/tasks/test_examples.py::test_a_model_on_every_device": (),
    "annex/models/test_keras.py::test_a_fresh_process_and_another_backend": (),
    "annex/models/test_xgboost.py::test_a_truncated_file": ("7000-ubj",),
    "annex/models/test_trial.py::test_damaged_files_end_no_process": ("xgboost",),
    "annex/tasks/test_nested.py::test_a_tree_of_thousands_of_calls_ends_on_two_workers": (),
    "annex/tasks/test_examples.py::test_a_task_for_each_month": (),
    "annex/compare/test_compare.py::test_outputs_as_a_query_compares_them": ("position",),
    "engines/test_forks.py::test_a_fork_is_what_a_spawned_worker_is": ("[1-",),
}  # fmt: skip


def at_night(items: list[pytest.Item]) -> list[str]:
    """Mark what waits for the night as a soak; return what of ``DAY`` names nothing, in files that have tests."""
    found: dict[str, list[pytest.Item]] = {}
    for item in items:
        file, _, rest = item.nodeid.removeprefix("tests/").partition("::")
        name = f"{file}::{rest.partition('[')[0].rpartition('::')[2]}"
        found.setdefault(file, [])
        found.setdefault(name if name in DAY else file, []).append(item)
    unknown = []
    for named, by_day in DAY.items():
        cells = found.get(named, [])
        if not cells and named.partition("::")[0] in found:
            unknown.append(named)
        if not isinstance(by_day, int):
            parts = [word.removeprefix("!") for word in by_day]
            unknown += [f"{named}: {part}" for part in parts if cells and not _with(part, cells)]
        cells = [item for item in cells if not item.get_closest_marker("soak")]
        for item in set(cells).difference(_of_the_day(cells, by_day)):
            item.add_marker(pytest.mark.soak)
    return unknown


def _of_the_day(cells: list[pytest.Item], by_day: int | tuple[str, ...]) -> list[pytest.Item]:
    if isinstance(by_day, int):
        return cells[::by_day]
    words = [word for word in by_day if word[0] != "!"]
    runs = [item for word in words for item in _with(word, cells)] if words or not by_day else cells
    return [item for item in runs if not any(word[1:] in item.nodeid for word in by_day if word[0] == "!")]


def _with(word: str, cells: list[pytest.Item]) -> list[pytest.Item]:
    return [item for item in cells if word in item.nodeid]
