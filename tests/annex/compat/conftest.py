"""The programs beside the tests are run by these, not collected: they import ``ray``, or what stands for it."""

collect_ignore_glob = ["programs/*"]
