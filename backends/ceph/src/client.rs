//! Client of the dashboard's REST API, version 1.0, of Ceph 16.

use std::time::Duration;

use cofferdam_guest::{
    ErrorKind, Finality, Result, StorageError,
    http::{self, Method, Request, Response},
    secrets,
    session::{self, SessionOutcome},
    settings,
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// Time for which the host keeps a token. The dashboard's default is 8 hours.
const LOGIN_TTL: Duration = Duration::from_hours(1);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
/// The longest pool name: the longest prefix of an image and a digest fit in the rest of a handle.
const MAX_POOL_NAME: usize = 64;

/// Error numbers in Ceph's answers.
pub(crate) const ENOENT: i64 = 2;
pub(crate) const EBUSY: i64 = 16;
pub(crate) const EEXIST: i64 = 17;
const ENOSPC: i64 = 28;
const EDQUOT: i64 = 122;

/// The client. Its fields are the settings.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Ceph {
    url: String,
    user: String,
    pub(crate) pool: String,
    #[serde(default)]
    pools: Vec<String>,
}

/// The ID of the cluster, and the addresses by which nodes reach it.
#[derive(Debug)]
pub(crate) struct Monitors {
    pub(crate) fsid: String,
    /// Such as `10.0.0.1:6789`, of the protocol's version 1 if the monitor has it.
    pub(crate) addresses: Vec<String>,
}

/// An answer that refuses a request.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct Refusal {
    detail: String,
    /// An error number as text or number, or a word.
    code: Value,
    pub(crate) component: Option<String>,
}

impl Refusal {
    pub(crate) fn of(response: &Response) -> Self {
        serde_json::from_slice(&response.body).unwrap_or_default()
    }

    /// Returns true if the answer has the text that the dashboard gives with every error.
    pub(crate) const fn is_of_dashboard(&self) -> bool {
        !self.detail.is_empty()
    }

    pub(crate) fn errno(&self) -> i64 {
        let number = self.code.as_i64().or_else(|| self.code.as_str()?.parse().ok()).unwrap_or_default();
        if number == 404 { ENOENT } else { number }
    }
}

impl Ceph {
    pub(crate) fn new() -> Result<Self> {
        let mut ceph: Self = settings::parse()?;
        ceph.pools.insert(0, ceph.pool.clone());
        ceph.pools.dedup();
        match ceph.pools.iter().find(|pool| !is_name(pool) || pool.len() > MAX_POOL_NAME) {
            Some(pool) => Err(StorageError::failed_precondition(format!(
                "the pool {pool:?} of the settings has an unsupported name; expected up to {MAX_POOL_NAME} of \
                 a-z, A-Z, 0-9, `-`, `_` and `.`"
            ))),
            None => Ok(ceph),
        }
    }

    /// The pools of the settings, without duplicates in a row.
    pub(crate) fn pools(&self) -> &[String] {
        &self.pools
    }

    /// Reads the monitors.
    pub(crate) fn monitors(&self) -> Result<Monitors> {
        let answer: Value = self.get(&["monitor"], &[])?;
        let read = || {
            let map = answer.pointer("/mon_status/monmap")?;
            let mons = map.get("mons")?.as_array()?.iter();
            // Such as `10.0.0.1:6789/0`.
            let addresses = mons.map(|mon| mon.get("public_addr")?.as_str()?.split('/').next());
            Some(Monitors {
                fsid: map.get("fsid")?.as_str()?.to_owned(),
                addresses: addresses.map(|address| address.map(str::to_owned)).collect::<Option<_>>()?,
            })
        };
        read().ok_or_else(|| StorageError::internal("the dashboard lists no monitors").without_effect())
    }

    /// Free bytes of a pool.
    pub(crate) fn free_bytes(&self, pool: &str) -> Result<u64> {
        let answer: Value = self.get(&["pool", pool], &[("stats", "true")])?;
        let bytes = answer.pointer("/stats/max_avail/latest").and_then(Value::as_u64);
        bytes.ok_or_else(|| {
            StorageError::unavailable(format!("Ceph has no statistics of the pool {pool:?} yet"))
                .without_effect()
        })
    }

    /// Reads something other than an image.
    pub(crate) fn get<T: DeserializeOwned>(&self, path: &[&str], query: &[(&str, &str)]) -> Result<T> {
        read(self.send_to("1.0", path, |url| {
            Ok(query.iter().fold(Request::get(url), |request, (key, value)| request.query(key, value)))
        })?)
    }

    /// Sends a change of an image. Returns the error number if Ceph refuses the change with one of `expected`.
    pub(crate) fn change(
        &self,
        method: Method,
        path: &[&str],
        body: &Value,
        expected: &[i64],
    ) -> Result<Option<i64>> {
        let response =
            self.send(method, path, |request| if body.is_null() { Ok(request) } else { request.json(body) })?;
        if response.is_success() {
            return Ok(None);
        }
        let errno = Refusal::of(&response).errno();
        if expected.contains(&errno) {
            return Ok(Some(errno));
        }
        let mut error = error(&response);
        // The dashboard may fail between two steps of a change, such as an image and its options.
        if !matches!(error.kind, ErrorKind::PermissionDenied) {
            error.finality = Finality::Unknown;
            if !matches!(error.kind, ErrorKind::ResourceExhausted | ErrorKind::Unavailable) {
                error.kind = ErrorKind::Internal;
            }
        }
        Err(error)
    }

    /// Sends a request for an image. `path` starts after `/api/block/image`.
    pub(crate) fn send(
        &self,
        method: Method,
        path: &[&str],
        build: impl Fn(Request<'static>) -> Result<Request<'static>>,
    ) -> Result<Response> {
        let path = [&["block", "image"], path].concat();
        self.send_to("1.0", &path, |url| build(Request::new(method, url)))
    }

    /// Sends a request with a token, and once more with a new one if the old one has expired.
    pub(crate) fn send_to(
        &self,
        version: &str,
        path: &[&str],
        build: impl Fn(String) -> Result<Request<'static>>,
    ) -> Result<Response> {
        let url = http::url(&self.url, &[&["api"], path].concat())?;
        session::with_login(
            "token",
            LOGIN_TTL,
            || self.log_in(),
            |login| {
                let request = build(url.clone())?.header("accept", accept(version)).token(&login.text()?);
                let response = request.timeout(REQUEST_TIMEOUT).send()?;
                let is_expired = response.status == 401;
                Ok(if is_expired { SessionOutcome::Expired } else { SessionOutcome::Done(response) })
            },
        )
    }

    fn log_in(&self) -> Result<Vec<u8>> {
        #[derive(Deserialize)]
        struct Answer {
            token: String,
        }
        let password = secrets::require("password")?;
        let body = json!({ "username": self.user, "password": password.reveal() });
        let request = Request::post(http::url(&self.url, &["api", "auth"])?).header("accept", accept("1.0"));
        let response = request.json(&body)?.timeout(REQUEST_TIMEOUT).read_only().send()?;
        let refused = |response: &Response| {
            (Refusal::of(response).code == "invalid_credentials").then(|| {
                let message =
                    format!("the dashboard refuses the user {:?} or the secret `password`", self.user);
                StorageError::unauthenticated(message).final_unless_changed()
            })
        };
        Ok(response.ok_or(refused)?.json::<Answer>()?.token.into_bytes())
    }
}

/// Returns true if a text can be the name of a pool or image of this driver.
pub(crate) fn is_name(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        && name.bytes().any(|byte| byte != b'.')
}

fn accept(version: &str) -> String {
    format!("application/vnd.ceph.api.v{version}+json")
}

/// Reads the answer of a request that changes nothing.
pub(crate) fn read<T: DeserializeOwned>(response: Response) -> Result<T> {
    response.ok_or(|response| Some(error(response)))?.json()
}

/// The error of a response, with the kind of Ceph's error number.
fn error(response: &Response) -> StorageError {
    let refusal = Refusal::of(response);
    let mut error = if refusal.detail.is_empty() {
        response.error()
    } else {
        response.clone().with_body(refusal.detail.as_str()).error()
    };
    if response.status == 403 {
        error.message += "; the user needs the scopes `rbd-image`, `pool` and `monitor`";
    }
    match (refusal.errno(), refusal.component.as_deref()) {
        (ENOENT, Some("pool")) => error.kind = ErrorKind::FailedPrecondition,
        // An image was deleted during the request.
        (ENOENT, _) if response.status != 404 => return StorageError::in_progress(error.message),
        (ENOSPC | EDQUOT, _) => error.kind = ErrorKind::ResourceExhausted,
        _ => {}
    }
    error
}
