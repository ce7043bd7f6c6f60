//! A component with its configuration from the command line and the configuration file.

use std::{
    collections::{BTreeSet, HashMap},
    path::Path,
    sync::Arc,
};

use cofferdam_domain::storage::{Secret, Secrets};
use cofferdam_wasm::{BackendConfig, ComponentSource, Engine, Grant, OriginConfig, PoolConfig, WasmBackend};
use prometheus_client::registry::Registry;

use super::{arguments::unique_pairs, error::BackendCommandError};
use crate::{
    cli::backend::{ComponentFlags, ComponentValueFlags},
    config::{BackendSection, CliValues, ResolvedConfig, SettingValue, backend_name, check_backend_location},
    drivers::{self, DriverLoader},
    error::CommandError,
    logging,
    secret::read_secret,
};

/// A component and its configuration.
pub(crate) struct ConfiguredComponent {
    /// Engine that runs the component.
    pub(crate) engine: Engine,
    /// Name of the section in the configuration, also used in messages.
    pub(crate) name: String,
    /// Location of the component.
    pub(crate) source: ComponentSource,
    /// Settings, grants, limits, state, pool and HTTP origins, from the configuration and the flags, and the
    /// secrets of the configuration.
    pub(crate) config: BackendConfig,
    /// Secrets of the flags. The caller passes them with each call; they precede those of `config`.
    pub(crate) secrets: Secrets,
}

impl ConfiguredComponent {
    /// Reads flags and configuration, starts logging, and creates the engine.
    ///
    /// # Errors
    /// [`CommandError`], one line.
    pub(crate) fn open(
        flags: &ComponentFlags,
        environment: &HashMap<String, String>,
    ) -> Result<Self, CommandError> {
        let (name, resolved) = load_configuration(flags, environment)?;
        let engine = DriverLoader::new(&resolved.configuration, &mut Registry::default())?.engine;
        let mut section = resolved.configuration.backend.get(&name).cloned().unwrap_or_default();
        apply_values(&mut section, &flags.values)?;
        let mut config = drivers::backend_config(&name, &section)?;
        let secrets = resolve_secrets(&flags.values.secrets, environment)?;
        config.class_secrets |= !secrets.is_empty();
        Ok(Self { engine, name, source: ComponentSource::File(flags.file.clone()), config, secrets })
    }

    /// Loads the component.
    ///
    /// # Errors
    /// [`CommandError::Component`]
    pub(crate) async fn load(&self) -> Result<Arc<WasmBackend>, CommandError> {
        let result = self.engine.load(self.source.clone(), self.config.clone()).await;
        result.map_err(|source| CommandError::Component { name: self.name.clone(), source: source.into() })
    }
}

/// Returns the name of the section of the component or CSI driver, and the whole configuration. Starts
/// logging.
///
/// # Errors
/// [`CommandError`], one line.
pub(crate) fn load_configuration(
    flags: &ComponentFlags,
    environment: &HashMap<String, String>,
) -> Result<(String, ResolvedConfig), CommandError> {
    let file = flags.file.display().to_string();
    // Check before the configuration does: its error would name the flag --backend, which is not in use here.
    check_backend_location(&file).map_err(|error| BackendCommandError::Argument(error.to_string()))?;
    let name = flags.name.clone().unwrap_or_else(|| backend_name(&file));
    if let Some(path) = &flags.config {
        check_section(path, &name)?;
    }
    let values = CliValues::from_file(flags.config.clone())
        .with("backend", [format!("{name}={file}")])
        .with("compilation-cache", flags.compilation_cache.clone());
    // The file may also have roles and their settings; only the section of that name is used.
    let resolved = ResolvedConfig::for_dev(&values, environment)?;
    logging::start(&resolved.configuration);
    Ok((name, resolved))
}

/// Applies all flags but `--secret` to the section of a component. An origin on the command line replaces a
/// configured entry of the same origin with all its settings; other configured origins remain.
///
/// # Errors
/// [`BackendCommandError::Argument`]
pub(crate) fn apply_values(
    section: &mut BackendSection,
    flags: &ComponentValueFlags,
) -> Result<(), BackendCommandError> {
    let settings = unique_pairs("--setting", flags.settings.clone())?;
    section.settings.extend(settings.into_iter().map(|(key, value)| (key, SettingValue(value))));
    let grants = parse_grants(&flags.grants)?;
    if !grants.is_empty() {
        section.grants.get_or_insert_with(|| Grant::DEFAULT.into()).extend(grants);
    }
    if let Some(file) = &flags.state {
        section.state.file = Some(file.clone());
    }
    if let Some(directory) = &flags.pool {
        let configured = section.pool.take();
        let pool = PoolConfig { directory: directory.clone(), capacity: None, image_bytes_max: None };
        section.pool = Some(
            configured.map_or(pool, |configured| PoolConfig { directory: directory.clone(), ..configured }),
        );
    }
    section.http.origins.retain(|known| !flags.origins.contains(&known.origin));
    let addresses = (!flags.origin_addresses.is_empty()).then(|| flags.origin_addresses.clone());
    section.http.origins.extend(flags.origins.iter().map(|origin| OriginConfig {
        origin: origin.clone(),
        addresses: addresses.clone(),
        ..OriginConfig::default()
    }));
    Ok(())
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

/// Rejects a configuration file without a section for the component, which would be loaded with other
/// settings than intended. A file that cannot be read passes: its error is reported when the configuration is
/// loaded.
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
    let known = if known.is_empty() { "no section [backend.NAME]".to_owned() } else { known.join(", ") };
    Err(BackendCommandError::Argument(format!(
        "{} has no section [backend.{name}]; it has {known}: expected the name of a section in --name",
        path.display()
    )))
}

/// Reads secrets from their files and environment variables. Errors have the secret's name, and its location
/// if that is a file or a variable. They never have its value.
///
/// # Errors
/// [`BackendCommandError::Argument`]
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
                read_secret(Path::new(file)).map_err(|error| failed(error.to_string()))?
            } else if let Some(variable) = location.strip_prefix('$') {
                let value = environment.get(variable);
                value.cloned().ok_or_else(|| failed(format!("the variable {variable} is not set")))?
            } else {
                return Err(failed(
                    "expected @FILE or $VARIABLE: a command line is visible to other users".to_owned(),
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

    fn apply(section: BackendSection, flags: &[&str]) -> BackendConfig {
        let line = TestCommand::try_parse_from([&["line", "a.wasm"], flags].concat()).unwrap();
        let mut section = section;
        apply_values(&mut section, &line.component.values).unwrap();
        drivers::backend_config("a", &section).unwrap()
    }

    #[test]
    fn flags_alone_configure_a_component() {
        let plain = apply(BackendSection::default(), &[]);
        assert_eq!((plain.state.file, plain.pool, plain.http.origins), (None, None, Vec::new()));
        let flags = ["--state", "s.redb", "--pool", "/p", "--origin", "http://a", "--origin", "https://b"];
        let addresses = ["--origin-address", "127.0.0.1", "--origin-address", "10.0.0.0/8"];
        let config = apply(BackendSection::default(), &[&flags[..], &addresses].concat());
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
        let mut section = BackendSection::default();
        section.http.origins = vec![known("https://a"), known("https://b")];
        section.pool = Some(PoolConfig { directory: "/q".into(), capacity: Some(7), image_bytes_max: None });
        section.settings.insert("tier".to_owned(), SettingValue("slow".to_owned()));
        let flags = ["--origin", "https://a", "--pool", "/p", "--setting", "tier=fast", "--grant", "reveal"];
        let config = apply(section, &flags);
        assert_eq!(config.settings.get("tier").map(String::as_str), Some("fast"));
        assert!(config.grants.contains(&Grant::Reveal) && config.grants.contains(&Grant::Log));
        let from_flag = OriginConfig { origin: "https://a".to_owned(), ..OriginConfig::default() };
        assert_eq!(config.http.origins, [known("https://b"), from_flag]);
        let pool = config.pool.unwrap();
        assert_eq!((pool.directory.as_path(), pool.capacity), (Path::new("/p"), Some(7)));
    }
}
