"""The output folder: its journal, lock and commits; going on with a run; checking, following and cleaning it."""
