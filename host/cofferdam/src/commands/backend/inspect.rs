//! `cofferdam backend inspect`: what a component can do and what it wants.
//!
//! What it imports and exports is read without running it. Who it is, it is asked as any component is, with
//! every import in place and nothing behind those that reach outside.

use std::{collections::HashMap, fmt::Write as _};

use cofferdam_domain::storage::{
    Description, Feature,
    ability::{controller_capabilities, plugin_capabilities},
};
use cofferdam_wasm::{BackendConfig, ComponentInfo, Digest, Grant};
use serde_json::{Value, json};

use super::{
    component::ConfiguredComponent,
    csi,
    flags::{InspectFlags, InspectFormat},
};
use crate::{client::one_line, error::CommandError};

/// Version of the manifest's format.
const MANIFEST_VERSION: u32 = 1;

/// What is known of a component.
struct ComponentReport {
    file: String,
    inspection: ComponentInfo,
    /// What it says of itself, or why it does not.
    description: Result<Description, String>,
}

/// Inspects a component; the text is what is printed.
///
/// # Errors
/// [`Failure`], when the file is no component of the contract.
pub(crate) async fn inspect(
    flags: InspectFlags,
    environment: &HashMap<String, String>,
) -> Result<String, CommandError> {
    if csi::is_socket(&flags.component.file) {
        return csi::inspect(&flags.component, flags.output, environment).await;
    }
    let component = ConfiguredComponent::open(&flags.component, environment)?;
    let inspected = component.engine.inspect(component.source.clone(), &component.config.limits).await;
    let inspection =
        inspected.map_err(|source| CommandError::Component { name: component.name.clone(), source })?;
    let BackendConfig { settings, limits, .. } = component.config;
    let described = component.engine.describe(component.source, settings, limits).await;
    let description = described.map_err(|error| one_line(&error));
    let report =
        ComponentReport { file: flags.component.file.display().to_string(), inspection, description };
    match flags.output {
        InspectFormat::Text => Ok(report.text()),
        InspectFormat::Json => Ok(format!("{:#}\n", report.json())),
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

    /// Imports that are granted only by configuration.
    fn grants_by_configuration(&self) -> Vec<String> {
        let by_default = Grant::DEFAULT;
        let grants = self.inspection.interfaces.grants.iter().filter(|grant| !by_default.contains(grant));
        names(grants.map(|grant| grant.as_str()))
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

    /// Features that mean nothing to this version.
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
            "grants": { "wanted": self.grants(), "onlyByConfiguration": self.grants_by_configuration() },
            "imports": { "all": self.inspection.interfaces.imports, "inert": self.inert_imports() },
            "exports": self.inspection.interfaces.exports,
        })
    }

    /// What a node needs to know of a driver that it never runs.
    fn manifest(&self) -> Result<String, CommandError> {
        let description =
            self.description.as_ref().map_err(|problem| CommandError::DescribeFailed(problem.clone()))?;
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
        });
        Ok(format!("{manifest:#}\n"))
    }

    fn text(&self) -> String {
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
                rows.push(("can also", list(self.abilities())));
                rows.push(("features", list(description.features.clone())));
                rows.push(("CSI controller", list(self.controller_capabilities(description))));
                rows.push(("CSI plugin", list(self.plugin_capabilities(description))));
                if !description.topology_keys.is_empty() {
                    rows.push(("topology", description.topology_keys.join(", ")));
                }
                if let Some(volumes) = description.volumes_per_node {
                    rows.push(("volumes a node", volumes.to_string()));
                }
                let unknown = Self::unknown_features(description);
                if !unknown.is_empty() {
                    rows.push(("unknown features", unknown.join(", ")));
                }
            }
            Err(problem) => {
                rows.push(("can also", list(self.abilities())));
                rows.push(("description", format!("none: {problem}")));
            }
        }
        rows.push(("wants", list(self.grants())));
        rows.push(("only if granted", list(self.grants_by_configuration())));
        rows.push(("linked inert", list(self.inert_imports())));
        let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
        let mut text = String::new();
        for (name, value) in rows {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{name:width$}  {value}");
        }
        text
    }
}
