//! Service accounts of Cofferdam's roles, with exactly the rights that `cofferdam render rbac` prints.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, api::PostParams};
use serde::Deserialize;
use serde_json::json;

use crate::{
    control_plane::{ApiUser, ControlPlane},
    process,
    run::SuiteRun,
};

/// Namespace of the accounts and of Cofferdam's own objects.
pub const NAMESPACE: &str = "cofferdam-system";
/// The same for the scenarios, which use one namespace for everything.
pub const DEFAULT_NAMESPACE: &str = "default";
/// Every role that runs once per cluster. Together they replace the sidecars and the upstream volume
/// controllers.
pub const CLUSTER_ROLES: [&str; 6] =
    ["provisioner", "pv-controller", "protection", "attacher", "attach-detach", "resizer"];

/// Roles, and the service account for them.
#[derive(Clone, Debug)]
pub struct Account {
    roles: Vec<String>,
    kubeconfig: PathBuf,
}

impl Account {
    /// Applies the output of `cofferdam render rbac` for these roles, and creates a token.
    ///
    /// # Errors
    /// If the program, kubectl or the API fails.
    pub async fn new(run: &SuiteRun, plane: &ControlPlane, roles: &[&str]) -> Result<Self> {
        Self::in_namespace(run, plane, roles, NAMESPACE).await
    }

    /// The same in another namespace.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub async fn in_namespace(
        run: &SuiteRun,
        plane: &ControlPlane,
        roles: &[&str],
        namespace: &str,
    ) -> Result<Self> {
        let object: Namespace = serde_json::from_value(json!({ "metadata": { "name": namespace } }))?;
        match Api::all(plane.client().clone()).create(&PostParams::default(), &object).await {
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            created => drop(created?),
        }
        let name = roles.join("-");
        let mut render = vec!["render", "rbac", "--namespace", namespace, "--service-account", &name];
        render.extend(roles.iter().flat_map(|role| ["--role", role]));
        let rules = run.directory().join(format!("{name}.yaml"));
        fs::write(&rules, process::run_to_completion(run.program(), &render).await?)?;

        let kubectl = Kubectl::new(run, plane)?;
        kubectl.run(&["apply", "--filename", &rules.display().to_string()]).await?;
        let token = kubectl.run(&["create", "token", &name, "--namespace", namespace]).await?;
        let kubeconfig = plane.kubeconfig_with_token(&name, token.trim())?;
        Ok(Self { roles: roles.iter().map(|role| (*role).to_owned()).collect(), kubeconfig })
    }

    /// The roles of the account.
    #[must_use]
    pub fn roles(&self) -> &[String] {
        &self.roles
    }

    /// The kubeconfig of the account.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }
}

/// kubectl, as administrator.
struct Kubectl {
    program: PathBuf,
    kubeconfig: String,
    cache: String,
}

impl Kubectl {
    fn new(run: &SuiteRun, plane: &ControlPlane) -> Result<Self> {
        Ok(Self {
            program: run.peers().program("kubectl")?,
            kubeconfig: format!("--kubeconfig={}", plane.kubeconfig(ApiUser::Admin)?.display()),
            // The default is below the user's home directory.
            cache: format!("--cache-dir={}", run.scratch().join("kubectl").display()),
        })
    }

    async fn run(&self, arguments: &[&str]) -> Result<String> {
        let arguments = [&[self.kubeconfig.as_str(), self.cache.as_str()], arguments].concat();
        process::run_to_completion(&self.program, &arguments).await
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

/// The audit policy: log every response to the accounts. The API server logs a response before it sends it,
/// so that none is missed if the client or the API server is killed.
#[must_use]
pub fn audit_policy() -> String {
    let groups =
        [NAMESPACE, DEFAULT_NAMESPACE].map(|namespace| format!("system:serviceaccounts:{namespace}"));
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
///
/// # Errors
/// If the log is malformed.
pub fn forbidden_requests(log: &str) -> Result<Vec<String>> {
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
        let log = r#"{"verb":"patch","requestURI":"/api/v1/persistentvolumes/a","user":{"username":"u"},"responseStatus":{"metadata":{},"code":200}}
{"verb":"create","requestURI":"/api/v1/persistentvolumes","user":{"username":"u"},"responseStatus":{"metadata":{},"status":"Failure","code":403}}
"#;
        assert_eq!(forbidden_requests(log).unwrap(), ["u: create /api/v1/persistentvolumes"]);
        assert!(forbidden_requests("{}").is_err());
    }
}
