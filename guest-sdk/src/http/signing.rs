//! Signatures of finished requests.

use std::{collections::BTreeMap, fmt};

use super::{
    Failure, HttpError, Method, Response,
    encoding::{canonical_query, decode_query, push_query},
    method_name,
    response::ClockDifference,
};
use crate::{ErrorKind, Finality, Result, StorageError, ambient, digest::sha256_hex};

/// A finished request, as the hook of [`Request::sign_with`](super::Request::sign_with) sees it: with the
/// result of all functions of the request, including those that were called after `sign_with`.
///
/// It lacks the header that [`basic`](super::Request::basic), [`bearer`](super::Request::bearer) or
/// [`secret_header`](super::Request::secret_header) adds, because the host inserts that.
///
/// ```
/// use cofferdam_guest::{Result, http::{FinishedRequest, Method, Request, Response}, mock};
///
/// fn check(request: &mut FinishedRequest<'_>) -> Result<()> {
///     assert_eq!((request.method_name(), request.scheme()), ("GET", "https"));
///     assert_eq!(request.host(), "array.example:8443");
///     assert_eq!((request.path(), request.query()), ("/a%20b", "z=%2F&a=1"));
///     assert_eq!(request.canonical_query(), "a=1&z=%2F");
///     assert_eq!(request.header("x-date"), Some("today"));
///     assert!(request.body().is_empty());
///     request.add_query("signature", "s/1");
///     request.set_header("x-date", "tomorrow");
///     Ok(())
/// }
///
/// let host = mock::MockHost::new()
///     .on(Method::Get, "https://Array.example:8443/", |_| Ok(Response::new(200)))
///     .install();
/// let request = Request::get("https://Array.example:8443/a%20b").header("X-Date", "today");
/// request.sign_with(check).query("z", "/").query("a", "1").send().unwrap();
/// let sent = &host.requests()[0];
/// assert_eq!(sent.url, "https://Array.example:8443/a%20b?z=%2F&a=1&signature=s%2F1");
/// assert_eq!(sent.headers, [("x-date".to_owned(), "tomorrow".to_owned())]);
/// ```
pub struct FinishedRequest<'r> {
    pub(super) method: Method,
    pub(super) url: &'r mut String,
    pub(super) headers: &'r mut Vec<(String, String)>,
    pub(super) body: &'r [u8],
}

/// Omits the URL, header values and the body because they may contain credentials.
impl fmt::Debug for FinishedRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FinishedRequest")
            .field("method", &self.method)
            .field("body_bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

impl FinishedRequest<'_> {
    /// The method.
    pub fn method(&self) -> Method {
        self.method
    }

    /// The name of the method, such as `GET`.
    pub fn method_name(&self) -> &'static str {
        method_name(self.method)
    }

    /// The complete URL.
    pub fn url(&self) -> &str {
        self.url
    }

    /// The scheme as the URL has it, `https` or `http`.
    pub fn scheme(&self) -> &str {
        self.parts().scheme
    }

    /// The value of the header `host`, which the host adds: the host of the URL in lower case, with the port
    /// unless it is the default port of the scheme.
    pub fn host(&self) -> String {
        let UrlParts { scheme, authority, .. } = self.parts();
        let default_port = if scheme.eq_ignore_ascii_case("https") { ":443" } else { ":80" };
        authority.strip_suffix(default_port).unwrap_or(authority).to_ascii_lowercase()
    }

    /// The path as it is sent: percent-encoded, and `/` if the URL has none.
    pub fn path(&self) -> &str {
        match self.parts().path {
            "" => "/",
            path => path,
        }
    }

    /// The query as it is sent, without the `?`. Empty if the URL has none.
    pub fn query(&self) -> &str {
        self.parts().query
    }

    /// The decoded parameters of the query, in order. A `+` is a plus sign, not a space. Bytes that are not
    /// UTF-8 are replaced.
    pub fn query_pairs(&self) -> Vec<(String, String)> {
        decode_query(self.query())
    }

    /// The query in canonical form: each parameter with a `=`, percent-encoded like
    /// [`encode`](super::encode), and sorted by encoded name, then by encoded value. Escapes of bytes that
    /// are not UTF-8 remain, with upper-case digits.
    pub fn canonical_query(&self) -> String {
        canonical_query(self.query())
    }

    /// The headers that the backend has set, in order.
    pub fn headers(&self) -> &[(String, String)] {
        self.headers
    }

    /// The value of the first header with the name, compared case-insensitively. `None` if the backend has
    /// set no such header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(found, _)| found.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// The headers in canonical form, including `host`: names in lower case and sorted, spaces and tabs at
    /// the ends of values removed and inside of them reduced to one space, several values of one name joined
    /// with commas.
    ///
    /// ```
    /// use cofferdam_guest::http::Request;
    ///
    /// let request = Request::get("http://array/").header("X-B", " 1  2 ").header("x-a", "3");
    /// let request = request.header("x-b", "4").sign_with(|request| {
    ///     let lines = request.canonical_headers().into_iter().map(|(name, value)| format!("{name}:{value}"));
    ///     assert_eq!(lines.collect::<Vec<_>>(), ["host:array", "x-a:3", "x-b:1 2,4"]);
    ///     Ok(())
    /// });
    /// let _ = request.send();
    /// ```
    pub fn canonical_headers(&self) -> BTreeMap<String, String> {
        let mut canonical = BTreeMap::from([("host".to_owned(), self.host())]);
        for (name, value) in self.headers.iter() {
            let words = value.split([' ', '\t']).filter(|word| !word.is_empty());
            let value = words.collect::<Vec<_>>().join(" ");
            canonical
                .entry(name.to_ascii_lowercase())
                .and_modify(|values| {
                    values.push(',');
                    values.push_str(&value);
                })
                .or_insert(value);
        }
        canonical
    }

    /// The body, empty if there is none.
    pub fn body(&self) -> &[u8] {
        self.body
    }

    /// The SHA-256 of the body as lower-case hexadecimal digits.
    pub fn body_sha256_hex(&self) -> String {
        sha256_hex(self.body)
    }

    /// Adds a header.
    pub fn add_header(&mut self, name: &str, value: impl Into<String>) {
        self.headers.push((name.to_owned(), value.into()));
    }

    /// Sets a header: removes all headers of the name, compared case-insensitively, and adds this one.
    pub fn set_header(&mut self, name: &str, value: impl Into<String>) {
        self.headers.retain(|(found, _)| !found.eq_ignore_ascii_case(name));
        self.add_header(name, value);
    }

    /// Adds a query parameter. Key and value are percent-encoded.
    pub fn add_query(&mut self, key: &str, value: &str) {
        push_query(self.url, key, value);
    }

    /// Parts of the URL. [`Signer`] runs no hook for a URL without them.
    fn parts(&self) -> UrlParts<'_> {
        UrlParts::parse(self.url).unwrap_or_default()
    }
}

/// Parts of an absolute URL.
#[derive(Clone, Copy, Debug, Default)]
struct UrlParts<'a> {
    scheme: &'a str,
    authority: &'a str,
    path: &'a str,
    query: &'a str,
}

impl<'a> UrlParts<'a> {
    /// `None` if the URL is not absolute or has a fragment. A query parameter that is added after a fragment
    /// would not be sent.
    fn parse(url: &'a str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://").filter(|_| !url.contains('#'))?;
        let (before_query, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = before_query.split_at(before_query.find('/').unwrap_or(before_query.len()));
        (!scheme.is_empty() && !authority.is_empty()).then_some(Self { scheme, authority, path, query })
    }
}

/// The boxed hook of a request.
type Hook<'a> = Box<dyn FnOnce(&mut FinishedRequest<'_>) -> Result<(), HttpError> + 'a>;

/// The hook of a request, with the check of the URL and the conversion of its error, and the comparison of
/// clocks after the response. They are values, so that drivers without a hook do not contain them, and do not
/// import the clock.
pub(super) struct Signer<'a> {
    hook: Hook<'a>,
    compare_clocks: fn(&Response) -> Option<ClockDifference>,
}

impl fmt::Debug for Signer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Signer")
    }
}

impl<'a> Signer<'a> {
    pub(super) fn new(hook: impl FnOnce(&mut FinishedRequest<'_>) -> Result<()> + 'a) -> Self {
        let hook: Hook<'a> = Box::new(|request| {
            if UrlParts::parse(request.url).is_none() {
                // The message does not repeat the URL: it may contain a token.
                let message = "the URL cannot be signed; expected scheme, host, path and query only";
                return Err(HttpError::unsent(Failure::Invalid, message));
            }
            hook(request).map_err(|error| {
                let StorageError { kind, message, retry_after_ms, finality } = error;
                HttpError {
                    hook_error: Some(HookError { kind, finality, retry_after_ms }),
                    ..HttpError::unsent(Failure::Invalid, message)
                }
            })
        });
        Self { hook, compare_clocks: |response| ClockDifference::of_response(response, ambient::now()) }
    }

    /// Runs the hook. Returns the function that compares the clocks, for the response.
    pub(super) fn sign(
        self,
        request: &mut FinishedRequest<'_>,
    ) -> Result<fn(&Response) -> Option<ClockDifference>, HttpError> {
        (self.hook)(request)?;
        Ok(self.compare_clocks)
    }
}

/// The error of a hook without its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HookError {
    kind: ErrorKind,
    finality: Finality,
    retry_after_ms: Option<u64>,
}

impl HookError {
    /// The error of the hook. It is final unless the call has changed something, because the request was not
    /// sent.
    pub(super) fn into_storage_error(self, message: String) -> StorageError {
        let Self { kind, finality, retry_after_ms } = self;
        let finality = match finality {
            Finality::InProgress => Finality::InProgress,
            Finality::Final | Finality::Unknown => Finality::Final,
        };
        StorageError { retry_after_ms, ..StorageError::new(kind, finality, message) }.final_unless_changed()
    }
}

#[cfg(test)]
#[path = "signing_tests.rs"]
mod tests;
