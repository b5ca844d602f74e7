"""Nothing that may be secret is shown."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_otel.core.masking import (
    MASK,
    Mask,
    masked_headers,
    masked_url,
    masked_variable,
    secrets_of,
)

#: What no address, variable or message has by chance.
WORDS = st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=6, max_size=40)
SECRETS = WORDS.map(lambda text: f"zq{text}9")
ENDPOINTS = st.builds(
    lambda scheme, user, password, path, key, value: (
        f"{scheme}{user}:{quote(password)}@collector:4318{path}?{key}={value}",
        (user, password, value),
    ),
    st.sampled_from(["http://", "https://", ""]),
    SECRETS,
    SECRETS,
    st.sampled_from(["", "/", "/v1/traces", "/otlp"]),
    st.sampled_from(["api-key", "x"]),
    SECRETS,
)


@given(ENDPOINTS)
def test_no_password_of_an_address_is_shown(made: tuple[str, tuple[str, ...]]) -> None:
    address, secrets = made
    mask = Mask(secrets_of({"OTEL_EXPORTER_OTLP_ENDPOINT": address}))
    shown = (
        masked_url(address),
        masked_variable("OTEL_EXPORTER_OTLP_ENDPOINT", address),
        mask(f"Failed to parse: {address} (no)"),
        *(mask(f"the server says: {secret} is unknown") for secret in secrets),
    )
    for text in shown:
        assert not any(secret in text for secret in secrets), text
    assert "collector:4318" in shown[0]


@given(st.dictionaries(WORDS, SECRETS, min_size=1), st.sampled_from(["", "Bearer ", "Basic "]))
def test_no_value_of_a_header_is_shown(headers: dict[str, str], scheme: str) -> None:
    value = ",".join(f"{name}={quote(scheme + secret)}" for name, secret in headers.items())
    mask = Mask(secrets_of({"OTEL_EXPORTER_OTLP_TRACES_HEADERS": value}))
    shown = (
        masked_headers(value),
        masked_variable("OTEL_EXPORTER_OTLP_TRACES_HEADERS", value),
        *(mask(f"the server says: {secret} is unknown") for secret in headers.values()),
        mask(value),
    )
    for text in shown:
        assert not any(secret in text for secret in headers.values()), text
    assert all(name in shown[0] for name in headers)


@given(st.from_regex(r"OTEL_[A-Z_]{1,30}", fullmatch=True), SECRETS)
def test_a_variable_that_is_not_known_is_not_shown(name: str, value: str) -> None:
    assert masked_variable(f"{name}_OF_SOMEBODY", value) == MASK
    assert value not in Mask(secrets_of({f"{name}_OF_SOMEBODY": value}))(f"it says {value}")


@given(st.text(), st.lists(st.text()))
def test_no_text_makes_it_raise(text: str, secrets: list[str]) -> None:
    Mask(secret for secret in secrets if secret)(text)
    masked_url(text)
    masked_headers(text)
    secrets_of({"OTEL_EXPORTER_OTLP_ENDPOINT": text, "OTEL_EXPORTER_OTLP_HEADERS": text})


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "grpc"),
        ("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "/etc/ca.pem", "/etc/ca.pem"),
        ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "/etc/keys/" + "a" * 80, "/etc/keys/" + "a" * 80),
        ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "-----BEGIN PRIVATE KEY-----\nMIIEv", MASK),
        ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", "MIIEvQIBADANBg8" * 5, MASK),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a=1,b=2", f"a={MASK},b={MASK}"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "geheim", MASK),
        # What belongs in another variable.
        ("OTEL_EXPORTER_OTLP_HEADERS", "http://u:geheim@h/?k=geheim", MASK),
        *(
            ("OTEL_EXPORTER_OTLP_ENDPOINT", value, "an address that is no URL")
            for value in ("x-key=geheim", "-----BEGIN PRIVATE KEY-----\ngeheim", "geheim " * 3)
        ),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318/v1/traces", "http://c:4318/v1/traces"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://c/0a1b2c3d4e5f6a7b8c9d/x", f"https://c/{MASK}/x"),
        ("OTEL_RESOURCE_ATTRIBUTES", "team=etl,api.key=abc", f"team=etl,api.key={MASK}"),
        ("OTEL_SERVICE_NAME", "nightly", "nightly"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "100", "100"),
        ("OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER", "x", MASK),
    ],
)
def test_what_is_harmless_is_shown(name: str, value: str, shown: str) -> None:
    assert masked_variable(name, value) == shown


@pytest.mark.parametrize(
    "text",
    [
        "authorization: Bearer abcdefgh",
        "got Authorization=Basic abcdefgh",
        "'api_key': 'abcdefgh'",
        "password=abcdefgh",
        "Bearer abcdefgh is unknown",
    ],
)
def test_words_that_look_like_credentials_are_masked(text: str) -> None:
    assert "abcdefgh" not in Mask()(text)
