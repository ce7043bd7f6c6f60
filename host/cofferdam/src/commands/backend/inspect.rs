//! `cofferdam backend inspect`: the abilities and requested grants of a component.
//!
//! Imports and exports are read without running the component. Its description comes from a call of
//! `identity.describe`, with imports that cannot reach anything outside the sandbox.

use std::collections::HashMap;

use cofferdam_domain::storage::{
    Description, Feature,
    ability::{controller_capabilities, plugin_capabilities},
};
use cofferdam_wasm::{BackendConfig, ComponentInfo, Digest, Grant};
use serde_json::{Value, json};

use super::{component::ConfiguredComponent, csi, error::BackendCommandError};
use crate::{
    cli::backend::{InspectFlags, InspectFormat},
    client::one_line,
    error::CommandError,
    style::TerminalText,
    table::TextTable,
};

/// Version of the format of `inspect --output manifest`: the description of a driver for the role `node`.
const MANIFEST_VERSION: u32 = 1;

/// Result of inspecting a component.
struct ComponentReport {
    file: String,
    inspection: ComponentInfo,
    /// The component's description, or the error of the call.
    description: Result<Description, String>,
}

/// Inspects a component; returns the text to print.
///
/// # Errors
/// [`CommandError`] if a flag or the configuration is invalid, if the file is not a component that implements
/// the contract, or if the output is a manifest and the component cannot describe itself.
pub(crate) async fn inspect(
    flags: InspectFlags,
    environment: &HashMap<String, String>,
) -> Result<TerminalText, CommandError> {
    if csi::is_socket(&flags.component.file) {
        return csi::inspect(&flags.component, flags.output, environment).await;
    }
    let component = ConfiguredComponent::open(&flags.component, environment)?;
    let inspected = component.engine.inspect(component.source.clone(), &component.config.limits).await;
    let inspection = inspected
        .map_err(|source| CommandError::Component { name: component.name.clone(), source: source.into() })?;
    let BackendConfig { settings, limits, .. } = component.config;
    let described = component.engine.describe(component.source, settings, limits).await;
    let description = described.map_err(|error| one_line(&error));
    let report =
        ComponentReport { file: flags.component.file.display().to_string(), inspection, description };
    match flags.output {
        InspectFormat::Text => Ok(report.text()),
        InspectFormat::Json => Ok(TerminalText::from_json(&report.json())),
        InspectFormat::Manifest => report.manifest(),
    }
}

fn names<T: ToString>(items: impl IntoIterator<Item = T>) -> Vec<String> {
    items.into_iter().map(|item| item.to_string()).collect()
}

impl ComponentReport {
    fn grants(&self) -> Vec<String> {
        names(self.inspection.interfaces.grants.iter().map(|grant| grant.as_str()))
    }

    /// Requested grants that are not granted by default.
    fn grants_by_configuration(&self) -> Vec<String> {
        let by_default = Grant::DEFAULT;
        let grants = self.inspection.interfaces.grants.iter().filter(|grant| !by_default.contains(grant));
        names(grants.map(|grant| grant.as_str()))
    }

    /// The key of the configuration that grants the secrets of classes, if the component can use secrets.
    fn optional_grants(&self) -> Vec<String> {
        let uses_secrets = self.inspection.interfaces.grants.contains(&Grant::Secrets);
        uses_secrets.then(|| "class-secrets".to_owned()).into_iter().collect()
    }

    fn abilities(&self) -> Vec<String> {
        names(&self.inspection.interfaces.abilities)
    }

    fn controller_capabilities(&self, description: &Description) -> Vec<String> {
        let capabilities = controller_capabilities(&self.inspection.interfaces.abilities, description);
        names(capabilities.into_iter().map(|capability| capability.as_str()))
    }

    fn plugin_capabilities(&self, description: &Description) -> Vec<String> {
        let capabilities = plugin_capabilities(&self.inspection.interfaces.abilities, description);
        names(capabilities.into_iter().map(|capability| capability.as_str()))
    }

    /// Features of the description that this version of Cofferdam does not know.
    fn unknown_features(description: &Description) -> Vec<String> {
        let known = |name: &&String| Feature::ALL.iter().any(|feature| feature.as_str() == *name);
        description.features.iter().filter(|name| !known(name)).cloned().collect()
    }

    fn inert_imports(&self) -> Vec<String> {
        names(self.inspection.interfaces.inert_imports())
    }

    fn json(&self) -> Value {
        let ComponentInfo { digest, size, .. } = &self.inspection;
        let description = match &self.description {
            Ok(description) => json!({
                "driver": description.name,
                "version": description.version,
                "placement": description.placement,
                "topologyKeys": description.topology_keys,
                "volumesPerNode": description.volumes_per_node,
                "features": description.features,
                "unknownFeatures": Self::unknown_features(description),
                "csiControllerCapabilities": self.controller_capabilities(description),
                "csiPluginCapabilities": self.plugin_capabilities(description),
            }),
            Err(problem) => json!({ "error": problem }),
        };
        json!({
            "file": self.file,
            "digest": digest.to_string(),
            "sizeBytes": size,
            "contract": "cofferdam:storage@0.1.0",
            "description": description,
            "abilities": self.abilities(),
            "grants": {
                "requested": self.grants(),
                "requireConfiguration": self.grants_by_configuration(),
                "optional": self.optional_grants(),
            },
            "imports": { "all": self.inspection.interfaces.imports, "inert": self.inert_imports() },
            "exports": self.inspection.interfaces.exports,
        })
    }

    /// The manifest for the role `node`, which serves a driver without running it.
    fn manifest(&self) -> Result<TerminalText, CommandError> {
        let description =
            self.description.as_ref().map_err(|problem| BackendCommandError::Describe(problem.clone()))?;
        let digest: Digest = self.inspection.digest;
        let manifest = json!({
            "manifestVersion": MANIFEST_VERSION,
            "driver": description.name,
            "version": description.version,
            "digest": digest.to_string(),
            "placement": description.placement,
            "topologyKeys": description.topology_keys,
            "volumesPerNode": description.volumes_per_node,
            "features": description.features,
            "abilities": self.abilities(),
            "grants": self.grants(),
        });
        Ok(TerminalText::from_json(&manifest))
    }

    fn text(&self) -> TerminalText {
        let ComponentInfo { digest, size, .. } = &self.inspection;
        let list =
            |items: Vec<String>| if items.is_empty() { "nothing".to_owned() } else { items.join(", ") };
        let mut rows = vec![
            ("file", self.file.clone()),
            ("digest", digest.to_string()),
            ("size", format!("{} KiB", size.div_ceil(1024))),
            ("contract", "cofferdam:storage@0.1.0".to_owned()),
        ];
        match &self.description {
            Ok(description) => {
                let placement = json!(description.placement);
                rows.push((
                    "driver",
                    format!(
                        "{} {} ({})",
                        description.name,
                        description.version,
                        placement.as_str().unwrap_or_default()
                    ),
                ));
                rows.push(("abilities", list(self.abilities())));
                rows.push(("features", list(description.features.clone())));
                rows.push(("CSI controller", list(self.controller_capabilities(description))));
                rows.push(("CSI plugin", list(self.plugin_capabilities(description))));
                if !description.topology_keys.is_empty() {
                    rows.push(("topology", description.topology_keys.join(", ")));
                }
                if let Some(volumes) = description.volumes_per_node {
                    rows.push(("max volumes per node", volumes.to_string()));
                }
                let unknown = Self::unknown_features(description);
                if !unknown.is_empty() {
                    rows.push(("unknown features", unknown.join(", ")));
                }
            }
            Err(problem) => {
                rows.push(("abilities", list(self.abilities())));
                rows.push(("description", format!("none: {problem}")));
            }
        }
        rows.push(("requested grants", list(self.grants())));
        rows.push(("grants that need configuration", list(self.grants_by_configuration())));
        rows.push(("optional grants", list(self.optional_grants())));
        rows.push(("inert imports", list(self.inert_imports())));
        let mut table = TextTable::without_header();
        rows.into_iter().for_each(|(name, value)| table.push([name.to_owned(), value]));
        table.to_text()
    }
}
