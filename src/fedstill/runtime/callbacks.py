"""Callbacks: objects of the user's own that watch a run, a study or a query from Python, and may end it early."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from fedstill.core.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from fedstill.core.records import RoundRecord
    from fedstill.runtime.experiment import Experiment
    from fedstill.runtime.result import Run

Result = TypeVar("Result")
CallbackInput = Any  # one callback, one function, or a sequence of them; checked by `Callbacks`


class StopRun(Exception):  # noqa: N818 (a request, not an error)
    """Raised by a callback to end a run or a study early; what was committed stays, and the next call resumes it.

    >>> import fedstill
    >>> def enough(record):
    ...     if record.accuracy > 0.5:
    ...         raise fedstill.StopRun
    >>> run = fedstill.run("fedavg", clients=2, rounds=9, out=getfixture("tmp_path"), callbacks=enough)
    >>> run.finished, len(run.journal) < 9
    (False, True)
    """


class Callback:
    """A base class for callbacks, on which every hook does nothing.

    Callbacks need not derive from it: any object with some of these methods will do. What a hook raises ends the run
    after the round was committed, and reaches the caller; the next call resumes the run. A run that was found finished
    calls `on_note` and `on_finish` only.

    >>> import fedstill
    >>> class Printer(fedstill.Callback):
    ...     def on_round(self, record):
    ...         print("round", record.round)
    >>> made = fedstill.run("fedavg", clients=2, rounds=2, out=getfixture("tmp_path"), callbacks=Printer())
    round 1
    round 2
    """

    def on_start(self, experiment: Experiment, journal: Sequence[RoundRecord]) -> None:
        """A run begins, or is resumed after the rounds in `journal`."""

    def on_round(self, record: RoundRecord) -> None:
        """A round of a run was committed; `record` is its line of the journal."""

    def on_note(self, text: str) -> None:
        """Information, for example that a run was finished before."""

    def on_warning(self, text: str) -> None:
        """A warning, for example that a damaged file was repaired."""

    def on_progress(self, progress: Any) -> None:
        """A study begins, or one of its runs has ended; `progress` counts runs and estimates the time left."""

    def on_run(self, labels: tuple[str, ...], run: Run) -> None:
        """A run of a study was finished; `labels` are those of its cell. Runs that existed before are not reported."""

    def on_failure(self, labels: tuple[str, ...], error: str) -> None:
        """A run of a study failed, or was refused; the others continue."""

    def on_epoch(self, phase: str, epochs: int, accuracy: float) -> None:
        """A client that learns queried classes has finished this many epochs of a phase."""

    def on_finish(self, run: Any) -> None:
        """The work is complete: gets the finished `Run`, of a study its `Results`, of a query its `Asked`."""

    def on_error(self, error: BaseException) -> None:
        """An exception, also one of a callback or Ctrl-C, ends the work; it is raised again afterwards."""


HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))
RUN_HOOKS = ("on_start", "on_round", "on_note", "on_warning", "on_finish", "on_error")
STUDY_HOOKS = ("on_progress", "on_run", "on_failure", "on_note", "on_finish", "on_error")
QUERY_HOOKS = ("on_epoch", "on_finish", "on_error")


class CallbackFailedError(Exception):
    """Carries what a callback raised through the code that handles errors of the run itself."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Callbacks:
    """Validated callbacks, called one after the other; a plain function is called by one hook.

    `hooks` are those that the work calls, and `plain` is the one that calls a function.
    """

    def __init__(self, given: CallbackInput, hooks: Sequence[str], plain: str) -> None:
        several = given if isinstance(given, Sequence) and not isinstance(given, str | bytes) else [given]
        self.each = [_checked(one, hooks, plain) for one in several]
        self.stopped = False  # whether one of them has asked for an early end

    def call(self, hook: str, *given: Any) -> None:
        """Call one hook of all callbacks; a request to stop is raised when all of them were called."""
        stop: StopRun | None = None
        for callback in self.each:
            try:
                callback(hook, *given)
            except StopRun as raised:
                stop = stop or raised
            except Exception as error:
                raise CallbackFailedError(error) from None
        if stop is not None:
            self.stopped = True
            raise stop

    def watch(self, work: Callable[[], Result]) -> Result:
        """Do the work, then call `on_finish` unless it was stopped; call `on_error` for whatever ends it."""
        try:
            result = work()
            if not self.stopped:
                self.call("on_finish", result)
            return result
        except CallbackFailedError as failed:
            error = failed.error
        except BaseException as ended:
            self._report(ended)
            raise
        self._report(error)
        raise error

    def _report(self, error: BaseException) -> None:
        for callback in self.each:
            callback("on_error", error)


class RunCallbacks(Callbacks):
    """Callbacks of a run, as the observer that the run calls."""

    def __init__(self, given: CallbackInput) -> None:
        super().__init__(given, RUN_HOOKS, "on_round")

    def start(self, experiment: Experiment, journal: Sequence[RoundRecord]) -> None:
        self.call("on_start", experiment, journal)

    def round(self, record: RoundRecord) -> None:
        self.call("on_round", record)

    def note(self, text: str) -> None:
        self.call("on_note", text)

    def warn(self, text: str) -> None:
        self.call("on_warning", text)

    def finish(self) -> None:
        """`watch` calls `on_finish`, with the run."""


_Watcher = TypeVar("_Watcher")


def former_observers(observers: Sequence[_Watcher] | None) -> Sequence[_Watcher]:
    """Accept the argument `observers`, which `callbacks` replaces, with a warning where it is used."""
    if observers is None:
        return ()
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("fedstill."):
        level, frame = level + 1, frame.f_back
    warnings.warn("observers= is deprecated: use callbacks=, see fedstill.Callback", DeprecationWarning, level)
    return observers


def _checked(given: Any, hooks: Sequence[str], plain: str) -> Callable[..., None]:
    """A callback as a function of a hook's name and arguments; refuses what could never be called."""
    name = given.__name__ if isinstance(given, type) else type(given).__name__
    if isinstance(given, type):
        raise InputError(f"the callback {name} is a class: give an object of it, {name}()")
    _check_spelling(name, (one for one in dir(given) if one.startswith("on_")))
    found = {hook: getattr(given, hook) for hook in HOOKS if hasattr(given, hook)}
    if wrong := next((hook for hook, method in found.items() if not callable(method)), None):
        raise InputError(f"{wrong} of the callback {name} is not a method")
    if not found and callable(given):
        found = {plain: given}
    if not found.keys() & set(hooks):
        raise InputError(f"the callback {name} has none of the hooks that are called here: {', '.join(hooks)}")

    def call(hook: str, *arguments: Any) -> None:
        if hook in found:
            found[hook](*arguments)

    return call


def _check_spelling(name: str, hooks: Iterable[str]) -> None:
    for hook in hooks:
        if hook not in HOOKS:
            raise InputError(f"the callback {name} has an unknown hook {hook!r}: {did_you_mean(hook, HOOKS)}")
