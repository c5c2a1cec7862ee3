"""The benchmarks of ``nvdp bench``: each suite measures its variants in turns within one run and returns rows.

Rows are plain dictionaries, ready for JSON; all times are medians in milliseconds of wall-clock time.
"""

from nvdp.bench.suites import SUITES, Settings, run_suite, suite_result

__all__ = ["SUITES", "Settings", "run_suite", "suite_result"]
