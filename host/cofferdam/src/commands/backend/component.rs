//! A component with what the command line and the configuration give it.

use std::{
    collections::{BTreeSet, HashMap},
    path::Path,
    sync::Arc,
};

use cofferdam_domain::storage::{Secret, Secrets};
use cofferdam_wasm::{BackendConfig, ComponentSource, Engine, Grant, OriginConfig, PoolConfig, WasmBackend};
use prometheus_client::registry::Registry;

use super::{BackendCommandError, arguments::unique_pairs, flags::ComponentFlags};
use crate::{
    cli::ProcessFlags,
    config::{ResolvedConfig, backend_name, check_backend_location},
    drivers::{self, DriverLoader},
    error::CommandError,
    logging,
};

/// A component, and what it is loaded with.
pub(crate) struct ConfiguredComponent {
    /// The engine that runs it.
    pub(crate) engine: Engine,
    /// What it is called in messages and in the configuration.
    pub(crate) name: String,
    /// Where it is.
    pub(crate) source: ComponentSource,
    /// What it is told and granted.
    pub(crate) config: BackendConfig,
    /// The secrets of its calls.
    pub(crate) secrets: Secrets,
}

impl ConfiguredComponent {
    /// Reads flags and configuration.
    ///
    /// # Errors
    /// [`Failure`], one line.
    pub(crate) fn open(
        flags: &ComponentFlags,
        environment: &HashMap<String, String>,
    ) -> Result<Self, CommandError> {
        let (name, resolved) = load_configuration(flags, environment)?;
        let engine = DriverLoader::new(&resolved.configuration, &mut Registry::default())?.engine;
        let section = resolved.configuration.backend.get(&name).cloned().unwrap_or_default();
        let mut config = drivers::backend_config(&name, &section)?;
        config.settings.extend(unique_pairs("--setting", flags.settings.clone())?);
        config.grants.extend(parse_grants(&flags.grants)?);
        apply_flags(&mut config, flags);
        let secrets = resolve_secrets(&flags.secrets, environment)?;
        Ok(Self { engine, name, source: ComponentSource::File(flags.file.clone()), config, secrets })
    }

    /// Loads the component.
    ///
    /// # Errors
    /// [`Failure::Backend`]
    pub(crate) async fn load(&self) -> Result<Arc<WasmBackend>, CommandError> {
        let result = self.engine.load(self.source.clone(), self.config.clone()).await;
        result.map_err(|source| CommandError::Component { name: self.name.clone(), source })
    }
}

/// The name of a driver, and the configuration with its section. The log is started.
///
/// # Errors
/// [`Failure`], one line.
pub(crate) fn load_configuration(
    flags: &ComponentFlags,
    environment: &HashMap<String, String>,
) -> Result<(String, ResolvedConfig), CommandError> {
    let file = flags.file.display().to_string();
    // Before the configuration does, which would name a flag that nobody gave.
    check_backend_location(&file).map_err(BackendCommandError::Argument)?;
    let name = flags.name.clone().unwrap_or_else(|| backend_name(&file));
    if let Some(path) = &flags.config {
        check_section(path, &name)?;
    }
    let process = ProcessFlags {
        config: flags.config.clone(),
        backend: vec![format!("{name}={file}")],
        compilation_cache: flags.compilation_cache.clone(),
        ..ProcessFlags::default()
    };
    // Roles and their settings may stand in the file; only the driver's section is used.
    let resolved = ResolvedConfig::for_dev(&process, environment)?;
    logging::start(&resolved.configuration);
    Ok((name, resolved))
}

/// What stands behind the imports, over that of the configuration.
fn apply_flags(config: &mut BackendConfig, flags: &ComponentFlags) {
    if let Some(file) = &flags.state {
        config.state.file = Some(file.clone());
    }
    if let Some(directory) = &flags.pool {
        let configured = config.pool.take();
        let pool = PoolConfig { directory: directory.clone(), capacity: None, image_bytes_max: None };
        config.pool = Some(
            configured.map_or(pool, |configured| PoolConfig { directory: directory.clone(), ..configured }),
        );
    }
    config.http.origins.retain(|known| !flags.origins.contains(&known.origin));
    let addresses = (!flags.origin_addresses.is_empty()).then(|| flags.origin_addresses.clone());
    config.http.origins.extend(flags.origins.iter().map(|origin| OriginConfig {
        origin: origin.clone(),
        addresses: addresses.clone(),
        ..OriginConfig::default()
    }));
}

fn parse_grants(names: &[String]) -> Result<BTreeSet<Grant>, BackendCommandError> {
    let grant = |name: &String| {
        Grant::ALL.into_iter().find(|grant| grant.as_str() == name).ok_or_else(|| {
            let known: Vec<_> = Grant::ALL.into_iter().map(Grant::as_str).collect();
            BackendCommandError::Argument(format!("--grant {name:?}: expected one of {}", known.join(", ")))
        })
    };
    names.iter().map(grant).collect()
}

/// Refuses a file that says nothing of the component: it would be given something else than what is meant. A
/// file that cannot be read is told by whoever reads it in earnest.
fn check_section(path: &Path, name: &str) -> Result<(), BackendCommandError> {
    let Some(values) = std::fs::read_to_string(path).ok().and_then(|text| text.parse::<toml::Table>().ok())
    else {
        return Ok(());
    };
    let sections = values.get("backend").and_then(toml::Value::as_table);
    if sections.is_some_and(|sections| sections.contains_key(name)) {
        return Ok(());
    }
    let known: Vec<_> =
        sections.into_iter().flat_map(|sections| sections.keys()).map(String::as_str).collect();
    let known = if known.is_empty() { "no [backend.NAME] at all".to_owned() } else { known.join(", ") };
    Err(BackendCommandError::Argument(format!(
        "{} has no section [backend.{name}]; it has {known}: give its name with --name",
        path.display()
    )))
}

/// Secrets by name. Errors name the secret and where it was looked for, and nothing of what was found.
///
/// # Errors
/// [`VendorError::Argument`]
pub(crate) fn resolve_secrets(
    flags: &[(String, String)],
    environment: &HashMap<String, String>,
) -> Result<Secrets, BackendCommandError> {
    unique_pairs("--secret", flags.to_vec())?
        .into_iter()
        .map(|(name, location)| {
            let failed =
                |problem: String| BackendCommandError::Argument(format!("--secret {name}: {problem}"));
            let text = if let Some(file) = location.strip_prefix('@') {
                drivers::read_secret(Path::new(file)).map_err(failed)?
            } else if let Some(variable) = location.strip_prefix('$') {
                let value = environment.get(variable);
                value.cloned().ok_or_else(|| failed(format!("the variable {variable} is not set")))?
            } else {
                return Err(failed(
                    "expected @FILE or $VARIABLE: what stands on a command line is no secret".to_owned(),
                ));
            };
            Ok((name, Secret::new(text)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct TestCommand {
        #[command(flatten)]
        component: ComponentFlags,
    }

    fn apply(config: BackendConfig, flags: &[&str]) -> BackendConfig {
        let line = TestCommand::try_parse_from([&["line", "a.wasm"], flags].concat()).unwrap();
        let mut config = config;
        apply_flags(&mut config, &line.component);
        config
    }

    #[test]
    fn flags_alone_configure_a_component() {
        let plain = apply(BackendConfig::default(), &[]);
        assert_eq!((plain.state.file, plain.pool, plain.http.origins), (None, None, Vec::new()));
        let flags = ["--state", "s.redb", "--pool", "/p", "--origin", "http://a", "--origin", "https://b"];
        let addresses = ["--origin-address", "127.0.0.1", "--origin-address", "10.0.0.0/8"];
        let config = apply(BackendConfig::default(), &[&flags[..], &addresses].concat());
        assert_eq!(config.state.file.as_deref(), Some(Path::new("s.redb")));
        assert_eq!(config.pool.as_ref().map(|pool| pool.directory.as_path()), Some(Path::new("/p")));
        let origin = |origin: &str| OriginConfig {
            origin: origin.to_owned(),
            addresses: Some(vec!["127.0.0.1".to_owned(), "10.0.0.0/8".to_owned()]),
            ..OriginConfig::default()
        };
        assert_eq!(config.http.origins, [origin("http://a"), origin("https://b")]);
        let grants = config.effective_grants();
        assert!(grants.contains(&Grant::Http) && grants.contains(&Grant::Pool));
        assert!(TestCommand::try_parse_from(["line", "a.wasm", "--origin-address", "::1"]).is_err());
    }

    #[test]
    fn flags_override_the_configuration() {
        let known = |origin: &str| OriginConfig {
            origin: origin.to_owned(),
            ca_file: Some("ca.pem".into()),
            ..OriginConfig::default()
        };
        let mut config = BackendConfig::default();
        config.http.origins = vec![known("https://a"), known("https://b")];
        config.pool = Some(PoolConfig { directory: "/q".into(), capacity: Some(7), image_bytes_max: None });
        let config = apply(config, &["--origin", "https://a", "--pool", "/p"]);
        let from_flag = OriginConfig { origin: "https://a".to_owned(), ..OriginConfig::default() };
        assert_eq!(config.http.origins, [known("https://b"), from_flag]);
        let pool = config.pool.unwrap();
        assert_eq!((pool.directory.as_path(), pool.capacity), (Path::new("/p"), Some(7)));
    }
}
