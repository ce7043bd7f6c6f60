//! Authenticated requests to the array.

use std::time::Duration;

use cofferdam_guest::{
    Result, StorageError,
    http::{self, Request, Response},
    parameters::ParameterReader,
    secrets, session,
};
use serde::{Deserialize, de::DeserializeOwned};

use crate::model;

/// Time for which the host keeps a session: half of the fake array's session lifetime of 10 minutes, so that
/// a stored session is rarely expired.
const LOGIN_TTL: Duration = Duration::from_secs(300);
/// Timeout of a request. The caller retries after it.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Client of the array that the setting `url` names.
#[derive(Debug)]
pub(crate) struct ArrayClient {
    url: String,
}

#[derive(Deserialize)]
struct LoginResponse {
    token: String,
}

impl ArrayClient {
    pub(crate) fn new() -> Result<Self> {
        let mut settings = ParameterReader::settings();
        let url = settings.required("url")?;
        settings.finish()?;
        Ok(Self { url })
    }

    /// A URL of the array. Rejects segments that cannot be names, such as `..`.
    pub(crate) fn url(&self, path: &[&str]) -> Result<String> {
        http::url(&self.url, path)
    }

    /// Sends a request with a session, and once more with a new session if the array has dropped the old one.
    /// The status of the response is never 401.
    pub(crate) fn send(&self, request: impl Fn() -> Result<Request<'static>>) -> Result<Response> {
        session::with_login(
            "token",
            LOGIN_TTL,
            || self.log_in(),
            |login| {
                let response = request()?.token(&login.text()?).timeout(REQUEST_TIMEOUT).send()?;
                Ok(if response.status == 401 {
                    session::SessionOutcome::Expired
                } else {
                    session::SessionOutcome::Done(response)
                })
            },
        )
    }

    fn log_in(&self) -> Result<Vec<u8>> {
        let (user, password) = (secrets::require("user")?, secrets::require("password")?);
        let request = Request::post(self.url(&["login"])?).basic(&user, &password).timeout(REQUEST_TIMEOUT);
        // An unused session expires soon, so a lost login response needs no cleanup.
        let response = request.read_only().send()?.ok_or(|_| None)?;
        Ok(response.json::<LoginResponse>()?.token.into_bytes())
    }

    /// Reads a volume. `None` if it does not exist.
    pub(crate) fn volume(&self, handle: &str) -> Result<Option<model::Volume>> {
        if is_array_name(handle) { self.get_if_exists(&["volumes", handle]) } else { Ok(None) }
    }

    /// Reads a snapshot. `None` if it does not exist.
    pub(crate) fn snapshot(&self, handle: &str) -> Result<Option<model::Snapshot>> {
        if is_array_name(handle) { self.get_if_exists(&["snapshots", handle]) } else { Ok(None) }
    }

    /// Reads an object that may not exist.
    pub(crate) fn get_if_exists<T: DeserializeOwned>(&self, path: &[&str]) -> Result<Option<T>> {
        let response = self.send(|| Ok(Request::get(self.url(path)?)))?;
        if response.status == 404 { Ok(None) } else { response.ok_or(|_| None)?.json().map(Some) }
    }

    /// Deletes an object that may not exist. `in_use` is the error for status 409.
    pub(crate) fn delete_if_exists(
        &self,
        path: &[&str],
        in_use: impl FnOnce() -> StorageError,
    ) -> Result<()> {
        let response = self.send(|| Ok(Request::delete(self.url(path)?)))?;
        if response.status == 404 {
            return Ok(());
        }
        response.ok_or(|response| (response.status == 409).then(in_use)).map(|_| ())
    }
}

/// Returns true if a handle consists of ASCII letters, digits, `-`, `_` and `.`, with at least one that is
/// not `.`. All names that this driver gives do. The driver treats an object with another handle as missing.
pub(crate) fn is_array_name(handle: &str) -> bool {
    handle.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        && handle.bytes().any(|byte| byte != b'.')
}
