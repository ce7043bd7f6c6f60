//! The API server's audit log of requests by Cofferdam's accounts.

use std::{
    mem,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{line_tail::LineTail, namespaces};

/// Audit log of requests by Cofferdam's accounts.
#[derive(Debug)]
pub(crate) struct AuditLog {
    tail: LineTail,
    /// True until the API server is ready after a start or restart. Until then, the API server has not loaded
    /// the RBAC rules, and rejects every request of Cofferdam's accounts.
    is_starting: bool,
    forbidden: Vec<String>,
}

impl AuditLog {
    /// The log of an API server that is being started.
    pub(crate) const fn new(path: PathBuf) -> Self {
        Self { tail: LineTail::from_start(path), is_starting: true, forbidden: Vec::new() }
    }

    /// Ignores rejected requests until [`set_ready`](Self::set_ready): the API server is started again.
    ///
    /// # Errors
    /// If the log cannot be read.
    pub(crate) fn set_starting(&mut self) -> Result<()> {
        self.read_new()?;
        self.is_starting = true;
        Ok(())
    }

    /// Records rejected requests from now on: the API server is ready.
    ///
    /// # Errors
    /// If the log cannot be read.
    pub(crate) fn set_ready(&mut self) -> Result<()> {
        self.read_new()?;
        self.is_starting = false;
        Ok(())
    }

    /// The requests that were rejected with 403 since the last call, except during starts.
    ///
    /// # Errors
    /// If the log cannot be read.
    pub(crate) fn take_forbidden(&mut self) -> Result<Vec<String>> {
        self.read_new()?;
        Ok(mem::take(&mut self.forbidden))
    }

    fn read_new(&mut self) -> Result<()> {
        let new = self.tail.read().context("audit log")?;
        if !self.is_starting {
            self.forbidden.extend(forbidden_requests(&new)?);
        }
        Ok(())
    }
}

/// A completed request in the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AuditEvent {
    pub(crate) verb: String,
    #[serde(rename = "requestURI")]
    pub(crate) uri: String,
    pub(crate) user: AuditUser,
    response_status: Option<AuditStatus>,
    /// The object of the request; `None` if the path has none.
    pub(crate) object_ref: Option<AuditObject>,
    /// Time at which the API server received the request.
    #[serde(rename = "requestReceivedTimestamp")]
    pub(crate) received: Option<Timestamp>,
    /// Time of the response.
    #[serde(rename = "stageTimestamp")]
    pub(crate) completed: Option<Timestamp>,
    /// The body of a request for a Lease.
    request_object: Option<Value>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct AuditUser {
    pub(crate) username: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct AuditObject {
    pub(crate) resource: Option<String>,
    pub(crate) name: Option<String>,
}

impl AuditEvent {
    /// True if the API server carried out the request.
    pub(crate) fn is_successful(&self) -> bool {
        self.response_status.as_ref().and_then(|status| status.code).is_some_and(|code| code < 300)
    }

    /// True if the API server may have carried out the request although it reports an error of its own.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.response_status.as_ref().and_then(|status| status.code).is_none_or(|code| code >= 500)
    }

    /// True if the request changes objects.
    pub(crate) fn is_write(&self) -> bool {
        matches!(self.verb.as_str(), "create" | "update" | "patch" | "delete" | "deletecollection")
    }

    /// True if the request is for the object with this resource and name.
    pub(crate) fn is_of(&self, resource: &str, name: &str) -> bool {
        let of_object = self.object_ref.as_ref().and_then(|object| object.name.as_deref());
        self.resource() == resource && of_object == Some(name)
    }

    /// The plural name of the object's resource, such as `leases`; empty for paths without a resource.
    pub(crate) fn resource(&self) -> &str {
        self.object_ref.as_ref().and_then(|object| object.resource.as_deref()).unwrap_or_default()
    }

    /// `spec.holderIdentity` that a write of a Lease sets; empty if it releases the Lease.
    pub(crate) fn holder(&self) -> Option<&str> {
        self.request_object.as_ref()?.pointer("/spec/holderIdentity")?.as_str()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct AuditStatus {
    code: Option<u16>,
}

/// The audit policy: log every completed response to service accounts of Cofferdam's namespaces. An entry has
/// the body of its request if the request is for a Lease, or if `has_bodies` is true. The API server logs a
/// rejection before it sends it, so the log misses none if the client or the API server is killed.
pub(crate) fn policy(has_bodies: bool) -> String {
    let groups = [namespaces::COFFERDAM, namespaces::SCENARIOS]
        .map(|namespace| format!("system:serviceaccounts:{namespace}"));
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived", "ResponseStarted"],
        "omitManagedFields": true,
        "rules": [
            {
                "level": "Request",
                "userGroups": groups,
                "resources": [{ "group": "coordination.k8s.io", "resources": ["leases"] }],
            },
            { "level": if has_bodies { "Request" } else { "Metadata" }, "userGroups": groups },
            { "level": "None" },
        ],
    })
    .to_string()
}

/// The requests of the audit log at `path`, in the order in which the API server wrote them.
///
/// # Errors
/// If the file cannot be read, or is not an audit log.
pub(crate) fn read(path: &Path) -> Result<Vec<AuditEvent>> {
    parse(&LineTail::from_start(path.to_owned()).read().context("audit log")?)
}

/// The requests that the API server writes to an audit log after a moment.
pub(crate) struct AuditTail(LineTail);

impl AuditTail {
    /// Starts after the requests in the log.
    ///
    /// # Errors
    /// If the file does not exist.
    pub(crate) fn new(path: PathBuf) -> Result<Self> {
        Ok(Self(LineTail::from_end(path).context("audit log")?))
    }

    /// The requests since the last call.
    ///
    /// # Errors
    /// If the file cannot be read, or is not an audit log.
    pub(crate) fn read(&mut self) -> Result<Vec<AuditEvent>> {
        parse(&self.0.read()?)
    }
}

/// The requests of the lines of an audit log.
///
/// # Errors
/// If the text is not an audit log.
pub(crate) fn parse(log: &str) -> Result<Vec<AuditEvent>> {
    log.lines().map(|line| serde_json::from_str(line).with_context(|| format!("audit log: {line}"))).collect()
}

/// The requests of an audit log that were rejected with 403, one line each.
fn forbidden_requests(log: &str) -> Result<Vec<String>> {
    let is_forbidden =
        |event: &AuditEvent| event.response_status.as_ref().and_then(|status| status.code) == Some(403);
    let mut forbidden = Vec::new();
    // Not every line is decoded: the log of a long run has gigabytes.
    for line in log.lines().filter(|line| line.contains("403")) {
        let events = parse(line)?.into_iter().filter(is_forbidden);
        forbidden
            .extend(events.map(|event| format!("{}: {} {}", event.user.username, event.verb, event.uri)));
    }
    Ok(forbidden)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn forbidden_requests_are_listed_with_their_user() {
        let line = |verb: &str, status: &str| {
            format!(
                "{{\"verb\":\"{verb}\",\"requestURI\":\"/api/v1/persistentvolumes\",\
                 \"user\":{{\"username\":\"u\"}},\"responseStatus\":{{\"metadata\":{{}},{status}}}}}\n"
            )
        };
        let log = line("patch", "\"code\":200") + &line("create", "\"status\":\"Failure\",\"code\":403");
        assert_eq!(forbidden_requests(&log).unwrap(), ["u: create /api/v1/persistentvolumes"]);
        assert!(forbidden_requests("{\"code\":403}").is_err());
    }

    #[test]
    fn a_tail_has_the_requests_that_were_written_completely_after_its_start() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        let line = |uri| json!({ "verb": "get", "requestURI": uri, "user": { "username": "u" } }).to_string();
        let append = |text: &str| {
            let before = fs::read_to_string(&path).unwrap_or_default();
            fs::write(&path, before + text).unwrap();
        };
        let uris = |tail: &mut AuditTail| {
            tail.read().unwrap().into_iter().map(|event| event.uri).collect::<Vec<_>>()
        };
        append("");
        let mut of_all = AuditTail::new(path.clone()).unwrap();
        append(&(line("/0") + "\n"));
        let mut after_a_line = AuditTail::new(path.clone()).unwrap();
        let second = line("/1");
        let (begin, end) = second.split_at(5);
        append(begin);
        let mut within_a_line = AuditTail::new(path.clone()).unwrap();
        assert_eq!(uris(&mut of_all), ["/0"]);
        append(&format!("{end}\n{}\n", line("/2")));
        assert_eq!(uris(&mut of_all), ["/1", "/2"]);
        assert_eq!(uris(&mut after_a_line), ["/1", "/2"]);
        assert_eq!(uris(&mut within_a_line), ["/2"]);
        assert!(uris(&mut within_a_line).is_empty());
    }

    #[test]
    fn lines_are_read_once_the_api_server_has_written_their_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        let line = json!({
            "verb": "create",
            "requestURI": "/api/v1/persistentvolumes",
            "user": { "username": "u\u{e4}" },
            "responseStatus": { "code": 403 },
        })
        .to_string();
        // The API server may be in the middle of a character.
        let (begin, end) = line.as_bytes().split_at(line.find('\u{e4}').unwrap() + 1);
        fs::write(&path, []).unwrap();
        let mut log = AuditLog::new(path.clone());
        log.set_ready().unwrap();
        fs::write(&path, begin).unwrap();
        assert_eq!(log.take_forbidden().unwrap(), <[&str; 0]>::default());
        fs::write(&path, [begin, end, b"\n"].concat()).unwrap();
        assert_eq!(log.take_forbidden().unwrap(), ["u\u{e4}: create /api/v1/persistentvolumes"]);
        assert_eq!(log.take_forbidden().unwrap(), <[&str; 0]>::default());
    }
}
