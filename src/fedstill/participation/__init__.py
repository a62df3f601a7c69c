"""Selection, availability and dropout."""

from fedstill.participation.policies import Everyone, Policy, Random, policies

__all__ = ["Everyone", "Policy", "Random", "policies"]
