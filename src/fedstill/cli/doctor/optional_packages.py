"""Optional packages: which are here, and what those that are not would give."""

from __future__ import annotations

from collections.abc import Iterator

from fedstill.cli.doctor.finding import Finding
from fedstill.cli.doctor.versions import installed

TOPIC = "extras"
# By extra: its packages, and what it is for. A test holds this against the project's own list.
EXTRAS: dict[str, tuple[tuple[str, ...], str]] = {
    "export": (("onnx", "onnxscript", "onnxruntime"), "files for devices (`fedstill export` to .onnx) and their speed"),
    "flower": (("flwr", "cryptography", "httpx", "uvicorn"), "a federation across machines (`fedstill deploy`)"),
    "ray": (("ray",), "studies on many machines (`--executor ray`), and with flower the engine flower-ray"),
    "privacy": (("dp-accounting",), "how much privacy a run has spent"),
}


def look_at_extras() -> Iterator[Finding]:
    here = []
    for extra, (packages, gives) in EXTRAS.items():
        missing = [name for name in packages if installed(name) is None]
        if missing:
            yield Finding(
                TOPIC,
                "look",
                f"{extra} is not installed ({', '.join(missing)}): it gives {gives}",
                f"if you want that: pip install 'fedstill[{extra}]'",
            )
        else:
            here.append(f"{extra} ({', '.join(f'{name} {installed(name)}' for name in packages)})")
    if here:
        yield Finding(TOPIC, "ok", f"installed: {', '.join(here)}")
