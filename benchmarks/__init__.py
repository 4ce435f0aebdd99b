"""What is measured, each against its goal: `python -m benchmarks [NAME ...]`, or `make bench`.

A benchmark is a module `bench_<name>.py` here with one function:

    def run() -> list[Row]: ...

It measures ratios and differences within one run, in interleaved pairs, and says medians: the
machine may be shared. It works in a folder of its own below /tmp and leaves no process behind
(`local_ray.local_ray()` gives both). What can't be measured on this machine is a Row whose `ok` is
None, and its `detail` says why: "not run: no GPU".
"""
