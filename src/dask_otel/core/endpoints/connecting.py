"""What keeps a request from getting to a server that understands it."""

from __future__ import annotations

from dask_otel.core.endpoints.trouble import ENDPOINT, PROTOCOL, Seen, Trouble


def bad_address(seen: Seen) -> Trouble | None:
    """Tell: what is no address at all."""
    if not seen.says("InvalidURL", "LocationParseError", "MissingSchema", "InvalidSchema"):
        return None
    return Trouble(
        "bad_address",
        "The endpoint is no address that a request could be sent to.",
        f"Correct {ENDPOINT}: scheme, host and port, such as http://collector:4318.",
    )


def certificate(seen: Seen) -> Trouble | None:
    """Tell: a certificate, the server's or the client's."""
    if seen.says("certificate required", "CERTIFICATE_REQUIRED", "bad certificate"):
        return Trouble(
            "client_certificate",
            "The server wants a certificate of the client's.",
            "Set OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY.",
        )
    if seen.says("Hostname mismatch", "Hostname Verification", "not in peer certificate",
                 "IP address mismatch", "doesn't match"):  # fmt: skip
        return Trouble(
            "certificate_name",
            f"The server's certificate is for another name than {seen.endpoint.host}.",
            "Use the name that stands in the certificate, or give the server one for this name.",
        )
    if not seen.says("CERTIFICATE_VERIFY_FAILED", "certificate verify failed"):
        return None
    if seen.says("expired"):
        return Trouble(
            "certificate_expired",
            "The server's certificate has expired.",
            "Renew it; if it has not, the clock of this machine is wrong.",
        )
    return Trouble(
        "certificate_untrusted",
        "The server's certificate is not trusted: it is signed by itself, or by an unknown "
        "authority.",
        "Set OTEL_EXPORTER_OTLP_CERTIFICATE to the PEM file of the authority that signed it.",
    )


def tls_to_plain(seen: Seen) -> Trouble | None:
    """Tell: tLS spoken to a server that does without."""
    told = seen.says(
        "WRONG_VERSION_NUMBER", "wrong version number", "RECORD_LAYER_FAILURE",
        "record layer failure", "packet length too long", "UNKNOWNPROTOCOL",
    )  # fmt: skip
    looked = seen.endpoint.secure and seen.listener in ("h2", "http")
    if not (told or looked):
        return None
    wrong = seen.listener == ("http" if seen.grpc else "h2")
    also = f" {_wrong_port(seen).cause}" if wrong else ""
    if not seen.endpoint.scheme:
        bare = seen.endpoint.url
        return Trouble(
            "no_scheme",
            f"The endpoint has no scheme, so the exporter speaks TLS, and the server does not."
            f"{also}",
            f"Set {ENDPOINT} to http://{bare}." + (f" {_wrong_port(seen).remedy}" if wrong else ""),
        )
    return Trouble(
        "tls_to_plain",
        f"TLS is spoken (https) to a server that speaks without it.{also}",
        "Use http:// in the endpoint, or switch TLS on at the server."
        + (f" {_wrong_port(seen).remedy}" if wrong else ""),
    )


def plain_to_tls(seen: Seen) -> Trouble | None:
    """Tell: spoken without TLS to a server that wants it."""
    told = seen.says(
        "HTTP request was sent to HTTPS port", "Client sent an HTTP request to an HTTPS server"
    )
    looked = not seen.endpoint.secure and (seen.listener or "").startswith("tls")
    if not (told or looked):
        return None
    return Trouble(
        "plain_to_tls",
        "The endpoint is spoken to without TLS (http), and the server wants TLS.",
        "Use https:// in the endpoint; where the server's certificate is signed by an authority of "
        "your own, set OTEL_EXPORTER_OTLP_CERTIFICATE to its PEM file.",
    )


def _wrong_port(seen: Seen) -> Trouble:
    if seen.grpc:
        return Trouble(
            "grpc_to_http",
            "gRPC is spoken to a port where an HTTP server listens.",
            f"Use the port for gRPC (4317 as a rule), or set {PROTOCOL}=http/protobuf.",
        )
    return Trouble(
        "http_to_grpc",
        "HTTP is spoken to a port where a gRPC server listens.",
        f"Use the port for HTTP (4318 as a rule), or set {PROTOCOL}=grpc.",
    )


def wrong_protocol(seen: Seen) -> Trouble | None:
    """Tell: gRPC spoken to an HTTP port, and the other way round."""
    if seen.grpc:
        told = seen.says(
            "Expected SETTINGS frame", "missing selected ALPN", "http1.x server",
            "http2 header with status: 404", "http2 header with status: 405",
            "http2 header with status: 415", "invalid content-type",
        )  # fmt: skip
        return _wrong_port(seen) if told or seen.listener in ("http", "tls-http") else None
    # A gRPC server answers with a frame of HTTP/2, which is no line of HTTP/1.
    told = seen.says("BadStatusLine", "Malformed HTTP") and seen.listener != "other"
    return _wrong_port(seen) if told or seen.listener in ("h2", "tls-h2") else None


def unresolved(seen: Seen) -> Trouble | None:
    """Tell: a name that nobody knows."""
    told = seen.says(
        "gaierror", "NameResolutionError", "Name or service not known", "errors resolving",
        "DNS resolution failed", "Domain name not found", "nodename nor servname",
        "name resolution",
    )  # fmt: skip
    if not (told or seen.listener == "unresolved"):
        return None
    return Trouble(
        "unresolved",
        f"The name {seen.endpoint.host} does not resolve.",
        f"Check its spelling in {ENDPOINT}. Names of Docker Compose and Kubernetes resolve only "
        "inside; from another namespace, use the full one (collector.monitoring.svc).",
    )


def refused(seen: Seen) -> Trouble | None:
    """Tell: a port where nobody listens."""
    if not (seen.says("Connection refused", "ConnectionRefused") or seen.listener == "refused"):
        return None
    if seen.listener in ("h2", "http", "tls", "tls-h2", "tls-http"):
        return Trouble(
            "refused",
            f"One of the addresses of {seen.endpoint.host} refuses the connection, although "
            "somebody listens at another one.",
            "Name the address that is meant, such as 127.0.0.1 in the place of localhost.",
        )
    local = seen.endpoint.host in ("localhost", "127.0.0.1", "[::1]")
    here = " localhost is the machine or container of the scheduler itself." if local else ""
    return Trouble(
        "refused",
        f"Nothing listens at {seen.endpoint.authority}.",
        f"Start a collector there, or correct {ENDPOINT} (as a rule port 4317 for gRPC, 4318 for "
        f"HTTP).{here}",
    )


def unreachable(seen: Seen) -> Trouble | None:
    """Tell: a host to which there is no way."""
    told = seen.says("No route to host", "unreachable", "EHOSTUNREACH", "ENETUNREACH")
    if not (told or seen.listener == "unreachable"):
        return None
    return Trouble(
        "unreachable",
        f"There is no way to {seen.endpoint.host} from here.",
        "Check the network, and the rules of firewalls between the scheduler and it.",
    )


def proxy(seen: Seen) -> Trouble | None:
    """Tell: a proxy in between."""
    if not seen.says("ProxyError", "Tunnel connection failed"):
        return None
    return Trouble(
        "proxy",
        "The request goes through a proxy (HTTP_PROXY, HTTPS_PROXY), which does not pass it on.",
        f"Put {seen.endpoint.host} into NO_PROXY if it is to be reached directly.",
    )


def timeout(seen: Seen) -> Trouble | None:
    """Tell: no answer."""
    told = seen.says("DEADLINE_EXCEEDED", "Timeout", "timed out", "no answer within")
    if seen.says("HTTP status") or not (told or seen.listener == "silent"):
        return None
    return Trouble(
        "timeout",
        "There is no answer in time: a firewall or a network policy drops what is sent, the "
        "server hangs, or it is too slow.",
        "Check that the port is open from where the scheduler runs; a slow server needs a greater "
        "OTEL_EXPORTER_OTLP_TIMEOUT (seconds; 10 by default).",
    )


def closed(seen: Seen) -> Trouble | None:
    """Tell: a connection that the server closes."""
    told = seen.says(
        "Connection reset", "ConnectionReset", "RemoteDisconnected", "Socket closed",
        "Connection aborted", "BrokenPipe", "Broken pipe", "EOF occurred",
    )  # fmt: skip
    if not (told or seen.listener == "closed"):
        return None
    other = "without TLS (http)" if seen.endpoint.secure else "TLS (https)"
    protocol = "HTTP" if seen.grpc else "gRPC"
    return Trouble(
        "closed",
        f"The server closes the connection without an answer: it may want {other}, or {protocol}.",
        "Check the scheme and the port of the endpoint; run `dask-otel doctor`, which looks who "
        "listens there.",
    )
