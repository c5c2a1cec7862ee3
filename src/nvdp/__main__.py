"""``python -m nvdp`` is the command line."""

from nvdp.cli import main

main()
