"""Which lines of the package the tests reach: ``python -m faults.coverage`` leaves results/trust/coverage.json."""

import json
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nvdp.system import write_text

ROOT = Path(__file__).parents[1]
LEAST = 90.0  # per cent of the lines of src/nvdp


def summary(report: dict[str, Any], seconds: float) -> dict[str, Any]:
    """What the page tells of a report of coverage.py, with the files that fall below the limit.

    >>> whole = {"covered_lines": 95, "num_statements": 100, "percent_covered": 95.0}
    >>> summary({"totals": whole, "files": {"src/nvdp/a.py": {"summary": whole}}}, 1.2)["below"]
    {}
    """
    totals, files = report["totals"], report["files"]
    shares = {name: file["summary"]["percent_covered"] for name, file in files.items()}
    return {
        "section": "coverage",
        "seconds": round(seconds),
        "lines": totals["num_statements"],
        "covered": totals["covered_lines"],
        "percent": totals["percent_covered"],
        "below": {name: share for name, share in sorted(shares.items()) if share < LEAST},
    }


def main() -> None:
    """All tests, once."""
    began = time.monotonic()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "coverage.json"
        reports = [f"--cov-report=json:{path}", "--cov-report=term:skip-covered"]
        outcome = subprocess.run([sys.executable, "-m", "pytest", "--cov=nvdp", *reports], cwd=ROOT, check=False)
        if outcome.returncode:
            sys.exit(outcome.returncode)
        record = summary(json.loads(path.read_text()), time.monotonic() - began)
    write_text(ROOT / "results" / "trust" / "coverage.json", json.dumps(record, indent=1) + "\n")
    print(f"{record['percent']:.1f} % of {record['lines']:,} lines")
    sys.exit(0 if record["percent"] > LEAST else 1)


if __name__ == "__main__":
    main()
