"""Reading typed documents (JSON or YAML) and replacing files atomically. Knows nothing of what is in them."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from placement.errors import InputError
from placement.known_fields import suggest_field
from placement.units import Bytes, Seconds, Share, parse_bytes, parse_seconds, parse_share

T = TypeVar("T")
VERSION = 1
MAX_DOCUMENT_BYTES = 256 * 2**20

_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_UNITS: dict[type, Callable[[object], object]] = {
    Seconds: parse_seconds,
    Bytes: parse_bytes,
    Share: parse_share,
}


def read_document(path: Path, kind: type[T]) -> T:
    """The file as a value of `kind`; an InputError names the file and the place in it that is wrong."""
    raw = read_bytes(path)
    try:
        data = yaml.safe_load(raw) if path.suffix in (".yaml", ".yml") else msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not valid JSON: {error}") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a number of thousands of digits, a 31st of February
        raise InputError(f"{path}: not valid YAML: {_yaml_reason(error)}") from error
    except RecursionError as error:
        raise InputError(f"{path}: nested too deeply; is this the right file?") from error
    if isinstance(data, dict):
        check_version(data.pop("version", VERSION), path)
    if data is None:
        raise InputError(f"{path}: is empty")
    return convert(data, kind, str(path))


def convert(data: object, kind: type[T], where: str) -> T:
    """Plain data as a value of `kind`, with `where` (a file, say) named in what goes wrong."""
    try:
        return msgspec.convert(data, kind, dec_hook=_from_plain, str_keys=True)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `")
        unknown = _UNKNOWN.fullmatch(message)
        if unknown is not None:
            meant = suggest_field(kind, place.rstrip("`"), unknown[1])
            message = f"unknown field `{unknown[1]}`{meant}"
        key = "a key of " if place.startswith("key` in `") else ""
        at = re.sub(r"\[\.\.\.\]", "", place.removeprefix("key` in `").strip("$`")).lstrip(".")
        raise InputError(f"{where}: {key}{at + ': ' if at else ''}{message}") from error


def _yaml_reason(error: Exception) -> str:
    """In one line; where the file is wrong comes first."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None and error.problem is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return " ".join(str(error).split())


def check_version(version: object, path: Path) -> None:
    if version != VERSION:
        raise InputError(f"{path}: version {version!r} is not known here; this Penstock reads version {VERSION}")


def read_bytes(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_DOCUMENT_BYTES:
            raise InputError(f"{path}: larger than {MAX_DOCUMENT_BYTES // 2**20} MiB; is this the right file?")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {(error.strerror or str(error)).lower()}") from error


def write_json(path: Path, value: object) -> None:
    """Replace `path` by `value` as JSON."""
    replace_file(path, msgspec.json.format(encode_json(value), indent=1) + b"\n")


def encode_json(value: object) -> bytes:
    """A document, carrying the format's version."""
    data: dict[str, Any] = {"version": VERSION, **msgspec.to_builtins(value, enc_hook=_to_plain)}
    return msgspec.json.encode(data)


def replace_file(path: Path, content: bytes) -> None:
    """All of the new content or the old file: never a half-written one."""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.chmod(temporary, 0o666 & ~_umask())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {(error.strerror or str(error)).lower()}") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _from_plain(kind: type, value: object) -> object:
    if kind not in _UNITS:
        raise NotImplementedError(kind)
    return _UNITS[kind](value)


def _to_plain(value: object) -> object:
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int):
        return int(value)
    raise NotImplementedError(type(value))
