//! `cofferdam backend inspect` and `call` on an existing CSI driver: the command line has a socket in place
//! of a component's file.

use std::{collections::HashMap, path::Path, sync::Arc, time::Duration};

use cofferdam_backend::Backend as _;
use cofferdam_csi::{Address, CsiBackend, CsiConfig};
use cofferdam_domain::storage::Secrets;
use prometheus_client::registry::Registry;
use serde_json::json;

use super::{component, error::BackendCommandError};
use crate::{
    cli::backend::{ComponentFlags, InspectFormat},
    drivers::{CsiTimeouts, DriverLoader, csi_config},
    error::CommandError,
    style::TerminalText,
    table::TextTable,
};

/// Timeout for the driver's socket to accept connections, and again for its Probe to report ready. `inspect`
/// also uses it as the timeout of a call.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns `true` if a file on the command line is the socket of a CSI driver: an address with a scheme,
/// `unix:`.
pub(crate) fn is_socket(file: &Path) -> bool {
    file.to_str().is_some_and(Address::has_scheme)
}

/// Connects to the driver and reads the secrets of the flags. Calls last at most `deadline`. Flags that are
/// for components only are an error.
///
/// # Errors
/// [`CommandError`], one line.
pub(crate) async fn connect(
    flags: &ComponentFlags,
    environment: &HashMap<String, String>,
    deadline: Duration,
) -> Result<(Arc<CsiBackend>, Secrets), CommandError> {
    if let Some(flag) = flags.values.first_component_flag() {
        let problem = format!("{flag} is for components: expected none for {}", flags.file.display());
        return Err(BackendCommandError::Argument(problem).into());
    }
    let (name, resolved) = component::load_configuration(flags, environment)?;
    let section = resolved.configuration.backend.get(&name).cloned().unwrap_or_default();
    let secrets = component::resolve_secrets(&flags.values.secrets, environment)?;
    let config = csi_config(&name, &section, CsiTimeouts { call: deadline, identity: deadline })?
        .ok_or_else(|| BackendCommandError::Argument(format!("{} is not a socket", flags.file.display())))?;
    let config =
        CsiConfig { connect_timeout: CONNECT_TIMEOUT, ready_timeout: Some(CONNECT_TIMEOUT), ..config };
    let loader = DriverLoader::new(&resolved.configuration, &mut Registry::default())?;
    Ok((loader.connect(&name, config).await?, secrets))
}

/// Describes a driver and its abilities; returns the text to print.
///
/// # Errors
/// [`CommandError`] if a flag or the configuration is invalid, if the output is a manifest, or if the
/// connection or a call fails.
pub(crate) async fn inspect(
    flags: &ComponentFlags,
    output: InspectFormat,
    environment: &HashMap<String, String>,
) -> Result<TerminalText, CommandError> {
    if output == InspectFormat::Manifest {
        let problem = "--output manifest is for components: a CSI driver has its own Node service";
        return Err(BackendCommandError::Argument(problem.to_owned()).into());
    }
    let (driver, _) = connect(flags, environment, CONNECT_TIMEOUT).await?;
    let description = driver.description();
    let abilities: Vec<_> = driver.abilities().iter().map(|ability| ability.as_str()).collect();
    let controller: Vec<_> = driver.controller_capabilities().map(|capability| capability.as_str()).collect();
    let plugin: Vec<_> = driver.plugin_capabilities().map(|capability| capability.as_str()).collect();
    if output == InspectFormat::Json {
        let output_json = json!({
            "socket": driver.address().to_string(),
            "description": {
                "driver": description.name,
                "version": description.version,
                "features": description.features,
                "csiControllerCapabilities": controller,
                "csiPluginCapabilities": plugin,
            },
            "abilities": abilities,
        });
        return Ok(TerminalText::from_json(&output_json));
    }
    let list = |items: &[&str]| if items.is_empty() { "nothing".to_owned() } else { items.join(", ") };
    let features: Vec<_> = description.features.iter().map(String::as_str).collect();
    let mut table = TextTable::without_header();
    for (name, value) in [
        ("socket", driver.address().to_string()),
        ("driver", format!("{} {}", description.name, description.version)),
        ("abilities", list(&abilities)),
        ("features", list(&features)),
        ("CSI controller", list(&controller)),
        ("CSI plugin", list(&plugin)),
    ] {
        table.push([name.to_owned(), value]);
    }
    Ok(table.to_text())
}
