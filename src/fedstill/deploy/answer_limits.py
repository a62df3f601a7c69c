"""What a site's policy allows of a single answer: a budget must be left for it, and all in it may leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from fedstill.core.egress import Kind
from fedstill.core.errors import InputError
from fedstill.core.message import Message
from fedstill.deploy.answer_log import AnswerLog, QuestionPlace, Used
from fedstill.deploy.demands import PrivacyDemand, Terms
from fedstill.deploy.egress_log import described
from fedstill.deploy.policy import SitePolicy
from fedstill.methods.wrappers.privacy_accounting import records_epsilon, replies_epsilon

LEARNT: frozenset[Kind] = frozenset({"parameters", "logits", "features", "labels", "inputs"})  # of single samples


def check_budget(
    policy: SitePolicy, answers: AnswerLog, terms: Terms, lines: Sequence[Mapping[str, Any]], place: QuestionPlace
) -> None:
    """Refuse an answer that a site's policy has no budget for, over all of its runs."""
    used = answers.used
    if place.attempt > policy.attempts:
        raise InputError(f"{place}: its policy accepts {policy.attempts} further attempts at a question")
    if policy.answers is not None and used.answers >= policy.answers:
        raise InputError(f"its policy allows {policy.answers} replies over all runs, and it has given them")
    if policy.rounds is not None and used.rounds >= policy.rounds and not answers.begun(place):
        raise InputError(f"its policy allows {policy.rounds} rounds over all runs, and it has answered them")
    limit = policy.privacy
    learnt = any(one["kind"] in LEARNT for one in lines)
    if limit is not None and limit.epsilon is not None and learnt:
        spent = epsilon_spent(limit, used, terms, 1)
        if spent > limit.epsilon:
            raise InputError(
                f"its policy allows an epsilon of {limit.epsilon:g} against the server over all runs, and with this"
                f" reply it would be {spent:.3g}"
            )


def epsilon_spent(demand: PrivacyDemand, used: Used, terms: Terms, replies: int) -> float:
    """The epsilon that a policy limits, after so many more replies; infinite if one came without noise."""
    if demand.level == "record":
        steps = [*used.steps, *[terms.steps] * replies]
        noisy = [one for one in steps if one is not None]
        return records_epsilon(noisy, demand.delta) if len(noisy) == len(steps) else inf
    noise = [*used.noise, *[terms.noise or 0.0] * replies]
    return replies_epsilon(noise, demand.delta) if all(noise) else inf


def check_reply(policy: SitePolicy, lines: Sequence[Mapping[str, Any]], place: QuestionPlace, message: Message) -> None:
    """Refuse what the policy does not let leave: also in exchanges that come later than the rehearsed round."""
    for one in described(message, lines):
        if not policy.allows(one):
            raise InputError(
                f"{place}: its policy does not allow {one['kind']} ({one['name']}) to leave for the {one['to']}"
            )
    if policy.largest_reply is not None and message.nbytes > policy.largest_reply * 2**20:
        raise InputError(
            f"its policy allows replies of {policy.largest_reply:g} megabytes, and this one has"
            f" {message.nbytes / 2**20:.1f}"
        )
