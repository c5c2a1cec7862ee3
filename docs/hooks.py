"""Documentation by version: each build goes into site/VERSION, and older ones beside it stay.

The theme reads versions.json to offer a choice; site/index.html leads to the newest version.
"""

import json
import re
from pathlib import Path
from typing import Any

BUILDING = False


def on_startup(command: str, **_: Any) -> None:
    """Know whether this is a build; a local server has a folder of its own."""
    global BUILDING
    BUILDING = command == "build"


def on_config(config: Any) -> Any:
    """Build into the folder of the version that the package says."""
    source = (Path(config.docs_dir).parent / "src" / "nvdp" / "__init__.py").read_text()
    found = re.search(r'^__version__ = "(.+?)"', source, re.MULTILINE)
    assert found is not None
    if BUILDING:
        config.site_dir = str(Path(config.site_dir) / found[1])
    return config


def on_post_build(config: Any) -> None:
    """List all versions that are there, newest first."""
    if not BUILDING:
        return
    site = Path(config.site_dir).parent
    folders = [path.parent.name for path in site.glob("*/index.html")]
    newest_first = sorted(folders, key=lambda name: [int(part) for part in re.findall(r"\d+", name)], reverse=True)
    versions = [{"version": name, "title": name, "aliases": []} for name in newest_first]
    (site / "versions.json").write_text(json.dumps(versions, indent=1) + "\n")
    target = f"{newest_first[0]}/index.html"
    head = f'<meta charset="utf-8"><meta http-equiv="refresh" content="0; url={target}"><title>nvdp</title>'
    (site / "index.html").write_text(f'<!doctype html>{head}\n<a href="{target}">nvdp {newest_first[0]}</a>\n')
