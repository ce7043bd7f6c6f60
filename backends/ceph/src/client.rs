//! Client of the dashboard's REST API, version 1.0, of Ceph 16.

use std::{fmt, time::Duration};

use cofferdam_guest::{
    ErrorKind, Finality, Result, StorageError, handle,
    http::{self, Method, Request, Response},
    poll, secrets,
    session::{self, SessionOutcome},
    settings,
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::record::{self, Record};

/// Features of new images. Each is known to the kernel's client since Linux 5.1. Without `deep-flatten`, the
/// snapshots of a flattened image still depend on its source.
const FEATURES: [&str; 3] = ["layering", "exclusive-lock", "deep-flatten"];
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

/// Pool and name of an image. Its text is the handle of a volume or snapshot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub(crate) struct ImageSpec {
    #[serde(rename = "pool_name")]
    pub(crate) pool: String,
    #[serde(rename = "image_name")]
    pub(crate) name: String,
}

impl fmt::Display for ImageSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.pool, self.name)
    }
}

/// An image.
#[derive(Debug, Deserialize)]
pub(crate) struct Image {
    pool_name: String,
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
    pub(crate) id: String,
    pub(crate) size: u64,
    pub(crate) timestamp: String,
    pub(crate) parent: Option<Parent>,
    pub(crate) snapshots: Vec<RbdSnapshot>,
    configuration: Vec<ImageOption>,
}

/// The snapshot from which an image is cloned.
#[derive(Debug, Deserialize)]
pub(crate) struct Parent {
    #[serde(flatten)]
    pub(crate) spec: ImageSpec,
    pub(crate) snap_name: String,
}

/// A snapshot of an image.
#[derive(Debug, Deserialize)]
pub(crate) struct RbdSnapshot {
    pub(crate) name: String,
    pub(crate) size: u64,
    pub(crate) timestamp: String,
    children: Vec<ImageSpec>,
}

#[derive(Debug, Deserialize)]
struct ImageOption {
    name: String,
    value: String,
}

impl Image {
    pub(crate) fn spec(&self) -> ImageSpec {
        ImageSpec { pool: self.pool_name.clone(), name: self.name.clone() }
    }

    /// The driver's record. `None` for images of others, and if an image was created, but not its record.
    pub(crate) fn record(&self) -> Option<Record> {
        let option = self.configuration.iter().find(|option| option.name == record::OPTION)?;
        serde_json::from_str(&option.value).ok()
    }

    pub(crate) fn snapshot(&self, name: &str) -> Option<&RbdSnapshot> {
        self.snapshots.iter().find(|snapshot| snapshot.name == name)
    }
}

/// How nodes reach the cluster.
#[derive(Debug)]
pub(crate) struct Monitors {
    pub(crate) fsid: String,
    /// Such as `10.0.0.1:6789`, of the protocol's version 1 if the monitor has it.
    pub(crate) addresses: Vec<String>,
}

/// An answer that refuses a request.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Refusal {
    detail: String,
    /// An error number as text or number, or a word.
    code: Value,
    component: Option<String>,
}

impl Refusal {
    fn of(response: &Response) -> Self {
        serde_json::from_slice(&response.body).unwrap_or_default()
    }

    fn errno(&self) -> i64 {
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

    /// The image of a handle. `None` if the driver cannot have returned the handle.
    pub(crate) fn spec(&self, handle: &str) -> Option<ImageSpec> {
        let (pool, name) = handle.split_once('/')?;
        (self.pools.iter().any(|known| known == pool) && is_name(name))
            .then(|| ImageSpec { pool: pool.to_owned(), name: name.to_owned() })
    }

    /// Reads the image of a handle.
    pub(crate) fn find(&self, handle: &str) -> Result<Option<Image>> {
        self.spec(handle).map_or(Ok(None), |spec| self.image(&spec))
    }

    /// Reads an image. `None` if it does not exist.
    pub(crate) fn image(&self, spec: &ImageSpec) -> Result<Option<Image>> {
        let response =
            self.send(Method::Get, &[&spec.to_string()], |request| Ok(request.query("omit_usage", "true")))?;
        let refusal = Refusal::of(&response);
        let is_missing = !response.is_success()
            && (response.status == 404
                || refusal.errno() == ENOENT && refusal.component.as_deref() != Some("pool"));
        if is_missing { Ok(None) } else { read(response).map(Some) }
    }

    /// Finds the image of a name in any of the pools.
    pub(crate) fn find_named(&self, prefix: &str, name: &str) -> Result<Option<Image>> {
        for pool in &self.pools {
            if let Some(found) = self.image(&named(pool, prefix, name))? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Creates an image, unless it exists.
    pub(crate) fn create(&self, spec: &ImageSpec, bytes: u64, record: &Record) -> Result<()> {
        let body = json!({
            "pool_name": spec.pool, "name": spec.name, "size": bytes, "features": FEATURES,
            "configuration": options(record)?,
        });
        self.change(Method::Post, &[], &body, &[EEXIST])?;
        self.wait_for(spec)
    }

    /// Creates an image with the content of a protected snapshot, unless it exists.
    pub(crate) fn clone_image(
        &self,
        source: &ImageSpec,
        snapshot: &str,
        spec: &ImageSpec,
        record: &Record,
    ) -> Result<()> {
        let body = json!({
            "child_pool_name": spec.pool, "child_image_name": spec.name, "features": FEATURES,
            "configuration": options(record)?,
        });
        self.change(Method::Post, &[&source.to_string(), "snap", snapshot, "clone"], &body, &[EEXIST])?;
        self.wait_for(spec)
    }

    /// Waits for an image whose creation takes longer than a request.
    fn wait_for(&self, spec: &ImageSpec) -> Result<()> {
        wait_until(|| Ok(self.image(spec)?.map(drop)))
    }

    /// Sets the record of an image.
    pub(crate) fn set_record(&self, spec: &ImageSpec, record: &Record) -> Result<()> {
        let body = json!({ "configuration": options(record)? });
        self.change(Method::Put, &[&spec.to_string()], &body, &[]).map(drop)
    }

    /// Expands an image to at least `bytes`, which must be more than the image has: the dashboard also shrinks
    /// images. Returns the new size.
    pub(crate) fn expand(&self, spec: &ImageSpec, bytes: u64) -> Result<u64> {
        self.change(Method::Put, &[&spec.to_string()], &json!({ "size": bytes }), &[])?;
        // The dashboard merges concurrent changes of one image: then it has executed only one of them.
        match self.image(spec)? {
            Some(image) if image.size >= bytes => Ok(image.size),
            _ => Err(StorageError::in_progress(format!("{spec} is being changed by another call"))),
        }
    }

    /// Deletes an image with its snapshots, if it exists.
    pub(crate) fn delete(&self, spec: &ImageSpec) -> Result<()> {
        let delete = || self.change(Method::Delete, &[&spec.to_string()], &Value::Null, &[ENOENT, EBUSY]);
        // Another request of the dashboard may have opened the image for a moment.
        let done = |errno| if errno == Some(EBUSY) { Ok(None) } else { Ok(Some(())) };
        let deleted = poll::until(Duration::from_secs(1), Duration::from_secs(3), || done(delete()?));
        deleted.map_err(|error| match error.finality {
            Finality::InProgress => StorageError::failed_precondition(format!(
                "the image {spec} is in use: a node or another client has opened it"
            )),
            Finality::Final | Finality::Unknown => error,
        })?;
        wait_until(|| Ok(self.image(spec)?.is_none().then_some(())))
    }

    /// Takes a snapshot, unless one of the name exists.
    pub(crate) fn take_snapshot(&self, spec: &ImageSpec, name: &str) -> Result<()> {
        let body = json!({ "snapshot_name": name, "mirrorImageSnapshot": false });
        self.change(Method::Post, &[&spec.to_string(), "snap"], &body, &[EEXIST]).map(drop)
    }

    /// Protects a snapshot, which a clone requires.
    pub(crate) fn protect(&self, spec: &ImageSpec, name: &str) -> Result<()> {
        let body = json!({ "is_protected": true });
        self.change(Method::Put, &[&spec.to_string(), "snap", name], &body, &[]).map(drop)
    }

    /// Deletes a snapshot. Volumes that were created from it get their own copy of the data first, which may
    /// take longer than a call.
    pub(crate) fn delete_snapshot(&self, spec: &ImageSpec, snapshot: &RbdSnapshot) -> Result<()> {
        for child in &snapshot.children {
            self.change(Method::Post, &[&child.to_string(), "flatten"], &json!({}), &[ENOENT])?;
        }
        let path = [&*spec.to_string(), "snap", &snapshot.name];
        let unprotected =
            self.change(Method::Put, &path, &json!({ "is_protected": false }), &[ENOENT, EBUSY])?;
        if unprotected == Some(EBUSY) {
            let message = format!("the volumes of {spec}@{} are being copied", snapshot.name);
            return Err(StorageError::in_progress(message).retry_after(Duration::from_secs(2)));
        }
        self.change(Method::Delete, &path, &Value::Null, &[ENOENT]).map(drop)
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
    fn change(&self, method: Method, path: &[&str], body: &Value, expected: &[i64]) -> Result<Option<i64>> {
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
    fn send(
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

/// The image of a name. Two names never have the same image.
pub(crate) fn named(pool: &str, prefix: &str, name: &str) -> ImageSpec {
    let rest = handle::MAX_LENGTH.saturating_sub(pool.len().saturating_add(1));
    ImageSpec { pool: pool.to_owned(), name: handle::from_name_with_limit(prefix, name, rest) }
}

/// Returns true if a text can be the name of a pool or image of this driver.
fn is_name(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        && name.bytes().any(|byte| byte != b'.')
}

/// Waits for a task of the dashboard.
fn wait_until(attempt: impl FnMut() -> Result<Option<()>>) -> Result<()> {
    poll::until(Duration::from_secs(1), Duration::from_secs(20), attempt)
}

fn accept(version: &str) -> String {
    format!("application/vnd.ceph.api.v{version}+json")
}

fn options(record: &Record) -> Result<Value> {
    let text = serde_json::to_string(record).map_err(|error| StorageError::internal(error.to_string()))?;
    Ok(json!({ record::OPTION: text }))
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
