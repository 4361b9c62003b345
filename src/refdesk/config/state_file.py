"""JSON files of Refdesk's own in the data folder, which several processes read and change: API keys and pins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from refdesk.errors import ConfigError, StorageError
from refdesk.support.fs import lock_file, replace_file

ModelT = TypeVar("ModelT", bound=BaseModel)


def read_state(path: Path, model: type[ModelT]) -> ModelT:
    """Return the content of a file, or the model's defaults without one. Raises ConfigError if it's invalid."""
    try:
        return model.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return model()
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror}"]) from error
    except ValidationError as error:
        where = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, where["loc"])) or "the whole"
        raise ConfigError([f"{path}: is invalid ({place}: {where['msg']}); fix it"]) from None


@contextmanager
def edit_state(path: Path, model: type[ModelT]) -> Iterator[ModelT]:
    """Lock a file, yield its content to be changed, and write it back. Raises StorageError if that fails."""
    try:
        with lock_file(path):
            state = read_state(path, model)
            yield state
            replace_file(path, orjson.dumps(state.model_dump(mode="json"), option=orjson.OPT_INDENT_2) + b"\n")
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from error
