//! The array's logic: requests and responses, without sockets and without a clock.

use std::collections::BTreeMap;

use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::json;

use crate::model::{ArrayContent, ArrayPool, Counters, Export, Snapshot, Volume, VolumeSource};

const MAX_VOLUME_BYTES: u64 = 1 << 44;

/// The credentials of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrayCredentials<'a> {
    /// No credentials.
    None,
    /// User and password.
    Basic(&'a str, &'a str),
    /// The token of a login.
    Bearer(&'a str),
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct ArrayRequest<'a> {
    /// Method in upper case.
    pub method: &'a str,
    /// Path and query.
    pub path: &'a str,
    /// Credentials.
    pub credentials: ArrayCredentials<'a>,
    /// Body.
    pub body: &'a [u8],
}

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayResponse {
    /// Status code.
    pub status: u16,
    /// JSON; empty for 204.
    pub body: Vec<u8>,
}

impl ArrayResponse {
    pub(crate) fn error(status: u16, message: &str) -> Self {
        Self::json(status, &json!({ "error": message }))
    }

    fn json(status: u16, value: &impl Serialize) -> Self {
        match serde_json::to_vec(value) {
            Ok(body) => Self { status, body },
            Err(error) => Self { status: 500, body: error.to_string().into_bytes() },
        }
    }

    fn no_content() -> Self {
        Self { status: 204, body: Vec::new() }
    }
}

/// A simulated storage array.
#[derive(Clone, Debug)]
pub struct Array {
    user: String,
    password: String,
    total_bytes: u64,
    token_ttl_ms: u64,
    session_limit: usize,
    /// Expiry times of the sessions in milliseconds since 1970-01-01T00:00:00Z, by token.
    sessions: BTreeMap<String, u64>,
    next_token: u64,
    next_device: u64,
    content: ArrayContent,
    counters: Counters,
}

impl Array {
    /// An empty array with 1 TiB, at most 8 sessions, and a session lifetime of 10 minutes.
    pub fn new(user: &str, password: &str) -> Self {
        Self {
            user: user.to_owned(),
            password: password.to_owned(),
            total_bytes: 1 << 40,
            token_ttl_ms: 600_000,
            session_limit: 8,
            sessions: BTreeMap::new(),
            next_token: 0,
            next_device: 0,
            content: ArrayContent::default(),
            counters: Counters::default(),
        }
    }

    /// Sets the total capacity.
    pub fn set_total_bytes(&mut self, bytes: u64) {
        self.total_bytes = bytes;
    }

    /// Sets the lifetime of new tokens, in milliseconds.
    pub fn set_token_ttl_ms(&mut self, ms: u64) {
        self.token_ttl_ms = ms;
    }

    /// Sets the maximum number of concurrent sessions.
    pub fn set_session_limit(&mut self, sessions: usize) {
        self.session_limit = sessions;
    }

    /// Changes the password. Existing sessions remain valid.
    pub fn set_password(&mut self, password: &str) {
        password.clone_into(&mut self.password);
    }

    /// Ends all sessions. Their tokens become invalid.
    pub fn end_sessions(&mut self) {
        self.sessions.clear();
    }

    /// The content of the array.
    pub fn content(&self) -> &ArrayContent {
        &self.content
    }

    /// The counters of the array.
    pub fn counters(&self) -> Counters {
        Counters { sessions: self.sessions.len(), ..self.counters.clone() }
    }

    /// Handles a request. `now_ms` is the current time in milliseconds since 1970-01-01T00:00:00Z.
    pub fn handle(&mut self, request: &ArrayRequest<'_>, now_ms: u64) -> ArrayResponse {
        let (path, query) = request.path.split_once('?').unwrap_or((request.path, ""));
        let path: Vec<String> = path
            .trim_matches('/')
            .split('/')
            .map(|segment| percent_decode_str(segment).decode_utf8_lossy().into_owned())
            .collect();
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        let query: BTreeMap<String, String> = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        self.sessions.retain(|_, until_ms| *until_ms > now_ms);
        let kind = match path.as_slice() {
            [_, _, kind] | [_, _, kind, _] => *kind,
            [kind, ..] => *kind,
            [] => "",
        };
        let count = self.counters.requests.entry(format!("{} {kind}", request.method)).or_default();
        *count = count.saturating_add(1);
        if (request.method, path.as_slice()) == ("POST", &["login"]) {
            return self.log_in(request.credentials, now_ms);
        }
        let has_session = match request.credentials {
            ArrayCredentials::Bearer(token) => self.sessions.contains_key(token),
            ArrayCredentials::None | ArrayCredentials::Basic(..) => false,
        };
        if !has_session {
            return ArrayResponse::error(401, "no session has this token");
        }
        self.route(request, &path, &query, now_ms).unwrap_or_else(|refused| refused)
    }

    fn log_in(&mut self, credentials: ArrayCredentials<'_>, now_ms: u64) -> ArrayResponse {
        let is_authenticated = match credentials {
            ArrayCredentials::Basic(user, password) => user == self.user && password == self.password,
            ArrayCredentials::None | ArrayCredentials::Bearer(_) => false,
        };
        let full = self.sessions.len() >= self.session_limit;
        if !is_authenticated || full {
            self.counters.refused_logins = self.counters.refused_logins.saturating_add(1);
        }
        if !is_authenticated {
            return ArrayResponse::error(401, "user or password is wrong");
        }
        if full {
            return ArrayResponse::error(503, "too many sessions");
        }
        self.counters.logins = self.counters.logins.saturating_add(1);
        self.next_token = self.next_token.saturating_add(1);
        let token = format!("token-{}", self.next_token);
        self.sessions.insert(token.clone(), now_ms.saturating_add(self.token_ttl_ms));
        ArrayResponse::json(200, &json!({ "token": token, "expires_in_seconds": self.token_ttl_ms / 1000 }))
    }

    fn route(
        &mut self,
        request: &ArrayRequest<'_>,
        path: &[&str],
        query: &BTreeMap<String, String>,
        now_ms: u64,
    ) -> Result<ArrayResponse, ArrayResponse> {
        match (request.method, path) {
            ("GET", ["pool"]) => Ok(ArrayResponse::json(200, &self.pool())),
            ("GET", ["volumes"]) => Ok(list("volumes", &self.content.volumes, query, |_| true)),
            ("GET", ["volumes", name]) => Ok(ArrayResponse::json(200, self.volume(name)?)),
            ("PUT", ["volumes", name]) => self.create(name, &parse(request.body)?, now_ms),
            ("PATCH", ["volumes", name]) => self.resize(name, &parse(request.body)?, now_ms),
            ("DELETE", ["volumes", name]) => self.delete(name),
            ("PUT", ["volumes", name, "exports", node]) => self.export(name, node, &parse(request.body)?),
            ("DELETE", ["volumes", name, "exports"]) => self.unexport(name, None),
            ("DELETE", ["volumes", name, "exports", node]) => self.unexport(name, Some(node)),
            ("GET", ["snapshots"]) => {
                let volume = query.get("volume");
                let matches = |found: &Snapshot| volume.is_none_or(|volume| found.volume == *volume);
                Ok(list("snapshots", &self.content.snapshots, query, matches))
            }
            ("GET", ["snapshots", name]) => {
                let found = self.content.snapshots.get(*name);
                Ok(ArrayResponse::json(200, found.ok_or_else(|| missing("snapshot", name))?))
            }
            ("PUT", ["snapshots", name]) => self.create_snapshot(name, &parse(request.body)?, now_ms),
            ("DELETE", ["snapshots", name]) => {
                let removed = self.content.snapshots.remove(*name);
                removed.map(|_| ArrayResponse::no_content()).ok_or_else(|| missing("snapshot", name))
            }
            _ => Err(ArrayResponse::error(405, "there is no such request")),
        }
    }

    fn pool(&self) -> ArrayPool {
        let used: u64 = self.content.volumes.values().map(|volume| volume.bytes).sum();
        let free_bytes = self.total_bytes.saturating_sub(used);
        ArrayPool { total_bytes: self.total_bytes, free_bytes, max_volume_bytes: MAX_VOLUME_BYTES }
    }

    fn volume(&self, name: &str) -> Result<&Volume, ArrayResponse> {
        self.content.volumes.get(name).ok_or_else(|| missing("volume", name))
    }

    fn create(
        &mut self,
        name: &str,
        requested: &NewVolume,
        now_ms: u64,
    ) -> Result<ArrayResponse, ArrayResponse> {
        if self.content.volumes.contains_key(name) {
            return Err(ArrayResponse::error(412, &format!("the volume {name} exists")));
        }
        let minimum = match &requested.source {
            Some(VolumeSource::Volume(source)) => self.volume(source)?.bytes,
            Some(VolumeSource::Snapshot(source)) => {
                self.content.snapshots.get(source).ok_or_else(|| missing("snapshot", source))?.bytes
            }
            None => 1,
        };
        if requested.bytes < minimum || requested.bytes > MAX_VOLUME_BYTES {
            return Err(ArrayResponse::error(
                422,
                &format!("{} bytes; expected {minimum} to {MAX_VOLUME_BYTES}", requested.bytes),
            ));
        }
        if !matches!(requested.tier.as_str(), "fast" | "cheap") {
            return Err(ArrayResponse::error(
                422,
                &format!("tier {:?}; expected fast or cheap", requested.tier),
            ));
        }
        self.check_room(requested.bytes)?;
        self.next_device = self.next_device.saturating_add(1);
        let volume = Volume {
            name: name.to_owned(),
            bytes: requested.bytes,
            tier: requested.tier.clone(),
            source: requested.source.clone(),
            labels: requested.labels.clone(),
            wwn: format!("wwn-0x{:032x}", self.next_device),
            exports: Vec::new(),
            changed_ms: now_ms,
        };
        let answer = ArrayResponse::json(201, &volume);
        self.content.volumes.insert(name.to_owned(), volume);
        Ok(answer)
    }

    fn check_room(&self, bytes: u64) -> Result<(), ArrayResponse> {
        let free = self.pool().free_bytes;
        if bytes > free {
            Err(ArrayResponse::error(507, &format!("{bytes} bytes; {free} are free")))
        } else {
            Ok(())
        }
    }

    fn resize(
        &mut self,
        name: &str,
        requested: &Resize,
        now_ms: u64,
    ) -> Result<ArrayResponse, ArrayResponse> {
        let now = self.volume(name)?.bytes;
        if requested.bytes < now || requested.bytes > MAX_VOLUME_BYTES {
            return Err(ArrayResponse::error(
                422,
                &format!("{} bytes; expected {now} to {MAX_VOLUME_BYTES}", requested.bytes),
            ));
        }
        self.check_room(requested.bytes.saturating_sub(now))?;
        let volume = self.content.volumes.get_mut(name).ok_or_else(|| missing("volume", name))?;
        volume.bytes = requested.bytes;
        volume.changed_ms = now_ms;
        Ok(ArrayResponse::json(200, volume))
    }

    fn delete(&mut self, name: &str) -> Result<ArrayResponse, ArrayResponse> {
        if !self.volume(name)?.exports.is_empty() {
            return Err(ArrayResponse::error(409, &format!("the volume {name} is exported")));
        }
        self.content.volumes.remove(name);
        Ok(ArrayResponse::no_content())
    }

    fn export(
        &mut self,
        name: &str,
        node: &str,
        requested: &NewExport,
    ) -> Result<ArrayResponse, ArrayResponse> {
        let volume = self.content.volumes.get_mut(name).ok_or_else(|| missing("volume", name))?;
        if volume.exports.iter().any(|export| export.node == node) {
            return Err(ArrayResponse::error(412, &format!("the volume {name} is exported to {node}")));
        }
        if let Some(other) = volume.exports.iter().find(|export| export.exclusive || requested.exclusive) {
            return Err(ArrayResponse::error(
                409,
                &format!("the volume {name} is exported to {}", other.node),
            ));
        }
        let NewExport { read_only, exclusive } = *requested;
        volume.exports.push(Export { node: node.to_owned(), read_only, exclusive });
        Ok(ArrayResponse::json(201, volume))
    }

    fn unexport(&mut self, name: &str, node: Option<&str>) -> Result<ArrayResponse, ArrayResponse> {
        let volume = self.content.volumes.get_mut(name).ok_or_else(|| missing("volume", name))?;
        let before = volume.exports.len();
        volume.exports.retain(|export| node.is_some_and(|node| node != export.node));
        if node.is_some() && volume.exports.len() == before {
            return Err(missing("export", name));
        }
        Ok(ArrayResponse::no_content())
    }

    fn create_snapshot(
        &mut self,
        name: &str,
        requested: &NewSnapshot,
        now_ms: u64,
    ) -> Result<ArrayResponse, ArrayResponse> {
        if self.content.snapshots.contains_key(name) {
            return Err(ArrayResponse::error(412, &format!("the snapshot {name} exists")));
        }
        let bytes = self.volume(&requested.volume)?.bytes;
        let snapshot =
            Snapshot { name: name.to_owned(), volume: requested.volume.clone(), bytes, created_ms: now_ms };
        let answer = ArrayResponse::json(201, &snapshot);
        self.content.snapshots.insert(name.to_owned(), snapshot);
        Ok(answer)
    }
}

#[derive(Deserialize)]
struct NewVolume {
    bytes: u64,
    tier: String,
    source: Option<VolumeSource>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Resize {
    bytes: u64,
}

#[derive(Deserialize)]
struct NewExport {
    read_only: bool,
    exclusive: bool,
}

#[derive(Deserialize)]
struct NewSnapshot {
    volume: String,
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ArrayResponse> {
    serde_json::from_slice(body).map_err(|error| ArrayResponse::error(400, &error.to_string()))
}

fn missing(what: &str, name: &str) -> ArrayResponse {
    ArrayResponse::error(404, &format!("there is no {what} {name}"))
}

fn list<T: Serialize>(
    what: &str,
    all: &BTreeMap<String, T>,
    query: &BTreeMap<String, String>,
    filter: impl Fn(&T) -> bool,
) -> ArrayResponse {
    let after = query.get("after").map_or("", String::as_str);
    let limit = query.get("limit").and_then(|limit| limit.parse().ok()).unwrap_or(usize::MAX);
    let mut rest = all.iter().filter(|(name, item)| name.as_str() > after && filter(item));
    let page: Vec<&T> = rest.by_ref().take(limit).map(|(_, item)| item).collect();
    ArrayResponse::json(200, &json!({ what: page, "more": rest.next().is_some() }))
}
