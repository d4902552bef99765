"""Many machines that write one output, without anybody who tells them what to do."""
