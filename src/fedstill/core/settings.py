"""The base of every settings object: frozen, typed, and strict about names it does not know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeGuard, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from fedstill.core.errors import InputError, did_you_mean
from fedstill.core.renamed import FORMER_SETTINGS

# Other names that the field uses for settings, and names of earlier releases: accepted wherever there is the setting of
# the name beside them.
ALIASES = {"lr": "rate", "learning_rate": "rate", "batch_size": "batch", **FORMER_SETTINGS}
_SCALARS = frozenset({str, int, float, bool, type(None), list, tuple})


def is_mapping(value: Any) -> TypeGuard[Mapping[Any, Any]]:
    """As `isinstance` finds it, which is slow for abstract classes: planning a study asks a million times."""
    kind = type(value)
    return kind is dict or (kind not in _SCALARS and isinstance(value, Mapping))


class Settings(BaseModel):
    """Immutable settings of one part; an unknown or mistyped field is an error that names it.

    >>> class Training(Settings):
    ...     rate: float = 0.1
    >>> Training(lr=0.5).rate
    0.5
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    # By setting, values of earlier releases and their current names: accepted, and still used in identities of runs.
    former_values: ClassVar[Mapping[str, Mapping[str, str]]] = {}

    # Settings that earlier releases did not have: identities of runs contain only those that are not at their default.
    added_later: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _aliases(cls, given: Any) -> Any:
        if not is_mapping(given):
            return given
        given = {key: cls._current(key, value) for key, value in given.items()} if cls.former_values else dict(given)
        if ALIASES.keys().isdisjoint(given):
            return given
        named: dict[Any, Any] = {}
        for key, value in given.items():
            name = setting_name(key, cls.model_fields)
            if name in named:
                raise ValueError(f"{key} is another name of {name}, which is set too: leave one of them out")
            named[name] = value
        return named

    @classmethod
    def _current(cls, name: Any, value: Any) -> Any:
        """A value by its current name."""
        return cls.former_values.get(name, {}).get(value, value) if isinstance(value, str) else value

    @classmethod
    def all_added_later(cls) -> frozenset[str]:
        """Those of this class and of the classes that it derives from.

        >>> class Training(Settings):
        ...     loss: str | None = None
        ...     added_later = frozenset({"loss"})
        >>> class Private(Training):
        ...     noise: float = 0.0
        ...     added_later = frozenset({"noise"})
        >>> sorted(Private.all_added_later()), Private().hashed()
        (['loss', 'noise'], {})
        """
        return frozenset().union(*(vars(kind).get("added_later", ()) for kind in cls.__mro__))

    def hashed(self) -> dict[str, Any]:
        """The settings as identities of runs have always had them: values by their first names.

        >>> class Training(Settings):
        ...     rate: float = 0.1
        ...     loss: str | None = None
        ...     added_later = frozenset({"loss"})
        >>> Training().hashed(), Training(loss="mine").hashed()
        ({'rate': 0.1}, {'rate': 0.1, 'loss': 'mine'})
        """
        said = self.model_dump(mode="json")
        for name in self.all_added_later():
            if getattr(self, name) == type(self).model_fields[name].default:
                del said[name]
        for name, values in self.former_values.items():
            first = {now: former for former, now in values.items()}
            said[name] = first.get(said[name], said[name])
        return said


def setting_name(name: str, known: Mapping[str, Any]) -> str:
    """The name of a setting among those known, where it was given by an alias.

    >>> setting_name("learning_rate", {"rate": ...}), setting_name("batch_size", {"rate": ...})
    ('rate', 'batch_size')
    """
    other = ALIASES.get(name, name)
    return other if name not in known and other in known else name


Kind = TypeVar("Kind", bound=Settings)


def make_settings(kind: type[Kind], given: Any, owner: str) -> Kind:
    """Settings from what was given; the first thing wrong is an `InputError` that names the owner and the field.

    >>> from pydantic import Field
    >>> class Softened(Settings):
    ...     temperature: float = Field(2.0, gt=0)
    >>> make_settings(Softened, {"temperature": 0.0}, "loss 'DKD'")
    Traceback (most recent call last):
    fedstill.core.errors.InputError: loss 'DKD': temperature: Input should be greater than 0 (got 0.0)
    """
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f" {part}:" for part in first["loc"] if "[" not in str(part))
        if first["type"] == "extra_forbidden":
            more = f": {did_you_mean(str(first['loc'][-1]), kind.model_fields)}"
        else:
            more = f" (got {first['input']!r})" if isinstance(first["input"], str | int | float) else ""
        raise InputError(f"{owner}:{where} {first['msg']}{more}") from None
