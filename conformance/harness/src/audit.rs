//! The API server's audit log of requests by Cofferdam's accounts.

use std::{fs, mem, path::PathBuf};

use anyhow::{Context as _, Result};
use serde::Deserialize;
use serde_json::json;

use crate::namespaces;

/// Audit log of requests by Cofferdam's accounts.
#[derive(Debug)]
pub(crate) struct AuditLog {
    path: PathBuf,
    /// Number of bytes of the file that were read so far.
    read_bytes: usize,
    /// True until the API server is ready after a start or restart. Until then, the API server has not loaded
    /// the RBAC rules, and rejects every request of Cofferdam's accounts.
    is_starting: bool,
    forbidden: Vec<String>,
}

impl AuditLog {
    /// The log of an API server that is being started.
    pub(crate) const fn new(path: PathBuf) -> Self {
        Self { path, read_bytes: 0, is_starting: true, forbidden: Vec::new() }
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
        let log = fs::read_to_string(&self.path)
            .with_context(|| format!("no audit log {}", self.path.display()))?;
        if !self.is_starting {
            let new = log.get(self.read_bytes..).context("the audit log has shrunk")?;
            self.forbidden.extend(forbidden_requests(new)?);
        }
        self.read_bytes = log.len();
        Ok(())
    }
}

/// An event of the audit log.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AuditEvent {
    verb: String,
    #[serde(rename = "requestURI")]
    uri: String,
    user: AuditUser,
    response_status: Option<AuditStatus>,
}

#[derive(Deserialize)]
struct AuditUser {
    username: String,
}

#[derive(Deserialize)]
struct AuditStatus {
    code: Option<u16>,
}

/// The audit policy: log every completed response to service accounts of Cofferdam's namespaces. The API
/// server logs a rejection before it sends it, so that none is missed if the client or the API server is
/// killed.
pub(crate) fn policy() -> String {
    let groups = [namespaces::COFFERDAM, namespaces::SCENARIOS]
        .map(|namespace| format!("system:serviceaccounts:{namespace}"));
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived", "ResponseStarted"],
        "omitManagedFields": true,
        "rules": [
            { "level": "Metadata", "userGroups": groups },
            { "level": "None" },
        ],
    })
    .to_string()
}

/// The requests of an audit log that were rejected with 403, one line each.
fn forbidden_requests(log: &str) -> Result<Vec<String>> {
    let mut forbidden = Vec::new();
    for line in log.lines() {
        let request: AuditEvent = serde_json::from_str(line).with_context(|| format!("audit log: {line}"))?;
        if request.response_status.and_then(|status| status.code) == Some(403) {
            forbidden.push(format!("{}: {} {}", request.user.username, request.verb, request.uri));
        }
    }
    Ok(forbidden)
}

#[cfg(test)]
mod tests {
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
        assert!(forbidden_requests("{}").is_err());
    }
}
