"""One client's reply as a job for a worker process; where the process ends, another one computes it again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from fedstill.core.errors import RunError
from fedstill.core.message import Message
from fedstill.core.protocols import Profile, RoundContext
from fedstill.core.task import Tensors
from fedstill.engines.workers import ATTEMPTS


@dataclass(frozen=True)
class ClientJob:
    """A client's request and state; its reply depends on nothing else, so that each attempt gives the same bits."""

    who: Profile
    request: Message
    state: Tensors
    lost: int = 0  # worker processes that ended with this job

    def again(self, context: RoundContext, why: str, report: Callable[[str], None]) -> ClientJob:
        """The job for another worker, after one has ended; refuses one that ends every worker."""
        where, lost = f"round {context.round + 1}, {context.exchange}, client {self.who.id}", self.lost + 1
        if lost >= ATTEMPTS:
            raise RunError(
                f"{where}: {why}, in each of {ATTEMPTS} attempts: see to the memory of this machine, use fewer"
                " --workers, or look for what ends the process (--engine in-process shows it), then run the same"
                " command again to go on from the last round"
            )
        report(f"{where}: {why}: the reply is computed again by another one")
        return replace(self, lost=lost)
