"""What the console's pages may send with each thing that they ask for."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from refdesk.calls import Call
from refdesk.validation import invalid_arguments

P = TypeVar("P", bound="Params")

Id = Annotated[str, Field(min_length=1, max_length=2000)]
Name = Annotated[str, Field(min_length=1, max_length=255)]
CollectionName = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200)]


class Params(BaseModel):
    """Base of them: nothing unknown, nothing silently converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @classmethod
    def of(cls: type[P], call: Call) -> P:
        """Those of a call; raises InvalidArguments with every one that is wrong."""
        try:
            return cls.model_validate(call.params)
        except ValidationError as error:
            raise invalid_arguments(error, list(cls.model_fields)) from None


class Nothing(Params):
    """For what needs no more than to be asked."""


class Documents(Params):
    collection: Id | None = None
    status: Literal["all", "pending", "success", "failed"] = "all"
    offset: Annotated[int, Field(ge=0, le=10**9)] = 0
    limit: Annotated[int, Field(ge=1, le=500)] = 50


class ById(Params):
    id: Id


class ByIds(Params):
    ids: Annotated[list[Id], Field(min_length=1, max_length=500)]


class Read(Params):
    id: Id
    section: Annotated[str | None, Field(min_length=1, max_length=200)] = None
    page: Annotated[int | None, Field(ge=1, le=10**9)] = None
    chunk: Id | None = None
    before: Annotated[int, Field(ge=0, le=10)] = 2
    after: Annotated[int, Field(ge=0, le=10)] = 2
    cursor: Annotated[str | None, Field(pattern=r"^\d{1,9}(-\d{1,9})?$")] = None
    """Where an answer before said that it goes on, or what is before it; it wins over the others."""


class NewCollection(Params):
    name: CollectionName
    description: Annotated[str, Field(max_length=2000)] = ""
    version: Annotated[str, Field(max_length=100)] = ""


class ServerLog(Params):
    name: Name
    lines: Annotated[int, Field(ge=1, le=2000)] = 200


class SetServer(Params):
    name: Name
    enabled: bool


class Approve(Params):
    name: Name
    tool: Annotated[str | None, Field(min_length=1, max_length=1000)] = None
    reject: bool = False
    sha256: Annotated[str | None, Field(pattern=r"^[0-9a-f]{64}$")] = None
    """What was shown to whoever decides: a tool that is another by now is not decided upon."""


class Metrics(Params):
    since: Annotated[float | None, Field(ge=0)] = None
    """Only samples that are newer than this, by their `at`."""


class NewKey(Params):
    name: Name
    user: Name | None = None
    tenant: Name | None = None
    roles: list[Name] = []
    toolsets: list[Name] = []
    servers: list[Name] = []
    expires: Annotated[str | None, Field(min_length=1, max_length=50)] = None


class ByName(Params):
    name: Name
