"""Threads against cores. Bits are promised for one thread, and runs use one; what else there is may be in the way."""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch

from fedstill.cli.doctor.finding import Finding
from fedstill.core.numbers import count
from fedstill.core.threads import usable_cores

TOPIC = "threads"
VARIABLE = "OMP_NUM_THREADS"


def look_at_threads() -> Iterator[Finding]:
    cores, named, used = usable_cores(), os.environ.get(VARIABLE, "").strip(), torch.get_num_threads()
    advice = f"set {VARIABLE}=1, and use more cores with --workers"
    if named and not (named.isdecimal() and int(named) > 0):
        yield Finding(TOPIC, "look", f"{VARIABLE} is {named!r}, which is no number of threads", advice)
    elif named and int(named) > cores:
        yield Finding(
            TOPIC,
            "look",
            f"{VARIABLE} is {named} on {count(cores, 'usable core')}:"
            " threads that wait for each other are many times slower",
            advice,
        )
    elif used > cores:
        yield Finding(TOPIC, "look", f"torch uses {used} threads on {count(cores, 'usable core')}", advice)
    else:
        said = f"{VARIABLE}={named}" if named else f"{VARIABLE} is not set"
        has = f"{count(cores, 'usable core')}, torch with {count(used, 'thread')}"
        yield Finding(TOPIC, "ok", f"{has}, {said}; a run uses one")
