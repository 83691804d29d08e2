//! Findings, and the causes that the doctor knows, each with the section of a specification and the mend.
//!
//! `docs/doctor.md` lists the causes.

use rustls::{CertificateError, Error as Tls};
use serde::Serialize;

use super::visitor::Failure;

/// A finding, with its texts as they came; the report makes them fit to be shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// The name of the cause, for programs.
    pub(super) code: &'static str,
    /// What is wrong.
    pub(super) what: &'static str,
    /// The request.
    pub(super) asked: String,
    /// The answer, or why there is none.
    pub(super) came: String,
    /// The section of a specification that says otherwise.
    pub(super) section: &'static str,
    /// What to change.
    pub(super) mend: String,
}

impl Finding {
    /// A finding of a cause, with what was asked and what came.
    pub(super) fn new(cause: &'static Cause, asked: &str, came: &str) -> Self {
        Self {
            code: cause.code,
            what: cause.what,
            asked: asked.to_owned(),
            came: came.to_owned(),
            section: cause.section,
            mend: cause.mend.to_owned(),
        }
    }

    /// The finding with another answer.
    pub(super) fn with_answer(mut self, came: &str) -> Self {
        came.clone_into(&mut self.came);
        self
    }

    /// The finding with more about the mend.
    pub(super) fn mending(mut self, more: &str) -> Self {
        self.mend += "; ";
        self.mend += more;
        self
    }
}

/// The finding of a failed request.
pub(super) fn failed(failure: &Failure, asked: &str) -> Finding {
    let cause = match failure {
        Failure::Tls(Tls::InvalidCertificate(wrong)) => match wrong {
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                &CERTIFICATE_NAME
            }
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => &CERTIFICATE_EXPIRED,
            _ => &CERTIFICATE_UNTRUSTED,
        },
        Failure::Tls(_) => &TLS,
        Failure::TooLong => &TOO_MUCH,
        _ => &UNREACHABLE,
    };
    Finding::new(cause, asked, &failure.shown())
}

/// A cause of findings.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Cause {
    /// Its name.
    pub(super) code: &'static str,
    /// What is wrong.
    pub(super) what: &'static str,
    /// The section that says otherwise.
    pub(super) section: &'static str,
    /// What to change.
    pub(super) mend: &'static str,
}

const fn cause(
    code: &'static str,
    what: &'static str,
    section: &'static str,
    mend: &'static str,
) -> Cause {
    Cause {
        code,
        what,
        section,
        mend,
    }
}

pub(super) const UNREACHABLE: Cause = cause(
    "unreachable",
    "the server does not answer",
    "RFC 9110, section 3.3",
    "look whether the name leads to the gateway or the proxy before it, whether it listens there, and whether a firewall lets this machine in",
);
pub(super) const CERTIFICATE_NAME: Cause = cause(
    "certificate_name",
    "the certificate is for another name",
    "RFC 9110, section 4.3.4",
    "give the proxy a certificate for the host of the URL",
);
pub(super) const CERTIFICATE_EXPIRED: Cause = cause(
    "certificate_expired",
    "the certificate has expired, or is not valid yet",
    "RFC 5280, section 4.1.2.5",
    "renew the certificate, and have the proxy read it again; else set the clock of this machine",
);
pub(super) const CERTIFICATE_UNTRUSTED: Cause = cause(
    "certificate_untrusted",
    "clients do not trust the certificate",
    "RFC 5280, section 6.1; RFC 8446, section 4.4.2",
    "have the proxy send the whole chain (fullchain.pem, not cert.pem); with an authority of your own, each client has to know it, and this command with --ca-file",
);
pub(super) const TLS: Cause = cause(
    "tls",
    "the TLS handshake fails",
    "RFC 8446, section 4",
    "have the proxy speak TLS 1.2 or 1.3 on this port, and send a certificate",
);
pub(super) const HTTP_1_0: Cause = cause(
    "http_1_0",
    "a proxy speaks HTTP/1.0",
    "RFC 9112, section 7.1: streams need the chunked coding of HTTP/1.1",
    "set the version of the connection to the gateway to 1.1 (nginx: proxy_http_version 1.1)",
);
pub(super) const REDIRECTED: Cause = cause(
    "redirected",
    "the URL leads to another one, and clients lose the method, the body or the token on the way",
    "RFC 9110, section 15.4; Fetch, section 4.4 \"HTTP-redirect fetch\"",
    "give clients the URL that answers itself",
);
pub(super) const NOT_MCP: Cause = cause(
    "not_mcp",
    "there is no MCP server at this URL",
    "2025-11-25 transports, \"Streamable HTTP\"",
    "compare the URL with that of the server (lockgate server list TENANT), and the path that the proxy passes on",
);
pub(super) const FORBIDDEN: Cause = cause(
    "forbidden",
    "the server refuses this caller before it asks for a log-in",
    "2025-11-25 transports, \"Security Warning\"; 2025-11-25 authorization, \"Error Handling\"",
    "have the proxy pass on the Host of the request (nginx: proxy_set_header Host $host), and set public_url to the URL that clients use",
);
pub(super) const SERVER_ERROR: Cause = cause(
    "server_error",
    "the server, or a proxy before it, fails",
    "RFC 9110, section 15.6",
    "look at the log of the proxy and at /readyz of the gateway",
);
pub(super) const CHALLENGE_MISSING: Cause = cause(
    "challenge_missing",
    "the 401 has no WWW-Authenticate",
    "RFC 9110, section 15.5.2; 2025-11-25 authorization, \"Protected Resource Metadata Discovery Requirements\"",
    "have the proxy pass on WWW-Authenticate, and answer 401 by no page of its own",
);
pub(super) const RESOURCE_METADATA_MISSING: Cause = cause(
    "resource_metadata_missing",
    "there is no protected resource metadata",
    "2025-11-25 authorization, \"Protected Resource Metadata Discovery Requirements\"; RFC 9728, section 3.1",
    "have the proxy pass on /.well-known/ of the host to the gateway, also if the gateway has a path below it",
);
pub(super) const RESOURCE_MISMATCH: Cause = cause(
    "resource_mismatch",
    "the metadata is of another URL than was asked",
    "RFC 9728, section 3.3",
    "set public_url to the URL that clients use, and have the proxy pass on the Host of the request (nginx: proxy_set_header Host $host)",
);
pub(super) const NO_AUTHORIZATION_SERVER: Cause = cause(
    "no_authorization_server",
    "the protected resource metadata names no authorization server",
    "2025-11-25 authorization, \"Authorization Server Location\"; RFC 9728, section 2",
    "name one in authorization_servers; a server with API keys alone has no such metadata",
);
pub(super) const SERVER_METADATA_MISSING: Cause = cause(
    "server_metadata_missing",
    "there is no authorization server metadata",
    "2025-11-25 authorization, \"Authorization Server Metadata Discovery\"; RFC 8414, section 3",
    "have the proxy pass on /.well-known/ of the host of the issuer",
);
pub(super) const ISSUER_MISMATCH: Cause = cause(
    "issuer_mismatch",
    "the authorization server metadata is of another issuer",
    "RFC 8414, section 3.3",
    "let the issuer be what authorization_servers names, byte for byte; with Lockgate, set public_url to the URL that clients use",
);
pub(super) const ENDPOINT_MISSING: Cause = cause(
    "endpoint_missing",
    "the authorization server metadata lacks an endpoint",
    "RFC 8414, section 2",
    "have the authorization server publish authorization_endpoint and token_endpoint",
);
pub(super) const PKCE_MISSING: Cause = cause(
    "pkce_missing",
    "the authorization server does not offer PKCE with S256",
    "2025-11-25 authorization, \"Authorization Code Protection\"",
    "list S256 in code_challenge_methods_supported",
);
pub(super) const NO_REGISTRATION: Cause = cause(
    "no_registration",
    "the client gets no client ID",
    "2025-11-25 authorization, \"Client Registration Approaches\"",
    "allow registration or client ID metadata documents (auth.registration, auth.documents), or declare the client and enter its ID in it, and here with --client-id",
);
pub(super) const REGISTRATION_REFUSED: Cause = cause(
    "registration_refused",
    "the registration of the client is refused",
    "RFC 7591, section 3.2.2",
    "allow the redirect URI and the metadata of the client",
);
pub(super) const AUTHORIZATION_REFUSED: Cause = cause(
    "authorization_refused",
    "the authorization request is refused before a log-in",
    "RFC 6749, section 4.1.2.1; RFC 8707, section 2",
    "mend what the error names: the client, its redirect URI, the scopes or the resource",
);
pub(super) const TOKEN_REFUSED: Cause = cause(
    "token_refused",
    "the token is refused",
    "2025-11-25 authorization, \"Access Token Usage\"; RFC 6750, section 3.1",
    "give a token for this server; else have the proxy pass on Authorization",
);
pub(super) const INITIALIZE_REFUSED: Cause = cause(
    "initialize_refused",
    "the server does not answer initialize",
    "2025-11-25 lifecycle, \"Initialization\"",
    "look at the log of the server (lockgate server logs TENANT NAME), and whether the proxy passes POST and its body on",
);
pub(super) const SESSION_ID_MISSING: Cause = cause(
    "session_id_missing",
    "the answer to initialize has lost its MCP-Session-Id",
    "2025-11-25 transports, \"Session Management\" 1",
    "have the proxy pass on Mcp-Session-Id in answers",
);
pub(super) const SESSION_ID_DROPPED: Cause = cause(
    "session_id_dropped",
    "the session is lost on the way",
    "2025-11-25 transports, \"Session Management\" 2",
    "have the proxy pass on Mcp-Session-Id and MCP-Protocol-Version in requests, and all requests of a session to replicas of one gateway",
);
pub(super) const MIRRORED_HEADER_DROPPED: Cause = cause(
    "mirrored_header_dropped",
    "a header field of revision 2026-07-28 is lost on the way",
    "2026-07-28 streamable HTTP, \"Standard Request Headers\"",
    "have the proxy pass on MCP-Protocol-Version, Mcp-Method and Mcp-Name in requests",
);
pub(super) const REQUEST_REFUSED: Cause = cause(
    "request_refused",
    "a request in a session is not answered",
    "2025-11-25 transports, \"Sending Messages to the Server\"",
    "look at the log of the gateway and of the proxy",
);
pub(super) const BODY_LIMIT: Cause = cause(
    "body_limit",
    "a request of 1 MiB is refused",
    "RFC 9110, section 15.5.14",
    "raise the limit of the proxy to that of the gateway, http.max_body, 4 MiB (nginx: client_max_body_size 4m)",
);
pub(super) const STREAM_REFUSED: Cause = cause(
    "stream_refused",
    "GET opens no stream, and is not refused with 405",
    "2025-11-25 transports, \"Listening for Messages from the Server\" 3",
    "have the proxy pass on GET with Accept: text/event-stream",
);
pub(super) const STREAM_BUFFERED: Cause = cause(
    "stream_buffered",
    "a stream is held back on the way",
    "HTML, \"Server-sent events\": events are dispatched as they arrive",
    "turn buffering and compression of text/event-stream off in the proxy (nginx: proxy_buffering off), and give it HTTP/1.1 to the gateway",
);
pub(super) const STREAM_CUT: Cause = cause(
    "stream_cut",
    "an idle stream is cut",
    "2025-11-25 transports, \"Listening for Messages from the Server\"; HTML, \"Server-sent events\", \"Authoring notes\"",
    "let the proxy wait a minute for bytes (nginx: proxy_read_timeout 60s), longer than stream.keep_alive of the gateway",
);
pub(super) const RESUME_REFUSED: Cause = cause(
    "resume_refused",
    "a stream cannot be resumed by its last event",
    "2025-11-25 transports, \"Resumability and Redelivery\"",
    "have the proxy pass on Last-Event-ID, and all replicas use one store",
);
pub(super) const DELETE_REFUSED: Cause = cause(
    "delete_refused",
    "the session cannot be ended",
    "2025-11-25 transports, \"Session Management\" 5",
    "have the proxy pass on DELETE",
);
pub(super) const ENDPOINT_ELSEWHERE: Cause = cause(
    "endpoint_elsewhere",
    "the endpoint of a 2024-11-05 stream is at another origin",
    "2024-11-05 transports, \"HTTP with SSE\"",
    "have the server name a path, or the origin that clients use",
);
pub(super) const CORS_MISSING: Cause = cause(
    "cors_missing",
    "a web page may not call the server",
    "Fetch, section 3.3 \"CORS protocol\"",
    "add the origin to http.allowed_origins, and have the proxy pass on OPTIONS and the Access-Control fields",
);
pub(super) const TOO_MUCH: Cause = cause(
    "too_much",
    "an answer has no end",
    "RFC 9110, section 15.5.14",
    "look at what answers this URL",
);

#[cfg(test)]
mod tests {
    use super::super::causes::*;

    const ALL: &[&Cause] = &[
        &UNREACHABLE,
        &CERTIFICATE_NAME,
        &CERTIFICATE_EXPIRED,
        &CERTIFICATE_UNTRUSTED,
        &TLS,
        &HTTP_1_0,
        &REDIRECTED,
        &NOT_MCP,
        &FORBIDDEN,
        &SERVER_ERROR,
        &CHALLENGE_MISSING,
        &RESOURCE_METADATA_MISSING,
        &RESOURCE_MISMATCH,
        &NO_AUTHORIZATION_SERVER,
        &SERVER_METADATA_MISSING,
        &ISSUER_MISMATCH,
        &ENDPOINT_MISSING,
        &PKCE_MISSING,
        &NO_REGISTRATION,
        &REGISTRATION_REFUSED,
        &AUTHORIZATION_REFUSED,
        &TOKEN_REFUSED,
        &INITIALIZE_REFUSED,
        &SESSION_ID_MISSING,
        &SESSION_ID_DROPPED,
        &MIRRORED_HEADER_DROPPED,
        &REQUEST_REFUSED,
        &BODY_LIMIT,
        &STREAM_REFUSED,
        &STREAM_BUFFERED,
        &STREAM_CUT,
        &RESUME_REFUSED,
        &DELETE_REFUSED,
        &ENDPOINT_ELSEWHERE,
        &CORS_MISSING,
        &TOO_MUCH,
    ];

    #[test]
    fn each_cause_has_its_name_and_its_row() {
        let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/doctor.md"));
        let page = page.unwrap();
        for cause in ALL {
            let row = format!("| `{}` | {} |", cause.code, cause.what);
            assert!(page.contains(&row), "docs/doctor.md lacks {row}");
        }
        let codes: std::collections::BTreeSet<_> = ALL.iter().map(|cause| cause.code).collect();
        assert_eq!(codes.len(), ALL.len());
    }
}
