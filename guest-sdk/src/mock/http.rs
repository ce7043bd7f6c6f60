//! Mock servers.

use std::{cell::RefCell, fmt, rc::Rc, time::Duration};

use crate::http::{
    Authorization, Failure, HttpError, Method, Request, Response, UserName,
    encoding::{decode_form, decode_query},
    method_name,
};

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
    /// The name of the method, such as `GET`.
    pub fn method_name(&self) -> &'static str {
        method_name(self.method)
    }

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

    /// The decoded pairs of a body of `application/x-www-form-urlencoded`, in order. Each `+` is a space, and
    /// invalid UTF-8 is replaced. The content type is not checked.
    ///
    /// ```
    /// use cofferdam_guest::{http::{Method, Request, Response}, mock::MockHost};
    ///
    /// let host = MockHost::new().on(Method::Post, "http://ec2/", |_| Ok(Response::new(200))).install();
    /// Request::post("http://ec2/").form(&[("Action", "Describe"), ("Name", "a b")]).send().unwrap();
    /// let sent = &host.requests()[0];
    /// assert_eq!(sent.form()[1], ("Name".to_owned(), "a b".to_owned()));
    /// assert_eq!(sent.form_value("Action").as_deref(), Some("Describe"));
    /// assert_eq!(sent.form_value("Size"), None);
    /// ```
    pub fn form(&self) -> Vec<(String, String)> {
        decode_form(&String::from_utf8_lossy(&self.body))
    }

    /// The first value of a key in the [form](Self::form), or `None`.
    pub fn form_value(&self, key: &str) -> Option<String> {
        self.form().into_iter().find(|(found, _)| found == key).map(|(_, value)| value)
    }

    /// The decoded parameters of the URL's query, in order. A `+` is a plus sign, and invalid UTF-8 is
    /// replaced.
    ///
    /// ```
    /// use cofferdam_guest::{http::{Method, Request, Response}, mock::MockHost};
    ///
    /// let host = MockHost::new().on(Method::Get, "http://array/", |_| Ok(Response::new(200))).install();
    /// Request::get("http://array/volumes").query("name", "a&b").send().unwrap();
    /// assert_eq!(host.requests()[0].query(), [("name".to_owned(), "a&b".to_owned())]);
    /// ```
    pub fn query(&self) -> Vec<(String, String)> {
        decode_query(self.url.split_once('?').map_or("", |(_, query)| query))
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

/// A server for the requests with a method, a URL prefix and a property.
struct MockServer {
    method: Method,
    url_prefix: String,
    matches: Rc<dyn Fn(&ReceivedRequest) -> bool>,
    handler: Handler,
}

/// The mock servers and the requests they received.
#[derive(Default)]
pub(super) struct MockServers {
    servers: RefCell<Vec<MockServer>>,
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
        matches: impl Fn(&ReceivedRequest) -> bool + 'static,
        handler: impl FnMut(&ReceivedRequest) -> Result<Response, HttpError> + 'static,
    ) {
        self.servers.borrow_mut().push(MockServer {
            method,
            url_prefix: prefix.to_owned(),
            matches: Rc::new(matches),
            handler: Rc::new(RefCell::new(handler)),
        });
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
        // A handler may add servers, and a matcher may send requests, so the list is not borrowed while they
        // run.
        let servers: Vec<_> = (self.servers.borrow().iter().rev())
            .filter(|server| server.method == received.method && received.url.starts_with(&server.url_prefix))
            .map(|server| (Rc::clone(&server.matches), Rc::clone(&server.handler)))
            .collect();
        let Some((_, handler)) = servers.into_iter().find(|(matches, _)| matches(&received)) else {
            return Err(HttpError::unsent(
                Failure::Forbidden,
                format!("no server of the mock host is at {}", received.url),
            ));
        };
        match handler.try_borrow_mut() {
            Ok(mut handler) => handler(&received),
            Err(_) => Err(HttpError::unsent(Failure::Overloaded, "the mock server is asked by itself")),
        }
    }
}
