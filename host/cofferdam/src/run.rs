//! `cofferdam run`: roles against a cluster.

use std::{collections::HashMap, sync::Arc};

use cofferdam_roles::{Parts, Process, Settings, Silent};
use prometheus_client::registry::Registry;

use crate::{
    cli::ClusterFlags,
    client::{self, Surroundings},
    config::{ConfigError, Configuration, Loaded},
    drivers::{self, Driver, Loader},
    failure::Failure,
    logging, process_metrics,
    supervisor::{self, End, Signals},
};

/// Runs until a signal or until the roles cannot go on.
///
/// # Errors
/// [`Failure`], one line.
pub(crate) async fn run(flags: &ClusterFlags, environment: &HashMap<String, String>) -> Result<End, Failure> {
    let loaded = Loaded::for_cluster(flags, environment)?;
    let configuration = &loaded.configuration;
    if configuration.role.0.is_empty() {
        return Err(ConfigError::Missing(
            "no role: expected at least one, as in --role provisioner".to_owned(),
        )
        .into());
    }
    logging::start(configuration);
    let cluster = client::connect(configuration, &Surroundings::of_process()).await?;
    let mut registry = Registry::default();
    process_metrics::register(&mut registry);
    let drivers = Loader::new(configuration, &mut registry)?.load_all(configuration).await?;
    drivers::all_central(&drivers)?;
    // Until here a signal ends the process by itself, also while a driver is slow to load: there is nothing to drain.
    let mut signals = Signals::take()?;
    tracing::info!(api = %cluster.url, namespace = %cluster.namespace, roles = ?configuration.role.0, "starting");
    let parts = Parts {
        client: cluster.client,
        backends: drivers.iter().map(Driver::backend).collect(),
        clock: cofferdam_cluster::system_clock(),
        observer: Arc::new(Silent),
    };
    let settings = settings(configuration, cluster.namespace);
    let process = Arc::new(Process::new(settings, parts, &mut registry)?);
    let running = supervisor::start(&process, registry, configuration.http_endpoint.as_ref()).await?;
    running.until_signal(&mut signals, configuration.drain_timeout.get()).await
}

/// The roles' settings, out of the configuration.
pub(crate) fn settings(configuration: &Configuration, namespace: String) -> Settings {
    let defaults = Settings::default();
    Settings {
        roles: configuration.role.0.clone(),
        namespace,
        identity: identity(),
        volume_name_prefix: configuration.volume_name_prefix.clone(),
        timeout: configuration.timeout.get(),
        retry_interval_start: configuration.retry_interval_start.get(),
        retry_interval_max: configuration.retry_interval_max.get(),
        worker_threads: configuration.worker_threads.map_or(defaults.worker_threads, |workers| workers.0),
        attacher_worker_threads: configuration
            .worker_threads
            .map_or(defaults.attacher_worker_threads, |workers| workers.0),
        resync: configuration.resync.get(),
        reconcile_sync: configuration.reconcile_sync.get(),
        max_entries: configuration.max_entries.0,
        default_fs_type: configuration.default_fstype.clone().filter(|name| !name.is_empty()),
        extra_create_metadata: configuration.extra_create_metadata,
        strict_topology: configuration.strict_topology,
        immediate_topology: configuration.immediate_topology,
        orphan_scan_interval: configuration.orphan_scan_interval.0,
    }
}

/// The host's name, which in a pod is the pod's.
pub(crate) fn identity() -> String {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = kernel.trim();
    let name = if name.is_empty() { std::env::var("HOSTNAME").unwrap_or_default() } else { name.to_owned() };
    if name.is_empty() { "cofferdam".to_owned() } else { name }
}
