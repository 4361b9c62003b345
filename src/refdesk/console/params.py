"""Parameters of the console's methods."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from refdesk.calls import Call
from refdesk.errors import InvalidArguments, Problem
from refdesk.validation import validate

Id = Annotated[str, Field(min_length=1, max_length=2000)]
Name = Annotated[str, Field(min_length=1, max_length=255)]
CollectionName = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200)]


class Params(BaseModel):
    """Base model: unknown parameters are rejected, and values aren't coerced."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @classmethod
    def of(cls, call: Call) -> Self:
        """Parse a call's parameters; raise InvalidArguments with every problem."""
        return validate(cls, call.params)


class NoParams(Params):
    """No parameters."""


class DocumentsParams(Params):
    collection: Id | None = None
    status: Literal["all", "pending", "success", "failed"] = "all"
    offset: Annotated[int, Field(ge=0, le=10**9)] = 0
    limit: Annotated[int, Field(ge=1, le=500)] = 50


class IdParams(Params):
    id: Id


class IdsParams(Params):
    ids: Annotated[list[Id], Field(min_length=1, max_length=500)]


class ReadParams(Params):
    id: Id
    section: Annotated[str | None, Field(min_length=1, max_length=200)] = None
    page: Annotated[int | None, Field(ge=1, le=10**9)] = None
    chunk: Id | None = None
    before: Annotated[int, Field(ge=0, le=10)] = 2
    after: Annotated[int, Field(ge=0, le=10)] = 2
    cursor: Annotated[str | None, Field(pattern=r"^\d{1,9}(-\d{1,9})?$")] = None
    """`next` or `previous` of an earlier response. Takes precedence over the other parameters."""


class NewCollectionParams(Params):
    name: CollectionName
    description: Annotated[str, Field(max_length=2000)] = ""
    version: Annotated[str, Field(max_length=100)] = ""


class ServerLogParams(Params):
    name: Name
    lines: Annotated[int, Field(ge=1, le=2000)] = 200


class SetServerParams(Params):
    name: Name
    enabled: bool


class ApproveParams(Params):
    name: Name
    tool: Annotated[str | None, Field(min_length=1, max_length=1000)] = None
    reject: bool = False
    sha256: Annotated[str | None, Field(pattern=r"^[0-9a-f]{64}$")] = None
    """Hash of the tool that was shown. The decision is rejected if the tool has changed since."""


class MetricsParams(Params):
    since: Annotated[float | None, Field(ge=0)] = None
    """Return only samples newer than this, by their `at`."""


class NewKeyParams(Params):
    name: Name
    user: Name | None = None
    tenant: Name | None = None
    roles: list[Name] = []
    toolsets: list[Name] = []
    servers: list[Name] = []
    expires: Annotated[str | None, Field(min_length=1, max_length=50)] = None


class NameParams(Params):
    name: Name


_PARAMETERS = {"server": "name"}


@contextmanager
def translate_argument_names() -> Iterator[None]:
    """Replace option and placeholder names in errors by the parameters of the same name."""
    try:
        yield
    except InvalidArguments as error:
        problems = [(problem.argument.lower().lstrip("-"), problem.rule) for problem in error.problems]
        raise InvalidArguments([Problem(_PARAMETERS.get(name, name), rule) for name, rule in problems]) from error
