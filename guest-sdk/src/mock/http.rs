//! Mock servers.

use std::{cell::RefCell, fmt, rc::Rc, time::Duration};

use crate::http::{Authorization, Failure, HttpError, Method, Request, Response, UserName};

/// A request received by a mock server.
#[derive(Clone, PartialEq, Eq)]
pub struct ReceivedRequest {
    /// The method.
    pub method: Method,
    /// The complete URL.
    pub url: String,
    /// The headers, without an `authorization` or other header that the host adds from a secret.
    pub headers: Vec<(String, String)>,
    /// The body, empty if there is none.
    pub body: Vec<u8>,
    /// The timeout set by the backend; `None` if it set none.
    pub timeout: Option<Duration>,
    /// The names of the secrets in the request.
    pub secrets: Vec<String>,
    credentials: Option<ReceivedCredentials>,
}

/// Credentials that the host would add to the request.
#[derive(Clone, PartialEq, Eq)]
enum ReceivedCredentials {
    Basic(String, String),
    Bearer(String),
    Header(String, String),
}

impl fmt::Debug for ReceivedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { method, url, headers, body, timeout, secrets, credentials: _ } = self;
        f.debug_struct("Received")
            .field("method", method)
            .field("url", url)
            .field("headers", headers)
            .field("body", &String::from_utf8_lossy(body))
            .field("timeout", timeout)
            .field("secrets", secrets)
            .finish()
    }
}

impl ReceivedRequest {
    pub(super) fn new(request: Request<'_>) -> Self {
        let mut secrets = Vec::new();
        let mut secret_text = |secret: &crate::secrets::Secret| {
            secrets.push(secret.name().to_owned());
            secret.handle().text().to_owned()
        };
        let credentials = request.authorization.map(|authorization| match authorization {
            Authorization::Basic { user, password } => {
                let user = match user {
                    UserName::Plain(name) => name,
                    UserName::Secret(name) => secret_text(name),
                };
                ReceivedCredentials::Basic(user, secret_text(password))
            }
            Authorization::Bearer(token) => ReceivedCredentials::Bearer(secret_text(token)),
            Authorization::Header { name, value } => ReceivedCredentials::Header(name, secret_text(value)),
        });
        Self {
            method: request.method,
            url: request.url,
            headers: request.headers,
            body: request.body.unwrap_or_default(),
            timeout: request.timeout_ms.map(Duration::from_millis),
            secrets,
            credentials,
        }
    }

    /// The value of the first header with the name, compared case-insensitively. It includes the header of
    /// [`Request::secret_header`], but not the `authorization` of [`Request::basic`] and [`Request::bearer`].
    pub fn header(&self, name: &str) -> Option<&str> {
        if let Some(ReceivedCredentials::Header(found, value)) = &self.credentials
            && found.eq_ignore_ascii_case(name)
        {
            return Some(value);
        }
        self.headers
            .iter()
            .find(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// User and password of a request with [`Request::basic`]; `None` for other requests.
    pub fn basic(&self) -> Option<(&str, &str)> {
        match &self.credentials {
            Some(ReceivedCredentials::Basic(user, password)) => Some((user, password)),
            Some(ReceivedCredentials::Bearer(_) | ReceivedCredentials::Header(..)) | None => None,
        }
    }

    /// The token of a request with [`Request::bearer`] or [`Request::token`]; `None` for other requests.
    pub fn bearer(&self) -> Option<&str> {
        match &self.credentials {
            Some(ReceivedCredentials::Bearer(token)) => Some(token),
            Some(ReceivedCredentials::Basic(..) | ReceivedCredentials::Header(..)) => None,
            None => self.header("authorization")?.strip_prefix("Bearer "),
        }
    }

    /// Decodes the body from JSON.
    ///
    /// # Errors
    ///
    /// The body is not the JSON of a `T`.
    pub fn json<T: serde::de::DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.body)
    }
}

type Handler = Rc<RefCell<dyn FnMut(&ReceivedRequest) -> Result<Response, HttpError>>>;

/// The mock servers and the requests they received.
#[derive(Default)]
pub(super) struct MockServers {
    handlers: RefCell<Vec<(Method, String, Handler)>>,
    received: RefCell<Vec<ReceivedRequest>>,
}

impl fmt::Debug for MockServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Servers").field("received", &self.received).finish_non_exhaustive()
    }
}

impl MockServers {
    pub(super) fn add_handler(
        &self,
        method: Method,
        prefix: &str,
        handler: impl FnMut(&ReceivedRequest) -> Result<Response, HttpError> + 'static,
    ) {
        self.handlers.borrow_mut().push((method, prefix.to_owned(), Rc::new(RefCell::new(handler))));
    }

    pub(super) fn received(&self) -> Vec<ReceivedRequest> {
        self.received.borrow().clone()
    }

    pub(super) fn clear(&self) {
        self.received.borrow_mut().clear();
    }

    pub(super) fn send(&self, request: Request<'_>) -> Result<Response, HttpError> {
        let received = ReceivedRequest::new(request);
        self.received.borrow_mut().push(received.clone());
        let handlers = self.handlers.borrow();
        let handler = handlers.iter().rev().find(|(method, prefix, _)| {
            *method == received.method && received.url.starts_with(prefix.as_str())
        });
        let Some(handler) = handler.map(|(_, _, handler)| Rc::clone(handler)) else {
            return Err(HttpError::unsent(
                Failure::Forbidden,
                format!("no server of the mock host is at {}", received.url),
            ));
        };
        // A handler may add servers, so the list must not be borrowed while it runs.
        drop(handlers);
        match handler.try_borrow_mut() {
            Ok(mut handler) => handler(&received),
            Err(_) => Err(HttpError::unsent(Failure::Overloaded, "the mock server is asked by itself")),
        }
    }
}
