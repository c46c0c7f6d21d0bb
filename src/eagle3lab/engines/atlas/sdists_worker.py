"""Sources of a package from the index: `list` prints the versions as JSON, `fetch VERSION FOLDER` brings one.

What comes is the source distribution, whole, with the digest the index gives. A version that has none comes as its
wheel, and of that only the Python files and the metadata, read from the index in ranges, because the rest is
hundreds of megabytes of compiled code; the digest of the whole is the zip file's comment.

Started as a script in a process of its own. It uses pip's internals, whose shape pip does not promise: what fails
here fails with pip's own words, and leaves no file behind.
"""

from __future__ import annotations

import hashlib
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

RANGE_BYTES = 1 << 20


def links(package: str) -> tuple[dict[str, Any], Any]:
    """Version to link, of what was not withdrawn, source distributions before wheels; and the session to use."""
    from pip._internal.commands import create_command

    command: Any = create_command("download")
    with command.main_context():
        options, _ = command.parse_args([package])
        session = command._build_session(options)
        finder = command._build_package_finder(options, session)
        candidates = finder.find_all_candidates(package)
    found: dict[str, Any] = {}
    for candidate in candidates:
        known = found.get(str(candidate.version))
        if not candidate.link.is_yanked and (known is None or known.is_wheel):
            found[str(candidate.version)] = candidate.link
    return found, session


def whole(link: Any, session: Any, part: Path) -> None:
    """The file behind a link."""
    answer = session.get(link.url_without_fragment, headers={"Accept-Encoding": "identity"})
    answer.raise_for_status()
    digest = hashlib.new(link.hash_name or "sha256", answer.content).hexdigest()
    if link.hash is not None and digest != link.hash:
        raise SystemExit(f"{link.filename} does not have the digest that the index gives")
    part.write_bytes(answer.content)


def sources_of_wheel(link: Any, session: Any, part: Path) -> None:
    """The Python files and the metadata of the wheel behind a link."""
    from pip._internal.network.lazy_wheel import LazyZipOverHTTP

    lazy: Any = LazyZipOverHTTP(link.url_without_fragment, session, chunk_size=RANGE_BYTES)
    with (
        lazy as remote,
        zipfile.ZipFile(remote) as wheel,
        zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as kept,
    ):
        for entry in wheel.infolist():
            if entry.filename.endswith((".py", ".dist-info/METADATA")):
                kept.writestr(entry.filename, wheel.read(entry))
        kept.comment = f"sha256:{link.hash}".encode()


def main() -> None:
    """Answer the request."""
    package, action, *arguments = sys.argv[1:]
    found, session = links(package)
    if action == "list":
        json.dump(sorted(found), sys.stdout)
        return
    version, folder = arguments
    link = found[version]
    file = Path(folder, link.filename)
    part = file.with_name(f"{file.name}.part")
    try:
        (sources_of_wheel if link.is_wheel else whole)(link, session, part)
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
