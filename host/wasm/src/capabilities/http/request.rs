//! Validation of a guest's request: URL, headers, authorization and size. Limits its timeout.

use std::{sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use cofferdam_backend::{MAX_DERIVED_SECRETS, Redactor};
use cofferdam_domain::storage::Secret;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header, uri::PathAndQuery};
use wasmtime::component::ResourceTable;
use zeroize::Zeroizing;

use super::{
    client::{HttpClient, OutgoingRequest},
    error::ExchangeError,
    origin::Origin,
    policy::{OriginTarget, UrlRejection},
};
use crate::bindings::cofferdam::storage::http::{
    Authorization, Basic, Failure, Method as GuestMethod, Request, SecretHeader, UserName,
};

/// Most bytes of a request's URL and headers together, without `Host` and the header with credentials.
const MAX_REQUEST_HEAD: usize = 64 << 10;
/// A header's name is cut to this length before it is parsed, which is enough to reject it as too long.
const MAX_HEADER_NAME: usize = MAX_REQUEST_HEAD + 1;
/// Most headers of a request, without `Host` and the header with credentials.
const MAX_HEADERS: usize = 128;

/// Parts of the names of headers with credentials, such as `X-Auth-Token` and `X-API-Key`.
const TOKEN_HEADER_PARTS: [&str; 5] = ["token", "auth", "session", "secret", "api-key"];

type HeaderList = Vec<(String, String)>;

/// A header with credentials.
struct AuthorizationHeader {
    name: HeaderName,
    value: HeaderValue,
}

/// Checks the requests of one call.
pub(super) struct RequestBuilder<'a> {
    pub(super) client: &'a HttpClient,
    /// The guest's handles of secrets.
    pub(super) handles: &'a ResourceTable,
    pub(super) redactor: &'a Redactor,
}

impl RequestBuilder<'_> {
    /// Checks a request and resolves its secrets. The outer error is an invalid handle, which ends the
    /// guest's call; the inner error is returned to the guest.
    pub(super) fn build(&self, request: Request) -> wasmtime::Result<Result<OutgoingRequest, ExchangeError>> {
        let Some(authorization) = &request.authorization else {
            return Ok(self.check_request(request, None));
        };
        if let Err(failed) = self.check_origin_of_secrets(&request.url, authorization)? {
            return Ok(Err(failed));
        }
        let authorization = self.authorization_header(authorization)?;
        Ok(authorization.and_then(|authorization| self.check_request(request, Some(authorization))))
    }

    /// Rejects a secret that the operator has not bound to the origin of a URL. The error has the secret's
    /// name. The outer error is an invalid handle.
    fn check_origin_of_secrets(
        &self,
        url: &str,
        authorization: &Authorization,
    ) -> wasmtime::Result<Result<(), ExchangeError>> {
        let handles = match authorization {
            Authorization::Basic(Basic { user: UserName::Hidden(user), password }) => {
                vec![user, password]
            }
            Authorization::Basic(Basic { user: UserName::Plain(_), password }) => vec![password],
            Authorization::Bearer(token) => vec![token],
            Authorization::Header(SecretHeader { name: _, value }) => vec![value],
        };
        let mut names = Vec::with_capacity(handles.len());
        for handle in handles {
            names.push(self.handles.get(handle)?.name.as_str());
        }
        Ok(self.target(url).and_then(|(target, _)| {
            names.into_iter().find(|name| !target.permits_secret(name)).map_or(Ok(()), |name| {
                let message = format!(
                    "the secret {name:?} may not be sent to {}; expected it in `secrets` of this origin in \
                     the backend's `http` section",
                    target.origin
                );
                Err(ExchangeError::unsent(Failure::Forbidden, message).with_denial("secret"))
            })
        }))
    }

    /// The target of a URL, and the URL's path with the query.
    fn target(&self, url: &str) -> Result<(Arc<OriginTarget>, PathAndQuery), ExchangeError> {
        if url.len() > MAX_REQUEST_HEAD {
            let message = format!("the URL has {} bytes; at most {MAX_REQUEST_HEAD} are allowed", url.len());
            return Err(ExchangeError::unsent(Failure::TooLarge, message));
        }
        self.client.policy.target(url).map_err(url_error)
    }

    fn check_request(
        &self,
        request: Request,
        authorization: Option<AuthorizationHeader>,
    ) -> Result<OutgoingRequest, ExchangeError> {
        let (target, path) = self.target(&request.url)?;
        request.headers.iter().for_each(|(name, value)| self.add_credentials_of_header(name, value));
        let headers = headers(&request.url, request.headers, &target.origin, authorization)?;
        let body = request.body.unwrap_or_default();
        let bounds = self.client.limits();
        if body.len() > bounds.request_bytes {
            let message = format!(
                "the body has {} bytes; at most {} are allowed (limit `http-request-bytes`)",
                body.len(),
                bounds.request_bytes
            );
            return Err(ExchangeError::unsent(Failure::TooLarge, message));
        }
        let timeout =
            request.timeout_ms.map_or(bounds.max_timeout, Duration::from_millis).min(bounds.max_timeout);
        Ok(OutgoingRequest {
            target,
            method: method(request.method),
            path: Uri::from(path),
            headers,
            body: Bytes::from(body),
            timeout,
        })
    }

    /// Adds the credentials in a header of the guest to the texts that are redacted: a login token that the
    /// storage gave, or a signature.
    fn add_credentials_of_header(&self, name: &str, value: &str) {
        let name = name.to_ascii_lowercase();
        match name.as_str() {
            // The scheme is not secret.
            "authorization" => {
                let credentials = value.trim().split_once(' ').map_or(value, |(_, credentials)| credentials);
                self.redactor.add_written(credentials.trim());
            }
            "cookie" => value.split(';').for_each(|cookie| {
                self.redactor.add_written(cookie.split_once('=').map_or(cookie, |(_, token)| token).trim());
            }),
            _ if TOKEN_HEADER_PARTS.iter().any(|part| name.contains(part)) => {
                self.redactor.add_written(value.trim());
            }
            _ => {}
        }
    }

    fn authorization_header(
        &self,
        authorization: &Authorization,
    ) -> wasmtime::Result<Result<AuthorizationHeader, ExchangeError>> {
        let (name, text) = match authorization {
            Authorization::Basic(Basic { user, password }) => {
                let user = match user {
                    UserName::Plain(user) => user.as_str(),
                    UserName::Hidden(user) => self.handles.get(user)?.secret.expose(),
                };
                if user.contains(':') {
                    return Ok(Err(invalid_request("the user's name has a colon, which ends it".to_owned())));
                }
                let password = self.handles.get(password)?.secret.expose();
                let pair = Zeroizing::new(format!("{user}:{password}"));
                let encoded = Zeroizing::new(STANDARD.encode(pair.as_bytes()));
                if !self.redactor.add_secret(Secret::new(encoded.as_str())) {
                    return Ok(Err(invalid_request(format!(
                        "too many names and passwords in one call; expected at most {MAX_DERIVED_SECRETS}"
                    ))));
                }
                (header::AUTHORIZATION, Zeroizing::new(format!("Basic {}", encoded.as_str())))
            }
            Authorization::Bearer(token) => {
                let token = self.handles.get(token)?.secret.expose();
                (header::AUTHORIZATION, Zeroizing::new(format!("Bearer {token}")))
            }
            Authorization::Header(SecretHeader { name, value }) => {
                let value = Zeroizing::new(self.handles.get(value)?.secret.expose().to_owned());
                match header_name(name) {
                    Ok(name) => (name, value),
                    Err(failed) => return Ok(Err(failed)),
                }
            }
        };
        Ok(header_value(&name, &text).map(|value| AuthorizationHeader { name, value }))
    }
}

fn invalid_request(message: String) -> ExchangeError {
    ExchangeError::unsent(Failure::Invalid, message)
}

fn url_error(refusal: UrlRejection) -> ExchangeError {
    match refusal {
        UrlRejection::Invalid(reason) => invalid_request(format!("the URL is wrong: {reason}")),
        UrlRejection::Forbidden(origin) => {
            let message = format!(
                "requests to {origin} are not allowed; expected an origin of the backend's `http` section"
            );
            ExchangeError::unsent(Failure::Forbidden, message).with_denial("origin")
        }
    }
}

const fn method(method: GuestMethod) -> Method {
    match method {
        GuestMethod::Get => Method::GET,
        GuestMethod::Head => Method::HEAD,
        GuestMethod::Post => Method::POST,
        GuestMethod::Put => Method::PUT,
        GuestMethod::Patch => Method::PATCH,
        GuestMethod::Delete => Method::DELETE,
        GuestMethod::Options => Method::OPTIONS,
    }
}

fn headers(
    url: &str,
    header_list: HeaderList,
    origin: &Origin,
    authorization: Option<AuthorizationHeader>,
) -> Result<HeaderMap, ExchangeError> {
    let bytes = header_list.iter().map(|(name, value)| name.len().saturating_add(value.len()));
    let bytes = bytes.fold(url.len(), usize::saturating_add);
    if bytes > MAX_REQUEST_HEAD || header_list.len() > MAX_HEADERS {
        let message = format!(
            "URL and headers have {bytes} bytes in {} headers; \
             at most {MAX_REQUEST_HEAD} in {MAX_HEADERS} are allowed",
            header_list.len()
        );
        return Err(ExchangeError::unsent(Failure::TooLarge, message));
    }
    let mut headers = HeaderMap::new();
    let host = HeaderValue::try_from(origin.authority())
        .map_err(|_| invalid_request("the host is not a valid header value".to_owned()))?;
    headers.insert(header::HOST, host);
    for (name, value) in header_list {
        let name = header_name(&name)?;
        let value = header_value(&name, &value)?;
        headers.append(name, value);
    }
    if let Some(AuthorizationHeader { name, value }) = authorization {
        if headers.contains_key(&name) {
            return Err(invalid_request(format!(
                "the header `{name}` is given twice: plainly and as authorization"
            )));
        }
        headers.insert(name, value);
    }
    Ok(headers)
}

/// Parses a header's name. Rejects `Host`, headers that frame the message or control the connection, and
/// headers for proxies.
fn header_name(name: &str) -> Result<HeaderName, ExchangeError> {
    const RESERVED_HEADERS: [&str; 10] = [
        "host",
        "connection",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "content-length",
        "expect",
        "http2-settings",
    ];
    // The guest's name may have any length.
    let Ok(name) = HeaderName::from_bytes(name.get(..MAX_HEADER_NAME).unwrap_or(name).as_bytes()) else {
        return Err(invalid_request(format!(
            "{:?} is not a header's name",
            cofferdam_backend::checks::printable(name)
        )));
    };
    if RESERVED_HEADERS.contains(&name.as_str()) || name.as_str().starts_with("proxy-") {
        return Err(invalid_request(format!("the header `{name}` is the host's")));
    }
    Ok(name)
}

/// Parses a header's value. Errors do not show it: it may be a secret.
fn header_value(name: &HeaderName, value: &str) -> Result<HeaderValue, ExchangeError> {
    // The http crate accepts bytes above ASCII, which servers interpret differently.
    let accepted = value.is_ascii().then(|| HeaderValue::from_str(value).ok()).flatten();
    let mut value = accepted.ok_or_else(|| {
        invalid_request(format!(
            "the value of the header `{name}` has characters other than visible ASCII, spaces and tabs"
        ))
    })?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_framing_headers_are_rejected() {
        for name in [
            "Host",
            "connection",
            "Keep-Alive",
            "Proxy-Authorization",
            "proxy-connection",
            "TE",
            "trailer",
            "Transfer-Encoding",
            "upgrade",
            "Content-Length",
            "expect",
            "HTTP2-Settings",
        ] {
            let error = header_name(name).unwrap_err();
            assert_eq!(error.message, format!("the header `{}` is the host's", name.to_ascii_lowercase()));
        }
        for name in ["", "a b", "a:b", "a\r\nb", "ä", "a\0"] {
            assert!(header_name(name).unwrap_err().message.ends_with("is not a header's name"), "{name:?}");
        }
        assert_eq!(header_name("X-Auth-Token").unwrap(), "x-auth-token");
    }

    #[test]
    fn header_value_with_line_breaks_is_rejected() {
        let name = HeaderName::from_static("x");
        for value in ["a\r\nb: c", "a\nb", "a\rb", "a\0b", "\u{7f}", "ä"] {
            let message = header_value(&name, value).unwrap_err().message;
            assert!(message.starts_with("the value of the header `x` has characters"), "{message}");
        }
        let value = header_value(&name, "Token a\tb").unwrap();
        assert!(value.is_sensitive());
        assert_eq!(format!("{value:?}"), "Sensitive");
    }
}
