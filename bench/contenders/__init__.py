"""One file per engine, each with ``main(job, data, out)``: the program its users would write."""
