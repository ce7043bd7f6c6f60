//! The commands of `docs/csi-drivers.md`, run as the page prints them. Only names are replaced: those of the
//! driver, the namespace, the account and the role.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use kube::{Api, ResourceExt as _, api::ListParams};

use crate::{
    control_plane::{ApiUser, ControlPlane},
    namespaces, process,
    process::{CommandSpec, ManagedProcess},
    run::SuiteRun,
    wait::until,
};

const GUIDE: &str = include_str!("../../../../../../docs/csi-drivers.md");
/// Role, namespace and account in the commands of the guide.
const GUIDE_ROLE: &str = "--role provisioner";
const GUIDE_NAMESPACE: &str = "--namespace storage";
/// Start of the command of the roll back, and its driver.
const GUIDE_STATUS: &str = "cofferdam status --driver";
const GUIDE_DRIVER: &str = "array.example.com";
pub(super) const ACCOUNT: &str = "array-controller";
/// Start of the log line that names the missing rights.
const MISSING: &str = "the account lacks rights: ";
const TIMEOUT: Duration = Duration::from_secs(60);

/// Grants the rights of a role to an account: the command of step 3, with the role, the namespace of this
/// suite and the account, and with `--secret-namespaces` as the guide says.
pub(super) async fn grant(
    run: &SuiteRun,
    plane: &ControlPlane,
    role: &str,
    secret_namespaces: &[String],
    account: &str,
) -> Result<()> {
    let command = format!("set -o pipefail; {}", grant_command(role, secret_namespaces, account)?);
    shell(run, plane, &command).await.map(drop)
}

fn grant_command(role: &str, secret_namespaces: &[String], account: &str) -> Result<String> {
    let command = GUIDE
        .lines()
        .map(str::trim)
        .find(|line| line.starts_with("cofferdam render rbac ") && line.contains("kubectl"))
        .context("docs/csi-drivers.md: no command with render rbac and kubectl")?;
    let roles = format!("--role {role} --secret-namespaces={}", secret_namespaces.join(","));
    let namespace = format!("--namespace {}", namespaces::COFFERDAM);
    substitute_names(command, &[(GUIDE_ROLE, &roles), (GUIDE_NAMESPACE, &namespace), (ACCOUNT, account)])
}

/// Replaces names in a command of the guide.
///
/// # Errors
/// If the command has not got one of them.
fn substitute_names(command: &str, names: &[(&str, &str)]) -> Result<String> {
    let mut text = command.to_owned();
    for (name, replacement) in names {
        ensure!(text.contains(name), "docs/csi-drivers.md: {command}: expected {name}");
        text = text.replace(name, replacement);
    }
    Ok(text)
}

/// Runs a command of the guide as administrator, with `cofferdam` and kubectl in its `PATH`.
async fn shell(run: &SuiteRun, plane: &ControlPlane, command: &str) -> Result<String> {
    let programs = [run.program().parent(), Some(run.peers().directory())];
    let programs: Vec<_> = programs.into_iter().flatten().map(|path| path.display().to_string()).collect();
    let path = format!("PATH={}:/usr/bin:/bin", programs.join(":"));
    let kubeconfig = format!("KUBECONFIG={}", plane.kubeconfig(ApiUser::Admin)?.display());
    let home = format!("HOME={}", run.scratch().display());
    process::run_to_completion("/usr/bin/env", &[&path, &kubeconfig, &home, "bash", "-c", command]).await
}

/// The first words of the lines that the commands of step 1 print.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ClusterLists {
    /// StorageClasses whose parameters name Secrets.
    pub(super) secret_classes: BTreeSet<String>,
    pub(super) in_tree_classes: BTreeSet<String>,
    /// PersistentVolumes without a CSI driver.
    pub(super) in_tree_volumes: BTreeSet<String>,
    /// Column CAPACITY of each CSIDriver.
    pub(super) capacities: BTreeMap<String, String>,
}

impl ClusterLists {
    /// Runs the commands of step 1.
    pub(super) async fn read(run: &SuiteRun, plane: &ControlPlane) -> Result<Self> {
        let [secrets, classes, volumes, drivers] = list_commands()?;
        let first_words = async |command: &str| {
            let text = list(run, plane, command).await?;
            Ok::<_, anyhow::Error>(text.lines().filter_map(first_word).collect::<BTreeSet<_>>())
        };
        let capacities = list(run, plane, drivers).await?;
        // The first line is the header.
        let capacities = capacities.lines().skip(1).filter_map(|line| {
            let (name, capacity) = line.split_once(' ')?;
            Some((name.to_owned(), capacity.trim().to_owned()))
        });
        Ok(Self {
            secret_classes: first_words(secrets).await?,
            in_tree_classes: first_words(classes).await?,
            in_tree_volumes: first_words(volumes).await?,
            capacities: capacities.collect(),
        })
    }
}

fn first_word(line: &str) -> Option<String> {
    line.split_whitespace().next().map(str::to_owned)
}

/// The commands of step 1, in the order of the guide.
fn list_commands() -> Result<[&'static str; 4]> {
    let commands: Vec<_> =
        GUIDE.lines().map(str::trim).filter(|line| line.starts_with("kubectl get ")).collect();
    let count = commands.len();
    commands
        .try_into()
        .ok()
        .with_context(|| format!("docs/csi-drivers.md has {count} commands `kubectl get`: expected 4"))
}

/// Runs a command that ends with 1 if grep finds no line. The result is an error only if kubectl fails.
async fn list(run: &SuiteRun, plane: &ControlPlane, command: &str) -> Result<String> {
    shell(run, plane, &format!("{command}; exit ${{PIPESTATUS[0]}}")).await
}

/// Waits until `cofferdam status` shows claims of the driver, as step 6 says.
pub(super) async fn wait_claims_shown(run: &SuiteRun, plane: &ControlPlane, driver: &str) -> Result<()> {
    let command = status_command()?;
    until(&format!("{command} shows claims of {driver}"), TIMEOUT, async || {
        let text = shell(run, plane, command).await?;
        driver_line(&text, driver, "claims").map(drop)
    })
    .await
}

/// Waits until the command of the roll back shows that the intent journal of the driver is empty.
pub(super) async fn wait_journal_empty(run: &SuiteRun, plane: &ControlPlane, driver: &str) -> Result<()> {
    let command = journal_command(driver)?;
    until(&format!("{command} shows the journal with 0 intents"), TIMEOUT, async || {
        let text = shell(run, plane, &command).await?;
        let intents = driver_line(&text, driver, "journal")?;
        ensure!(intents == "0 intents", "it has {intents}");
        Ok(())
    })
    .await
}

fn status_command() -> Result<&'static str> {
    inline_code("cofferdam status").find(|code| *code == "cofferdam status").context("no cofferdam status")
}

fn journal_command(driver: &str) -> Result<String> {
    let command = inline_code(GUIDE_STATUS)
        .next()
        .with_context(|| format!("docs/csi-drivers.md: no `{GUIDE_STATUS} …`"))?;
    let namespace = format!("--namespace {}", namespaces::COFFERDAM);
    substitute_names(command, &[(GUIDE_DRIVER, driver), (GUIDE_NAMESPACE, &namespace)])
}

/// The texts between backquotes that start with a prefix.
fn inline_code(prefix: &str) -> impl Iterator<Item = &'static str> {
    GUIDE
        .lines()
        .flat_map(|line| line.split('`').skip(1).step_by(2))
        .filter(move |code| code.starts_with(prefix))
}

/// The value of a line in the section of a driver, as `cofferdam status` prints it.
///
/// # Errors
/// If the driver has no section, or the section has no such line.
fn driver_line<'a>(text: &'a str, driver: &str, label: &str) -> Result<&'a str> {
    let mut lines = text.lines().skip_while(|line| line.split(' ').next() != Some(driver));
    lines.next().with_context(|| format!("no section of {driver} in {text}"))?;
    lines
        .take_while(|line| line.starts_with(' '))
        .find_map(|line| line.trim_start().strip_prefix(label)?.strip_prefix(' '))
        .map(str::trim)
        .with_context(|| format!("no line {label:?} of {driver} in {text}"))
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

/// The rights of all rules that [`grant`] has created for an account, as the log names them.
pub(super) async fn granted_rights(plane: &ControlPlane, account: &str) -> Result<BTreeSet<String>> {
    let is_granted = |name: &str| name.split(':').next_back() == Some(account);
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
    fn the_guide_has_the_commands() {
        assert_eq!(
            grant_command("attacher", &["a".to_owned(), "b".to_owned()], "other").unwrap(),
            "cofferdam render rbac --role attacher --secret-namespaces=a,b --namespace cofferdam-system \
             --service-account other | kubectl auth reconcile -f -"
        );
        for (command, resource) in list_commands().unwrap().iter().zip([
            "storageclass",
            "storageclass",
            "persistentvolume",
            "csidriver",
        ]) {
            assert!(command.starts_with(&format!("kubectl get {resource} ")), "{command}: {resource}");
        }
        assert_eq!(status_command().unwrap(), "cofferdam status");
        assert_eq!(
            journal_command("d.example.com").unwrap(),
            "cofferdam status --driver d.example.com --namespace cofferdam-system"
        );
    }

    #[test]
    fn a_line_belongs_to_the_section_of_its_driver() {
        let text = "a.b  in-tree\n  claims   1 bound\na  x\n  claims       2 bound\n  journal      0 intents\n\n\
                    c\n  waiting  1\n";
        assert_eq!(driver_line(text, "a", "claims").unwrap(), "2 bound");
        assert_eq!(driver_line(text, "a", "journal").unwrap(), "0 intents");
        assert!(driver_line(text, "a.b", "journal").is_err());
        assert!(driver_line(text, "a", "waiting").is_err());
        assert!(driver_line(text, "b", "claims").is_err());
    }
}
