//! Requests with a login.

use std::time::Duration;

use cofferdam_guest::{
    Result, StorageError,
    http::{self, Request, Response},
    parameters::ParameterReader,
    secrets, session,
};
use serde::{Deserialize, de::DeserializeOwned};

/// Half of the array's own time: a login that is held rarely turns out to be over.
const LOGIN_TTL: Duration = Duration::from_secs(300);
/// An array that takes longer is asked again.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// The array of the settings.
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

    /// A URL of the array. What cannot be a name there, such as `..`, is refused.
    pub(crate) fn url(&self, path: &[&str]) -> Result<String> {
        http::url(&self.url, path)
    }

    /// Sends a request with a login, and once more with a new one if the array has forgotten it. The answer
    /// has any other status than 401.
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
        // A login that nobody uses is over soon: a lost one leaves nothing to be cleared up.
        let response = request.read_only().send()?.ok_or(|_| None)?;
        Ok(response.json::<LoginResponse>()?.token.into_bytes())
    }

    /// Reads something that may not be there.
    pub(crate) fn get_if_exists<T: DeserializeOwned>(&self, path: &[&str]) -> Result<Option<T>> {
        let response = self.send(|| Ok(Request::get(self.url(path)?)))?;
        if response.status == 404 { Ok(None) } else { response.ok_or(|_| None)?.json().map(Some) }
    }

    /// Removes something that may not be there.
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

/// A handle that names something of the array: whatever else a handle holds, nothing there is called that.
pub(crate) fn is_array_name(handle: &str) -> bool {
    handle.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        && handle.bytes().any(|byte| byte != b'.')
}
