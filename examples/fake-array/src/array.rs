//! The array itself: requests in, answers out; no socket, no clock.

use std::collections::BTreeMap;

use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::json;

use crate::model::{Content, Counters, Export, Pool, Snapshot, Source, Volume};

const LARGEST: u64 = 1 << 44;

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credentials<'a> {
    /// Nobody says.
    None,
    /// User and password.
    Basic(&'a str, &'a str),
    /// A token that a login gave.
    Bearer(&'a str),
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// Method in upper case.
    pub method: &'a str,
    /// Path with its query.
    pub path: &'a str,
    /// Who asks.
    pub credentials: Credentials<'a>,
    /// Body.
    pub body: &'a [u8],
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Status.
    pub status: u16,
    /// JSON; empty for 204.
    pub body: Vec<u8>,
}

impl Answer {
    pub(crate) fn error(status: u16, message: &str) -> Self {
        Self::json(status, &json!({ "error": message }))
    }

    fn json(status: u16, value: &impl Serialize) -> Self {
        match serde_json::to_vec(value) {
            Ok(body) => Self { status, body },
            Err(error) => Self { status: 500, body: error.to_string().into_bytes() },
        }
    }

    fn nothing() -> Self {
        Self { status: 204, body: Vec::new() }
    }
}

/// An array.
#[derive(Clone, Debug)]
pub struct Array {
    user: String,
    password: String,
    total_bytes: u64,
    token_ttl_ms: u64,
    session_limit: usize,
    /// Tokens with the time at which they end.
    sessions: BTreeMap<String, u64>,
    tokens: u64,
    devices: u64,
    content: Content,
    counters: Counters,
}

impl Array {
    /// An empty array of 1 TiB with 8 sessions of 10 minutes.
    pub fn new(user: &str, password: &str) -> Self {
        Self {
            user: user.to_owned(),
            password: password.to_owned(),
            total_bytes: 1 << 40,
            token_ttl_ms: 600_000,
            session_limit: 8,
            sessions: BTreeMap::new(),
            tokens: 0,
            devices: 0,
            content: Content::default(),
            counters: Counters::default(),
        }
    }

    /// Gives the array this much room.
    pub fn set_total_bytes(&mut self, bytes: u64) {
        self.total_bytes = bytes;
    }

    /// Lets tokens that are given from now on live this long, in milliseconds.
    pub fn set_token_ttl_ms(&mut self, ms: u64) {
        self.token_ttl_ms = ms;
    }

    /// Allows this many sessions at once.
    pub fn set_session_limit(&mut self, sessions: usize) {
        self.session_limit = sessions;
    }

    /// Changes the password; sessions stay.
    pub fn set_password(&mut self, password: &str) {
        password.clone_into(&mut self.password);
    }

    /// Ends all sessions: the tokens are not known any more.
    pub fn end_sessions(&mut self) {
        self.sessions.clear();
    }

    /// What the array holds.
    pub fn content(&self) -> &Content {
        &self.content
    }

    /// What the array has done.
    pub fn counters(&self) -> Counters {
        Counters { sessions: self.sessions.len(), ..self.counters.clone() }
    }

    /// Answers a request at a time in milliseconds.
    pub fn answer(&mut self, ask: &Ask<'_>, now_ms: u64) -> Answer {
        let (path, query) = ask.path.split_once('?').unwrap_or((ask.path, ""));
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
        let count = self.counters.requests.entry(format!("{} {kind}", ask.method)).or_default();
        *count = count.saturating_add(1);
        if (ask.method, path.as_slice()) == ("POST", &["login"]) {
            return self.log_in(ask.credentials, now_ms);
        }
        let known =
            matches!(ask.credentials, Credentials::Bearer(token) if self.sessions.contains_key(token));
        if !known {
            return Answer::error(401, "no session has this token");
        }
        self.route(ask, &path, &query, now_ms).unwrap_or_else(|refused| refused)
    }

    fn log_in(&mut self, credentials: Credentials<'_>, now_ms: u64) -> Answer {
        let known = matches!(credentials, Credentials::Basic(user, password) if user == self.user && password == self.password);
        let full = self.sessions.len() >= self.session_limit;
        if !known || full {
            self.counters.refused_logins = self.counters.refused_logins.saturating_add(1);
        }
        if !known {
            return Answer::error(401, "user or password is wrong");
        }
        if full {
            return Answer::error(503, "too many sessions");
        }
        self.counters.logins = self.counters.logins.saturating_add(1);
        self.tokens = self.tokens.saturating_add(1);
        let token = format!("token-{}", self.tokens);
        self.sessions.insert(token.clone(), now_ms.saturating_add(self.token_ttl_ms));
        Answer::json(200, &json!({ "token": token, "expires_in_seconds": self.token_ttl_ms / 1000 }))
    }

    fn route(
        &mut self,
        ask: &Ask<'_>,
        path: &[&str],
        query: &BTreeMap<String, String>,
        now_ms: u64,
    ) -> Result<Answer, Answer> {
        match (ask.method, path) {
            ("GET", ["pool"]) => Ok(Answer::json(200, &self.pool())),
            ("GET", ["volumes"]) => Ok(list("volumes", &self.content.volumes, query, |_| true)),
            ("GET", ["volumes", name]) => Ok(Answer::json(200, self.volume(name)?)),
            ("PUT", ["volumes", name]) => self.create(name, &parse(ask.body)?, now_ms),
            ("PATCH", ["volumes", name]) => self.resize(name, &parse(ask.body)?, now_ms),
            ("DELETE", ["volumes", name]) => self.delete(name),
            ("PUT", ["volumes", name, "exports", node]) => self.export(name, node, &parse(ask.body)?),
            ("DELETE", ["volumes", name, "exports"]) => self.unexport(name, None),
            ("DELETE", ["volumes", name, "exports", node]) => self.unexport(name, Some(node)),
            ("GET", ["snapshots"]) => {
                let volume = query.get("volume");
                let of_it = |found: &Snapshot| volume.is_none_or(|volume| found.volume == *volume);
                Ok(list("snapshots", &self.content.snapshots, query, of_it))
            }
            ("GET", ["snapshots", name]) => {
                let found = self.content.snapshots.get(*name);
                Ok(Answer::json(200, found.ok_or_else(|| missing("snapshot", name))?))
            }
            ("PUT", ["snapshots", name]) => self.cut(name, &parse(ask.body)?, now_ms),
            ("DELETE", ["snapshots", name]) => {
                let removed = self.content.snapshots.remove(*name);
                removed.map(|_| Answer::nothing()).ok_or_else(|| missing("snapshot", name))
            }
            _ => Err(Answer::error(405, "there is no such request")),
        }
    }

    fn pool(&self) -> Pool {
        let taken: u64 = self.content.volumes.values().map(|volume| volume.bytes).sum();
        let free_bytes = self.total_bytes.saturating_sub(taken);
        Pool { total_bytes: self.total_bytes, free_bytes, largest_bytes: LARGEST }
    }

    fn volume(&self, name: &str) -> Result<&Volume, Answer> {
        self.content.volumes.get(name).ok_or_else(|| missing("volume", name))
    }

    fn create(&mut self, name: &str, wanted: &NewVolume, now_ms: u64) -> Result<Answer, Answer> {
        if self.content.volumes.contains_key(name) {
            return Err(Answer::error(412, &format!("the volume {name} exists")));
        }
        let least = match &wanted.source {
            Some(Source::Volume(source)) => self.volume(source)?.bytes,
            Some(Source::Snapshot(source)) => {
                self.content.snapshots.get(source).ok_or_else(|| missing("snapshot", source))?.bytes
            }
            None => 1,
        };
        if wanted.bytes < least || wanted.bytes > LARGEST {
            return Err(Answer::error(
                422,
                &format!("{} bytes; expected {least} to {LARGEST}", wanted.bytes),
            ));
        }
        if !matches!(wanted.tier.as_str(), "fast" | "cheap") {
            return Err(Answer::error(422, &format!("tier {:?}; expected fast or cheap", wanted.tier)));
        }
        self.check_room(wanted.bytes)?;
        self.devices = self.devices.saturating_add(1);
        let volume = Volume {
            name: name.to_owned(),
            bytes: wanted.bytes,
            tier: wanted.tier.clone(),
            source: wanted.source.clone(),
            labels: wanted.labels.clone(),
            wwn: format!("wwn-0x{:032x}", self.devices),
            exports: Vec::new(),
            changed_ms: now_ms,
        };
        let answer = Answer::json(201, &volume);
        self.content.volumes.insert(name.to_owned(), volume);
        Ok(answer)
    }

    fn check_room(&self, bytes: u64) -> Result<(), Answer> {
        let free = self.pool().free_bytes;
        if bytes > free {
            Err(Answer::error(507, &format!("{bytes} bytes; {free} are free")))
        } else {
            Ok(())
        }
    }

    fn resize(&mut self, name: &str, wanted: &Resize, now_ms: u64) -> Result<Answer, Answer> {
        let now = self.volume(name)?.bytes;
        if wanted.bytes < now || wanted.bytes > LARGEST {
            return Err(Answer::error(422, &format!("{} bytes; expected {now} to {LARGEST}", wanted.bytes)));
        }
        self.check_room(wanted.bytes.saturating_sub(now))?;
        let volume = self.content.volumes.get_mut(name).ok_or_else(|| missing("volume", name))?;
        volume.bytes = wanted.bytes;
        volume.changed_ms = now_ms;
        Ok(Answer::json(200, volume))
    }

    fn delete(&mut self, name: &str) -> Result<Answer, Answer> {
        if !self.volume(name)?.exports.is_empty() {
            return Err(Answer::error(409, &format!("the volume {name} is exported")));
        }
        self.content.volumes.remove(name);
        Ok(Answer::nothing())
    }

    fn export(&mut self, name: &str, node: &str, wanted: &NewExport) -> Result<Answer, Answer> {
        let volume = self.content.volumes.get_mut(name).ok_or_else(|| missing("volume", name))?;
        if volume.exports.iter().any(|export| export.node == node) {
            return Err(Answer::error(412, &format!("the volume {name} is exported to {node}")));
        }
        if let Some(other) = volume.exports.iter().find(|export| export.exclusive || wanted.exclusive) {
            return Err(Answer::error(409, &format!("the volume {name} is exported to {}", other.node)));
        }
        let NewExport { read_only, exclusive } = *wanted;
        volume.exports.push(Export { node: node.to_owned(), read_only, exclusive });
        Ok(Answer::json(201, volume))
    }

    fn unexport(&mut self, name: &str, node: Option<&str>) -> Result<Answer, Answer> {
        let volume = self.content.volumes.get_mut(name).ok_or_else(|| missing("volume", name))?;
        let before = volume.exports.len();
        volume.exports.retain(|export| node.is_some_and(|node| node != export.node));
        if node.is_some() && volume.exports.len() == before {
            return Err(missing("export", name));
        }
        Ok(Answer::nothing())
    }

    fn cut(&mut self, name: &str, wanted: &NewSnapshot, now_ms: u64) -> Result<Answer, Answer> {
        if self.content.snapshots.contains_key(name) {
            return Err(Answer::error(412, &format!("the snapshot {name} exists")));
        }
        let bytes = self.volume(&wanted.volume)?.bytes;
        let snapshot =
            Snapshot { name: name.to_owned(), volume: wanted.volume.clone(), bytes, created_ms: now_ms };
        let answer = Answer::json(201, &snapshot);
        self.content.snapshots.insert(name.to_owned(), snapshot);
        Ok(answer)
    }
}

#[derive(Deserialize)]
struct NewVolume {
    bytes: u64,
    tier: String,
    source: Option<Source>,
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

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Answer> {
    serde_json::from_slice(body).map_err(|error| Answer::error(400, &error.to_string()))
}

fn missing(what: &str, name: &str) -> Answer {
    Answer::error(404, &format!("there is no {what} {name}"))
}

fn list<T: Serialize>(
    what: &str,
    all: &BTreeMap<String, T>,
    query: &BTreeMap<String, String>,
    wanted: impl Fn(&T) -> bool,
) -> Answer {
    let after = query.get("after").map_or("", String::as_str);
    let limit = query.get("limit").and_then(|limit| limit.parse().ok()).unwrap_or(usize::MAX);
    let mut rest = all.iter().filter(|(name, item)| name.as_str() > after && wanted(item));
    let page: Vec<&T> = rest.by_ref().take(limit).map(|(_, item)| item).collect();
    Answer::json(200, &json!({ what: page, "more": rest.next().is_some() }))
}
