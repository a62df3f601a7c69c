"""Training with parts of the user's own: they are tried on two dummy samples when a run is planned, before any work."""

from __future__ import annotations

from dataclasses import replace
from inspect import Parameter, signature

import torch
from torch import Tensor

from fedstill.core.dataset import ArrayDataset
from fedstill.core.errors import InputError
from fedstill.core.fit import Learner, Schedule, fit, task_loss
from fedstill.core.local_updates import takes_context
from fedstill.core.optimisers import Sgd
from fedstill.core.own_optimiser import OwnOptimiser
from fedstill.core.own_training import check_choice, local_updates
from fedstill.core.protocols import Meter, Method
from fedstill.core.streams import Streams
from fedstill.core.task import OWN_LOSS
from fedstill.core.training import Training
from fedstill.runtime.experiment import Experiment
from fedstill.tasks.classification import Classification


def trained_as(task: Classification, training: Training) -> Classification:
    """The task with the loss and the precision of training; unless it refuses them, see `check_training`."""
    usual = training.precision == "fp32" and training.class_weights is None
    if training.loss is None and training.local_update is None and usual:
        return task
    if task.refuses:
        return task
    own = training.loss is not None or training.local_update is not None
    terms = (OWN_LOSS,) if own else task.terms
    return replace(
        task,
        own_loss=training.loss,
        precision=training.precision,
        terms=terms,
        class_weights=training.class_weights,
    )


def check_training(method: Method, task: Classification, experiment: Experiment, labelled: bool) -> None:
    """Refuse settings of training that this method, task or data does not go with, or that fail on dummy samples."""
    training = experiment.training
    chosen = {**training.own(), **({"precision": training.precision} if training.precision != "fp32" else {})}
    _check_class_weights(method, task, experiment, labelled)
    if not chosen:
        return
    for setting in training.own():
        check_choice(setting, training.own()[setting])
    for setting in chosen:
        if why := task.refuses.get(setting) or method.refusal(setting):
            raise InputError(why)
    if ("loss" in chosen or "local_update" in chosen) and not labelled:
        raise InputError(f"training.loss and training.local_update need labels, which {experiment.data} does not have")
    if "local_update" in chosen:
        _check_alone(chosen)
        takes_context(local_updates[chosen["local_update"]])
    for architecture in task.architectures:
        if "optimiser" in chosen:
            _try_optimiser(task, architecture, experiment, method.rounds(experiment.rounds))
        if "loss" in chosen or "precision" in chosen:
            _try_loss(task, architecture, chosen)


def _check_class_weights(method: Method, task: Classification, experiment: Experiment, labelled: bool) -> None:
    weights, setting = experiment.training.class_weights, "class_weights"
    if weights is None:
        return
    if why := task.refuses.get(setting) or method.refusal(setting):
        raise InputError(why)
    if not labelled:
        raise InputError(f"training.{setting} need labels, which {experiment.data} does not have")
    if experiment.training.loss is not None or experiment.training.local_update is not None:
        raise InputError(f"a loss or local update of your own weighs classes itself: leave training.{setting} out")
    if weights == "balanced":
        return
    if len(weights) != len(task.classes) or not any(weights):
        raise InputError(
            f"training.{setting} has {len(weights)} numbers, and there are {len(task.classes)} classes: give one"
            " number for each, not all zero"
        )


def _check_alone(chosen: dict[str, str]) -> None:
    """A local update does all of local training: nothing beside it would be used."""
    others = {"optimiser": "makes its optimiser", "loss": "computes its loss", "precision": "decides its precision"}
    for setting, what in others.items():
        if setting in chosen:
            raise InputError(f"a local update {what} itself: leave training.{setting} out, or training.local_update")


def _try_optimiser(task: Classification, architecture: str, experiment: Experiment, rounds: int) -> None:
    """Make the optimiser for a new model, take a step along zero gradients, and its scheduler's steps of all rounds."""
    training, name = experiment.training, experiment.training.optimiser
    with Streams(0).ambient("trial"):
        try:
            model = task.build(architecture)
            optimiser = training.optimiser_of(model)
            assert isinstance(optimiser, OwnOptimiser)
            _check_optimiser(optimiser, training)
            for parameter in optimiser.given:
                parameter.grad = torch.zeros_like(parameter)
            optimiser.step()
            if training.keep_optimiser:
                optimiser.load(optimiser.moments())
            if training.scheduler_step != "step":  # how many steps there are depends on a client's data
                optimiser.begin(1.0, 1.0, rounds * (training.epochs if training.scheduler_step == "epoch" else 1) - 1)
        except InputError:
            raise
        except Exception as error:  # the user's function may raise anything
            why = " ".join(str(error).split())[:300]
            raise InputError(f"the optimiser {name} failed when it was tried on {architecture}: {why}") from error


def _check_optimiser(optimiser: OwnOptimiser, training: Training) -> None:
    closure = signature(type(optimiser.inner).step).parameters.get("closure")
    if closure is not None and closure.default is Parameter.empty:
        raise InputError(
            f"the optimiser {optimiser.name} ({type(optimiser.inner).__name__}) needs a closure that computes the loss"
            " again: take its steps in a local update (local_update) of your own"
        )
    scheduler = optimiser.scheduler
    if scheduler is not None and "metrics" in signature(scheduler.step).parameters:
        raise InputError(
            f"the scheduler of {optimiser.name} ({type(scheduler).__name__}) needs a metric at each step: choose one"
            " that counts rounds, epochs or steps"
        )
    scheduled = training.schedule != "constant" or training.warmup
    if scheduled and not all("lr" in group for group in optimiser.inner.param_groups):
        raise InputError(
            f"the optimiser {optimiser.name} has no learning rate (lr), which training.schedule and training.warmup"
            " change: leave them out"
        )


def _try_loss(task: Classification, architecture: str, chosen: dict[str, str]) -> None:
    """One step of a new model, on two samples."""
    what = f"the loss {chosen['loss']}" if "loss" in chosen else f"training.precision={task.precision}"
    with Streams(0).ambient("trial"):
        try:
            model = task.build(architecture).train()
            (found,) = task.forward(model, _two_samples(task)).terms.values()
            if not isinstance(found, Tensor) or found.ndim or not found.requires_grad:
                raise InputError(
                    f"{what} must return a scalar tensor that depends on the logits, and returns {_described(found)}"
                )
            learner = Learner(model, task_loss, Sgd(model.parameters(), rate=0.0), Streams(0))
            fit([learner], task, ArrayDataset(**_two_samples(task)), Schedule(range(1), 2), Streams(0), Meter())
        except InputError:
            raise
        except Exception as error:  # the user's function may raise anything
            why = " ".join(str(error).split())[:300]
            raise InputError(f"{what} failed when it was tried on two samples with {architecture}: {why}") from error


def _described(found: object) -> str:
    if not isinstance(found, Tensor):
        return f"an object of type {type(found).__name__}"
    return f"a tensor of shape {tuple(found.shape)}" if found.ndim else "a constant"


def _two_samples(task: Classification) -> dict[str, Tensor]:
    inputs = torch.linspace(0, 1, 2 * torch.Size(task.shape).numel()).reshape(2, *task.shape)
    labels = torch.tensor([0, len(task.classes) - 1])
    points = type(task).labelled_rows is not Classification.labelled_rows
    return {"inputs": inputs, "labels": labels.unsqueeze(1).expand(2, task.shape[0]) if points else labels}
