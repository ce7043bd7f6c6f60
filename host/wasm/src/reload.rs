//! Components that are loaded in place of running ones, and what they may change.

use std::sync::Arc;

use cofferdam_backend::{Backend as _, Call};
use cofferdam_domain::storage::{Ability, Description, Readiness};

use crate::{
    backend::WasmBackend,
    call::SharedState,
    contract::Grant,
    engine::Engine,
    error::LoadError,
    limits::Limits,
    loader::{self, BackendConfig, ComponentSource},
};

/// The reason why a component was not loaded in place of another one.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The component cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The configuration changes what belongs to the process, not to the component.
    #[error("{name}: a change of `{key}` needs a restart")]
    Config {
        /// The component.
        name: String,
        /// The key of the backend's section.
        key: &'static str,
    },
    /// The component describes another driver, or the same one with other properties.
    #[error("{name}: the {property} is {found}; a change from {running} needs a restart")]
    Description {
        /// The component.
        name: String,
        /// The property.
        property: &'static str,
        /// Its value.
        found: String,
        /// The value of the running component.
        running: String,
    },
    /// The component is not ready, and the running one is. The same component may be ready later.
    #[error("{name}: is not ready, and the running component is: {reason}")]
    NotReady {
        /// The component.
        name: String,
        /// The reason that the component gives.
        reason: String,
    },
    /// The component has data in this process, and the running one has none. A standby would not have it.
    #[error("{name}: imports {grant}, which the running component does not; this change needs a restart")]
    DataGained {
        /// The component.
        name: String,
        /// `state` or `pool`.
        grant: Grant,
    },
    /// The component lacks abilities of the running one.
    #[error("{name}: lacks {}, which the running component exports; this change needs a restart", list(.abilities))]
    AbilitiesLost {
        /// The component.
        name: String,
        /// The abilities.
        abilities: Vec<Ability>,
    },
}

fn list(abilities: &[Ability]) -> String {
    abilities.iter().map(|ability| format!("`{ability}`")).collect::<Vec<_>>().join(", ")
}

impl Engine {
    /// Loads a component for the next calls of a backend; calls that run end with the former component. The
    /// backend keeps its sessions, state, pool, operations, circuit breaker and description.
    ///
    /// # Errors
    ///
    /// [`ReloadError`]. The backend then continues with the former component and configuration.
    pub async fn reload(
        &self,
        backend: &WasmBackend,
        source: ComponentSource,
        config: BackendConfig,
    ) -> Result<(), ReloadError> {
        let name = source.name();
        let former = backend.shared_state();
        check_config(&name, &former, &config)?;
        let faults = former.capabilities.faults.clone();
        let shared_state = Arc::new(self.shared_state(source, config, faults, Some(&former)).await?);
        check_data(&name, &former, &shared_state)?;
        let description = loader::describe(&name, &self.inner, &shared_state).await?;
        check_compatible(&name, backend, &shared_state, &description)?;
        let readiness = loader::probe(&name, &self.inner, &shared_state, &description).await?;
        if let Readiness::NotReady(reason) = &readiness
            && is_ready(backend).await
        {
            return Err(ReloadError::NotReady { name, reason: reason.clone() });
        }
        loader::log_loaded(&shared_state, &description, &readiness);
        backend.replace(shared_state);
        Ok(())
    }
}

/// Returns `true` if the running component reports that it is ready. As the call of the new component, this
/// one needs no term.
async fn is_ready(backend: &WasmBackend) -> bool {
    let call = Call::with_deadline(backend.shared_state().limits.deadline());
    matches!(backend.probe(call).await, Ok(Readiness::Ready))
}

/// Checks that the process can change to the configuration.
///
/// # Errors
/// [`ReloadError::Config`]
fn check_config(name: &str, former: &SharedState, config: &BackendConfig) -> Result<(), ReloadError> {
    type Property = fn(&Limits) -> u64;
    /// Limits of what the components of a backend share.
    const SHARED: [(&str, Property); 8] = [
        ("deadline-ms", |limits| limits.deadline_ms),
        ("concurrent-calls", |limits| limits.concurrent_calls as u64),
        ("queued-calls", |limits| limits.queued_calls as u64),
        ("breaker-failures", |limits| limits.breaker_failures.into()),
        ("breaker-pause-ms", |limits| limits.breaker_pause_ms),
        ("state-bytes", |limits| limits.state_bytes as u64),
        ("session-keys", |limits| limits.session_keys as u64),
        ("session-ttl-ms", |limits| limits.session_ttl_ms),
    ];
    let limit = SHARED.iter().find(|(_, value)| value(&former.limits) != value(&config.limits));
    let stores =
        [("state", former.state_config != config.state), ("pool", former.pool_config != config.pool)];
    let store = stores.into_iter().find_map(|(key, is_changed)| is_changed.then_some(key));
    match limit.map(|(key, _)| *key).or(store) {
        Some(key) => Err(ReloadError::Config { name: name.to_owned(), key }),
        None => Ok(()),
    }
}

/// Checks that a component has no data of its own in this process if the running one has none.
///
/// # Errors
/// [`ReloadError::DataGained`]
fn check_data(name: &str, former: &SharedState, loaded: &SharedState) -> Result<(), ReloadError> {
    let imports = |state: &SharedState, grant| state.compiled.interfaces.grants.contains(&grant);
    let is_gained = |grant: &Grant| imports(loaded, *grant) && !imports(former, *grant);
    match [Grant::State, Grant::Pool].into_iter().find(is_gained) {
        Some(grant) => Err(ReloadError::DataGained { name: name.to_owned(), grant }),
        None => Ok(()),
    }
}

/// Checks that a component can take the calls of a running backend. Abilities that it has gained are not used
/// before a restart.
///
/// # Errors
/// [`ReloadError::Description`] or [`ReloadError::AbilitiesLost`]
fn check_compatible(
    name: &str,
    backend: &WasmBackend,
    loaded: &SharedState,
    found: &Description,
) -> Result<(), ReloadError> {
    let abilities = &loaded.compiled.interfaces.abilities;
    let lost: Vec<_> = backend.abilities().difference(abilities).copied().collect();
    if !lost.is_empty() {
        return Err(ReloadError::AbilitiesLost { name: name.to_owned(), abilities: lost });
    }
    let running = backend.description();
    let kept_features: Vec<_> =
        running.features.iter().filter(|feature| found.features.contains(feature)).collect();
    let properties = [
        ("driver name", found.name.to_string(), running.name.to_string()),
        ("placement", format!("{:?}", found.placement), format!("{:?}", running.placement)),
        (
            "list of topology keys",
            format!("{:?}", found.topology_keys),
            format!("{:?}", running.topology_keys),
        ),
        (
            "number of volumes per node",
            format!("{:?}", found.volumes_per_node),
            format!("{:?}", running.volumes_per_node),
        ),
        // Features that the component has gained are not used before a restart.
        ("list of known features", format!("{kept_features:?}"), format!("{:?}", running.features)),
    ];
    if let Some((property, found, running)) =
        properties.into_iter().find(|(_, found, running)| found != running)
    {
        return Err(ReloadError::Description { name: name.to_owned(), property, found, running });
    }
    let gained: Vec<_> = abilities.difference(backend.abilities()).copied().collect();
    if !gained.is_empty() {
        let driver = &running.name;
        tracing::warn!(%driver, "the use of {} needs a restart", list(&gained));
    }
    Ok(())
}
