//! Conversions from and to the types of the crate `http`.

use super::{Failure, HttpError, Method, Request, Response};
use crate::StorageError;

/// Takes over method, URL, headers and body, so that a client of an API that builds requests of the crate
/// `http` can send them through the host. Requires the feature `http`.
///
/// The host sets the headers `host` and `content-length`. They are dropped if they agree with the URL and the
/// body.
///
/// ```
/// use cofferdam_guest::{Result, http::{Method, Request, Response}, mock::MockHost};
///
/// fn send(request: http::Request<Vec<u8>>) -> Result<http::Response<Vec<u8>>> {
///     Request::try_from(request)?.send()?.try_into()
/// }
///
/// let host = MockHost::new()
///     .on(Method::Put, "https://array/volumes/", |_| Ok(Response::new(201).with_header("etag", "7")))
///     .install();
/// let request = http::Request::put("https://array/volumes/a")
///     .header("host", "array")
///     .header("if-none-match", "*")
///     .body(b"8".to_vec())
///     .unwrap();
/// let response = send(request).unwrap();
/// assert_eq!(response.status(), http::StatusCode::CREATED);
/// assert_eq!(response.headers()["etag"], "7");
/// assert_eq!(host.requests()[0].headers, [("if-none-match".to_owned(), "*".to_owned())]);
/// ```
///
/// # Errors
///
/// [`Failure::Invalid`] if the contract has no such method, the URL is not absolute, a header is not ASCII, or
/// `host` or `content-length` contradict the request. Nothing was sent.
impl<B: Into<Vec<u8>>> TryFrom<::http::Request<B>> for Request<'static> {
    type Error = HttpError;

    fn try_from(request: ::http::Request<B>) -> Result<Self, HttpError> {
        let (parts, body) = request.into_parts();
        let body: Vec<u8> = body.into();
        let method = method(&parts.method)?;
        let authority = match (parts.uri.scheme(), parts.uri.authority()) {
            (Some(_), Some(authority)) => authority.as_str(),
            (Some(_) | None, _) => return Err(invalid("the URL is not absolute; expected scheme and host")),
        };
        let mut converted = Self::new(method, parts.uri.to_string());
        for (name, value) in &parts.headers {
            let value = value.to_str().map_err(|_| invalid(format!("the header `{name}` is not ASCII")))?;
            let implied = match *name {
                ::http::header::HOST => Some(value.eq_ignore_ascii_case(authority)),
                ::http::header::CONTENT_LENGTH => Some(value.parse() == Ok(body.len())),
                _ => None,
            };
            match implied {
                Some(true) => {}
                Some(false) => {
                    return Err(invalid(format!("the header `{name}` contradicts the URL or the body")));
                }
                None => converted = converted.header(name.as_str(), value),
            }
        }
        Ok(if body.is_empty() { converted } else { converted.body(body) })
    }
}

/// Takes over status, headers and body. Requires the feature `http`; see the conversion from
/// [`http::Request`] to [`Request`] for an example.
///
/// # Errors
///
/// - [`internal`](StorageError::internal) if the status or a header is not valid in HTTP. The finality is
///   that of [`Response::json`].
impl TryFrom<Response> for ::http::Response<Vec<u8>> {
    type Error = StorageError;

    fn try_from(response: Response) -> Result<Self, StorageError> {
        let mut builder = ::http::Response::builder().status(response.status);
        for (name, value) in &response.headers {
            builder = builder.header(name, value.as_bytes());
        }
        match builder.body(Vec::new()) {
            Ok(mut converted) => {
                *converted.body_mut() = response.body;
                Ok(converted)
            }
            Err(error) => Err(response.with_known_finality(StorageError::internal(format!(
                "the storage's answer, of status {}, is not valid: {error}",
                response.status
            )))),
        }
    }
}

fn method(method: &::http::Method) -> Result<Method, HttpError> {
    Ok(match *method {
        ::http::Method::GET => Method::Get,
        ::http::Method::HEAD => Method::Head,
        ::http::Method::POST => Method::Post,
        ::http::Method::PUT => Method::Put,
        ::http::Method::PATCH => Method::Patch,
        ::http::Method::DELETE => Method::Delete,
        ::http::Method::OPTIONS => Method::Options,
        _ => return Err(invalid(format!("requests of the method {method} cannot be sent"))),
    })
}

fn invalid(message: impl Into<String>) -> HttpError {
    HttpError::unsent(Failure::Invalid, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, Finality};

    #[test]
    fn a_request_that_the_host_would_send_otherwise_is_rejected() {
        let build = |method: &str, url: &str, header: (&str, &str)| {
            let request = ::http::Request::builder().method(method).uri(url).header(header.0, header.1);
            Request::try_from(request.body(b"1234".to_vec()).unwrap())
        };
        for (method, url, header) in [
            ("TRACE", "http://a/", ("x", "y")),
            ("GET", "/a", ("x", "y")),
            ("GET", "http://a/", ("host", "b")),
            ("GET", "http://a/", ("content-length", "5")),
            ("GET", "http://a/", ("x", "ä")),
        ] {
            let error = build(method, url, header).unwrap_err();
            assert_eq!((error.failure, error.maybe_sent), (Failure::Invalid, false), "{header:?}");
        }
        let request = build("PATCH", "http://a:80/b?c=d", ("Content-Length", "4")).unwrap();
        assert_eq!((request.url.as_str(), request.headers.len()), ("http://a:80/b?c=d", 0));
        assert_eq!((request.method, request.body.as_deref()), (Method::Patch, Some(b"1234".as_slice())));
    }

    #[test]
    fn a_response_without_a_valid_status_is_an_error() {
        let error = ::http::Response::try_from(Response::new(7)).unwrap_err();
        assert_eq!((error.kind, error.finality), (ErrorKind::Internal, Finality::Unknown));
        let latin = Response::new(200).with_header("X-Name", "ä").with_header("x-name", "b");
        let converted = ::http::Response::try_from(latin.with_body("c")).unwrap();
        let values: Vec<_> = converted.headers().get_all("x-name").iter().map(|v| v.as_bytes()).collect();
        assert_eq!((values, converted.body().as_slice()), (vec!["ä".as_bytes(), b"b"], b"c".as_slice()));
    }
}
