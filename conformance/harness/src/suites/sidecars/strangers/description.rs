//! The description of a CSI driver that is no part of this repository: a JSON file.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

/// A driver, its programs, and what its manifests give its sidecars. Texts of commands and of environments
/// may contain `${…}`, see [`Variables`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct DriverDescription {
    /// Name of the driver.
    pub(super) driver: String,
    /// Name of the StorageClass of all claims.
    pub(super) class: String,
    /// Manifests with the StorageClass, and with the CSIDriver and Secrets if there are any. `kubectl apply`
    /// gets them in this order.
    pub(super) manifests: Vec<PathBuf>,
    /// Namespaces of the Secrets that the class names.
    #[serde(default)]
    pub(super) secret_namespaces: Vec<String>,
    /// A Secret value of the manifests that must not be found outside of its Secret.
    pub(super) planted_secret: Option<SecretKey>,
    /// Programs that start before the driver, such as a mock of its storage system.
    #[serde(default)]
    pub(super) services: Vec<ServiceDescription>,
    /// The controller service.
    pub(super) controller: CommandDescription,
    /// The node service on a real kubelet. `None` if the driver has none that runs on this machine.
    pub(super) node: Option<NodeService>,
    /// Simulated node to which volumes are attached if `node` is missing.
    pub(super) simulated_node: Option<SimulatedNode>,
    /// The sidecars of the driver's manifests: name, and arguments other than addresses and paths.
    pub(super) sidecars: BTreeMap<String, Vec<String>>,
    /// Command that prints a line for each volume at the storage system. Without it ListVolumes is called, if
    /// the driver has it.
    pub(super) list: Option<Vec<String>>,
    /// File to which the driver appends a JSON object per call with the key `method`. An object with `isEnd`
    /// is the end of a call.
    pub(super) call_log: Option<String>,
}

/// A key of a Secret. Its value has at least 24 letters and digits, and is nowhere else in the manifests.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct SecretKey {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) key: String,
}

/// A command and its environment.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct CommandDescription {
    pub(super) command: Vec<String>,
    #[serde(default)]
    pub(super) environment: BTreeMap<String, String>,
}

/// A program that is ready when it listens.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct ServiceDescription {
    /// Name of the log.
    pub(super) name: String,
    pub(super) command: Vec<String>,
    #[serde(default)]
    pub(super) environment: BTreeMap<String, String>,
    /// Port on 127.0.0.1.
    pub(super) port: u16,
}

/// The program that serves the Node service.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) enum NodeService {
    /// The program of the controller, on the same socket.
    Controller,
    /// A program of its own.
    Program(CommandDescription),
}

/// The Node and CSINode that kubelet would create.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct SimulatedNode {
    /// The driver's ID of the node.
    pub(super) id: String,
    /// Topology of the driver: labels of the Node.
    #[serde(default)]
    pub(super) topology: BTreeMap<String, String>,
}

/// The values of `${…}` by name.
pub(super) type Variables = BTreeMap<&'static str, String>;

impl DriverDescription {
    /// Reads a description. Relative paths of manifests, and relative programs with a slash, are relative to
    /// its directory.
    ///
    /// # Errors
    /// If it cannot be read or parsed, or contradicts itself.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let path = fs::canonicalize(path).with_context(|| format!("no description {}", path.display()))?;
        let directory = path.parent().context("a file without a directory")?;
        let mut description: Self = serde_json::from_slice(&fs::read(&path)?)
            .with_context(|| format!("{} is not a description of a driver", path.display()))?;
        for manifest in &mut description.manifests {
            *manifest = directory.join(&manifest);
        }
        let node = match &mut description.node {
            Some(NodeService::Program(program)) => Some(&mut program.command),
            _ => None,
        };
        let services = description.services.iter_mut().map(|service| &mut service.command);
        let commands = services.chain([&mut description.controller.command]).chain(node);
        for command in commands.chain(&mut description.list) {
            let program = command.first_mut().context("an empty command")?;
            if program.contains('/') && !program.starts_with('$') {
                *program = directory.join(&program).display().to_string();
            }
        }
        ensure!(description.sidecars.contains_key("csi-provisioner"), "no csi-provisioner in `sidecars`");
        ensure!(
            description.node.is_none() || description.simulated_node.is_none(),
            "`node` and `simulated-node` exclude each other"
        );
        Ok(description)
    }
}

/// Replaces each `${name}` by the variable of that name.
///
/// # Errors
/// If there is no such variable.
pub(super) fn substitute(text: &str, variables: &Variables) -> Result<String> {
    let mut result = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let (name, remaining) = after.split_once('}').with_context(|| format!("{text}: no `}}`"))?;
        let names = || variables.keys().copied().collect::<Vec<_>>().join(", ");
        let value = variables
            .get(name)
            .with_context(|| format!("{text}: no variable {name:?}: expected one of {}", names()))?;
        result.push_str(before);
        result.push_str(value);
        rest = remaining;
    }
    result.push_str(rest);
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_replaced_and_unknown_ones_rejected() {
        let variables = Variables::from([("socket", "/run/s".to_owned()), ("node", "n".to_owned())]);
        assert_eq!(substitute("unix://${socket}?${node}$", &variables).unwrap(), "unix:///run/s?n$");
        let error = substitute("${sock}", &variables).unwrap_err().to_string();
        assert!(error.contains("expected one of node, socket"), "{error}");
        assert!(substitute("${socket", &variables).is_err());
    }

    #[test]
    fn every_description_is_valid() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../strangers");
        let paths = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        let descriptions: Vec<_> = paths.filter(|path| path.extension() == Some("json".as_ref())).collect();
        assert!(!descriptions.is_empty());
        for path in descriptions {
            let description = DriverDescription::read(&path).unwrap();
            assert!(description.manifests.iter().all(|manifest| manifest.is_file()), "{description:?}");
        }
    }
}
