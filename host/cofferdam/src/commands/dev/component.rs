//! The flags of `dev` that configure one component.

use std::collections::HashMap;

use cofferdam_domain::storage::Secrets;
use cofferdam_wasm::LoadError;

use crate::{
    cli::DevFlags,
    commands::backend::{
        component::{apply_values, resolve_secrets},
        error::BackendCommandError,
    },
    config::{
        BackendSection, CliValues, Configuration, ResolvedConfig, is_backend_name, name_of_backend,
        split_backend,
    },
    error::CommandError,
};

/// The settings of `dev`, with the flags of its component.
pub(super) struct DevConfiguration {
    pub(super) resolved: ResolvedConfig,
    /// Name of the component's section, and the secrets of its flags.
    pub(super) secrets: Option<(String, Secrets)>,
}

impl DevConfiguration {
    /// Reads the flags, the environment and the configuration file.
    ///
    /// # Errors
    /// [`CommandError`], one line.
    pub(super) fn read(
        flags: &DevFlags,
        environment: &HashMap<String, String>,
    ) -> Result<Self, CommandError> {
        let values = with_name(&flags.settings.values, flags.name.as_deref())?;
        let mut resolved = ResolvedConfig::for_dev(&values, environment)?;
        let Some(flag) = flags.component.first_flag() else { return Ok(Self { resolved, secrets: None }) };
        let (name, section) = component_of_flags(flag, &values, &mut resolved.configuration)?;
        if section.csi.is_some() {
            return Err(argument(format!(
                "{flag} is for components: backend {name} is a CSI driver, which has its own settings"
            )));
        }
        apply_values(section, &flags.component)?;
        let secrets = resolve_secrets(&flags.component.secrets, environment)?;
        Ok(Self { resolved, secrets: Some((name, secrets)) })
    }
}

fn argument(problem: String) -> CommandError {
    BackendCommandError::Argument(problem).into()
}

/// Gives the name of `--name` to the driver of `--backend FILE`.
fn with_name(values: &CliValues, name: Option<&str>) -> Result<CliValues, CommandError> {
    let Some(name) = name else { return Ok(values.clone()) };
    if !is_backend_name(name) {
        return Err(argument(format!("--name {name:?}: expected letters, digits, `-` and `_`")));
    }
    match values.get("backend") {
        [file] if !has_name(file) => Ok(values.clone().replacing("backend", format!("{name}={file}"))),
        given => Err(argument(format!(
            "--name {name}: {} --backend with a name or none; expected one --backend FILE",
            given.len()
        ))),
    }
}

/// Reports if a value of `--backend` has the form `NAME=FILE`.
fn has_name(backend: &str) -> bool {
    split_backend(backend).0.is_some()
}

/// The section that the flags of a component apply to: that of the only `--backend`, else that of the only
/// driver.
fn component_of_flags<'a>(
    flag: &str,
    values: &CliValues,
    configuration: &'a mut Configuration,
) -> Result<(String, &'a mut BackendSection), CommandError> {
    let named = match values.get("backend") {
        [backend] => Some(name_of_backend(backend)),
        _ => None,
    };
    let known = configuration.backend.keys().cloned().collect::<Vec<_>>();
    let name = match (named, known.as_slice()) {
        (Some(name), _) => name,
        (None, [name]) => name.clone(),
        (None, names) => {
            return Err(argument(format!(
                "{flag} configures one component, and there are {}: {}; expected one --backend, or sections \
                 of the configuration",
                names.len(),
                names.join(", ")
            )));
        }
    };
    match configuration.backend.get_mut(&name) {
        Some(section) => Ok((name, section)),
        None => Err(argument(format!("{flag}: there is no backend {name}"))),
    }
}

/// Adds advice to the error of a component that lacks grants, if it has no section in the configuration and
/// other drivers have one: it may have been meant for this component.
pub(super) fn with_section_advice(
    error: CommandError,
    values: &CliValues,
    configuration: &Configuration,
) -> CommandError {
    let CommandError::Backend { name, source } = &error else { return error };
    let file =
        values.get("backend").iter().find(|backend| !has_name(backend) && name_of_backend(backend) == *name);
    let (LoadError::NotGranted { .. }, Some(file)) = (&**source, file) else { return error };
    let sections: Vec<_> = configuration.backend.keys().filter(|section| *section != name).collect();
    match sections.as_slice() {
        [section] => argument(format!(
            "{error}; the configuration has [backend.{section}]: for its settings and grants, expected \
             --backend {section}={file}"
        )),
        _ => error,
    }
}
