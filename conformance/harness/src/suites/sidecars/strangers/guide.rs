//! The rights of the driver's pod, granted with the command that `docs/csi-drivers.md` prints.

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use kube::{Api, ResourceExt as _, api::ListParams};

use crate::{
    control_plane::{ApiUser, ControlPlane},
    namespaces, process,
    process::{CommandSpec, ManagedProcess},
    run::SuiteRun,
};

const GUIDE: &str = include_str!("../../../../../../docs/csi-drivers.md");
/// Role, namespace and account in the command of the guide.
const GUIDE_ROLE: &str = "--role provisioner";
const GUIDE_NAMESPACE: &str = "--namespace storage";
pub(super) const ACCOUNT: &str = "array-controller";
/// Start of the log line that names the missing rights.
const MISSING: &str = "the account lacks rights: ";
const TIMEOUT: Duration = Duration::from_secs(60);

/// Grants the rights of a role: the command of the guide, with the role and the namespace of this suite, and
/// with `--secret-namespaces` as the guide says.
pub(super) async fn grant(
    run: &SuiteRun,
    plane: &ControlPlane,
    role: &str,
    secret_namespaces: &[String],
) -> Result<()> {
    let command = command(role, secret_namespaces)?;
    let programs = [run.program().parent(), Some(run.peers().directory())];
    let programs: Vec<_> = programs.into_iter().flatten().map(|path| path.display().to_string()).collect();
    let path = format!("PATH={}:/usr/bin:/bin", programs.join(":"));
    let kubeconfig = format!("KUBECONFIG={}", plane.kubeconfig(ApiUser::Admin)?.display());
    let home = format!("HOME={}", run.scratch().display());
    process::run_to_completion(
        "/usr/bin/env",
        &[&path, &kubeconfig, &home, "bash", "-o", "pipefail", "-c", &command],
    )
    .await?;
    Ok(())
}

fn command(role: &str, secret_namespaces: &[String]) -> Result<String> {
    let command = GUIDE
        .lines()
        .map(str::trim)
        .find(|line| line.starts_with("cofferdam render rbac ") && line.contains("kubectl"))
        .context("docs/csi-drivers.md: no command with render rbac and kubectl")?;
    for part in [GUIDE_ROLE, GUIDE_NAMESPACE, ACCOUNT] {
        ensure!(command.contains(part), "docs/csi-drivers.md: {command}: expected {part}");
    }
    let mut role = format!("--role {role}");
    if !secret_namespaces.is_empty() {
        role = format!("{role} --secret-namespaces {}", secret_namespaces.join(","));
    }
    let namespace = format!("--namespace {}", namespaces::COFFERDAM);
    Ok(command.replace(GUIDE_ROLE, &role).replace(GUIDE_NAMESPACE, &namespace))
}

/// Runs a process whose account has no rights, to its end. Returns the missing rights that it names.
pub(super) async fn missing_rights(run: &SuiteRun, spec: CommandSpec) -> Result<BTreeSet<String>> {
    let mut process = ManagedProcess::start(run, spec)?;
    let status = process.wait_exit(TIMEOUT).await?;
    ensure!(status.code() == Some(1), "a process without rights ended with {status}");
    named_rights(process.log())
}

fn named_rights(log: &Path) -> Result<BTreeSet<String>> {
    let text = fs::read_to_string(log)?;
    let (_, rest) =
        text.split_once(MISSING).with_context(|| format!("no {MISSING:?} in {}", log.display()))?;
    let (rights, _) = rest.split_once("; ").context("an incomplete line")?;
    Ok(rights.split(", ").map(str::to_owned).collect())
}

/// The rights of all rules that [`grant`] has created, as the log names them.
pub(super) async fn granted_rights(plane: &ControlPlane) -> Result<BTreeSet<String>> {
    let is_granted = |name: &str| name.split(':').next_back() == Some(ACCOUNT);
    let mut rights = BTreeSet::new();
    for role in Api::<ClusterRole>::all(plane.client().clone()).list(&ListParams::default()).await? {
        if is_granted(&role.name_any()) {
            rights.extend(role.rules.iter().flatten().flat_map(|rule| rights_of(rule, "")));
        }
    }
    for role in Api::<Role>::all(plane.client().clone()).list(&ListParams::default()).await? {
        if is_granted(&role.name_any()) {
            let place = format!(" in namespace {}", role.namespace().unwrap_or_default());
            rights.extend(role.rules.iter().flatten().flat_map(|rule| rights_of(rule, &place)));
        }
    }
    Ok(rights)
}

fn rights_of(rule: &PolicyRule, place: &str) -> Vec<String> {
    let names = match rule.resource_names.as_deref() {
        None | Some([]) => vec![String::new()],
        Some(names) => names.iter().map(|name| format!(" {name}")).collect(),
    };
    let mut rights = Vec::new();
    for resource in rule.resources.iter().flatten() {
        for name in &names {
            rights.extend(rule.verbs.iter().map(|verb| format!("{verb} {resource}{name}{place}")));
        }
    }
    rights
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guide_has_the_command() {
        assert_eq!(
            command("attacher", &["a".to_owned(), "b".to_owned()]).unwrap(),
            "cofferdam render rbac --role attacher --secret-namespaces a,b --namespace cofferdam-system \
             --service-account array-controller | kubectl auth reconcile -f -"
        );
    }
}
