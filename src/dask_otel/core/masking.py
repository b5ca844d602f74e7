"""Masks secrets in addresses, variables and free text.

Users mail reports and paste log lines into issues. So everything that may not be harmless is
masked: users, passwords and queries of addresses, parts of a path that look like a token, the
values of headers and of unknown variables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import unquote, urlsplit

from dask_otel.core.text import shortened

#: Replaces a secret.
MASK: Final = "…"

#: Shorter secrets are not masked in free text: they would match everywhere.
_SHORTEST: Final = 4
_SECRET_NAME: Final = re.compile(
    r"auth|cred|key|pass|pwd|secret|session|sign|token|cookie|user", re.IGNORECASE
)
#: Matches only at the start of a word: trying each character of a long word would take for ever.
_URL: Final = re.compile(r"(?<![A-Za-z0-9+.\-])[A-Za-z0-9+.\-]+://[^\s'\"<>()]+")
_ASSIGNED: Final = re.compile(
    r"(?i)((?:authorization|api[-_ ]?key|access[-_ ]?key|password|passwd|secret|token)['\"]?\s*[:=]"
    r"\s*['\"]?)((?:bearer|basic)\s+)?[^\s,;'\"]+"
)
_SCHEME: Final = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9+/=_.~\-]{6,}")
#: A part of a path that is an id or a token.
_TOKEN: Final = re.compile(
    r"(?=[^/]*\d)(?=[^/]*[A-Za-z])[A-Za-z0-9_.~+=%\-]{16,}|[A-Za-z0-9+=_-]{32,}"
)
#: Possible base64.
_BASE64: Final = re.compile(r"[A-Za-z0-9+/=]{64,}")

_NO_URL: Final = "an address that is no URL"
#: Characters of an address or a file's name.
_LONGEST: Final = 300
#: A possible host with its port.
_HOST: Final = re.compile(r"[^\s=\x00-\x1f\x7f]{0,255}")
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9_.\-]{1,64}")

#: Variables of OpenTelemetry whose values are harmless.
_HARMLESS: Final = re.compile(
    r"OTEL_(?:"
    r"SDK_DISABLED|SERVICE_NAME|PROPAGATORS|CONFIG_FILE|EXPERIMENTAL_CONFIG_FILE|LOG_LEVEL"
    r"|EXPERIMENTAL_RESOURCE_DETECTORS|PYTHON_SDK_INTERNAL_METRICS_ENABLED"
    r"|TRACES_SAMPLER(?:_ARG)?|METRICS_EXEMPLAR_FILTER|(?:TRACES|METRICS|LOGS)_EXPORTER"
    r"|METRIC_EXPORT_(?:INTERVAL|TIMEOUT)|(?:BSP|BLRP)_[A-Z_]+|[A-Z_]*LIMIT"
    r"|EXPORTER_OTLP_(?:[A-Z]+_)?(?:PROTOCOL|COMPRESSION|TIMEOUT|INSECURE"
    r"|TEMPORALITY_PREFERENCE|DEFAULT_HISTOGRAM_AGGREGATION)"
    r")"
)
_ENDPOINT: Final = re.compile(r"OTEL_[A-Z_]*ENDPOINT")
_HEADERS: Final = re.compile(r"OTEL_[A-Z_]*HEADERS")
_RESOURCE: Final = re.compile("OTEL_RESOURCE_ATTRIBUTES")
_FILE: Final = re.compile(r"OTEL_EXPORTER_OTLP_(?:[A-Z]+_)?(?:CLIENT_)?(?:CERTIFICATE|KEY)")


def masked_url(address: str) -> str:
    """Return an address without user, password, query, fragment, and tokens in its path."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return _NO_URL
    # host:port without a scheme.
    bare = address.rpartition("@")[2].partition("?")[0].partition("#")[0]
    host, slash, path = bare.partition("/")
    if parts.netloc:
        host = parts.netloc.rpartition("@")[2]
    if not _HOST.fullmatch(host):
        # For example headers or a key, which belong in another variable.
        return _NO_URL
    if not parts.netloc:
        return shortened(host + slash + _masked_path(path), _LONGEST)
    shown = parts._replace(netloc=host, path=_masked_path(parts.path), query="", fragment="")
    return shortened(shown.geturl(), _LONGEST)


def _masked_path(path: str) -> str:
    return "/".join(MASK if _TOKEN.fullmatch(part) else part for part in path.split("/"))


def masked_headers(value: str) -> str:
    """Return the names of a variable's headers, without the values."""
    names = [item.partition("=")[0].strip() for item in value.split(",") if "=" in item]
    # An item without a name is a value, and may be secret.
    return ",".join(f"{name}={MASK}" for name in names if _HEADER_NAME.fullmatch(name)) or MASK


def masked_path(value: str) -> str:
    """Return the name of a file; masked if it looks like the file's content."""
    # A header or an address belongs in another variable.
    other = "://" in value or ("/" not in value and ("=" in value or "@" in value))
    if other or "-----BEGIN" in value or not value.isprintable():
        return MASK
    # A key in base64 has upper case, lower case and digits, unlike most names of this length.
    runs = [run for run in _BASE64.findall(value) if not (run.islower() or run.isupper())]
    is_key = any(any(c.isdigit() for c in run) for run in runs)
    return MASK if is_key else shortened(value, _LONGEST)


def masked_variable(name: str, value: str) -> str:
    """Return the value of an ``OTEL_*`` variable without secrets."""
    for pattern, masked in (
        (_ENDPOINT, masked_url),
        (_HEADERS, masked_headers),
        (_FILE, masked_path),
        (_RESOURCE, _masked_attributes),
    ):
        if pattern.fullmatch(name):
            return masked(value)
    return Mask()(value) if _HARMLESS.fullmatch(name) else MASK


def _masked_attributes(value: str) -> str:
    masked = []
    for item in value.split(","):
        key, equals, text = item.partition("=")
        text = MASK if _SECRET_NAME.search(key) else Mask()(text)
        masked.append(f"{key}={text}" if equals else MASK)
    return ",".join(masked)


def secrets_of(variables: Mapping[str, str]) -> set[str]:
    """Return the secrets in some variables, in all forms that a text may contain."""
    found: set[str] = set()
    for name, value in variables.items():
        if _HEADERS.fullmatch(name):
            for item in value.split(","):
                text = item.partition("=")[2].strip()
                found |= {text, unquote(text), *unquote(text).split()}
        elif _ENDPOINT.fullmatch(name):
            found |= _secrets_of_url(value)
        elif masked_variable(name, value) == MASK:
            found.add(value)
    return {text for text in found if len(text) >= _SHORTEST and text.lower() not in _NO_SECRETS}


#: Parts of headers' values that are not secret.
_NO_SECRETS: Final = frozenset({"bearer", "basic", "true", "false"})


def _secrets_of_url(address: str) -> set[str]:
    authority = address.partition("://")[2] or address
    user, at, rest = authority.partition("/")[0].rpartition("@")
    parts = {user, *user.split(":", 1)} if at else set()
    tail = authority if not at else rest + authority.partition("/")[2]
    query = tail.partition("?")[2].partition("#")[0]
    parts |= {query, *(pair.partition("=")[2] for pair in query.split("&"))}
    parts |= {part for part in tail.partition("?")[0].split("/") if _TOKEN.fullmatch(part)}
    return parts | {unquote(part) for part in parts}


class Mask:
    """Masks possible secrets in a text.

    Parameters
    ----------
    secrets
        Known secrets, which are masked everywhere.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        # The longest first, because one can be part of another.
        self._secrets = sorted(set(secrets), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """Return the text with possible secrets masked."""
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        text = _URL.sub(lambda found: masked_url(found[0]), text)
        text = _ASSIGNED.sub(rf"\1{MASK}", text)
        return _SCHEME.sub(rf"\1 {MASK}", text)
