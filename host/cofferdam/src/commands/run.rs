//! `cofferdam run`: runs the configured roles in this process.

use std::{collections::HashMap, future::pending, sync::Arc};

use cofferdam_cluster::{SecretNamespaces, connect, observer::NoopStepObserver};
use cofferdam_controllers::{
    AttachDetachSettings, AttacherSettings, CallSettings, ControllerManager, ControllerManagerError,
    Dependencies, NodeDeployment, ProvisionerSettings, ResizerSettings, Settings, SnapshotSettings,
    rbac::{DriverPlacement, RuleScope},
    table,
};
use cofferdam_csi::server::ServerMetrics;
use k8s_openapi::api::{authorization::v1::ResourceAttributes, core::v1::Namespace};
use kube::Api;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use crate::{
    cli::ClusterFlags,
    client::{self, ClientEnvironment, ClusterConnection},
    config::{ConfigError, Configuration, FeatureGate, GoDuration, ResolvedConfig},
    drivers::{self, DriverLoader, LoadedDriver},
    error::CommandError,
    host_name::host_name,
    leader_election, logging, other_controller, process_metrics,
    reload::{ConfigSource, ConnectionReloader, Reloader},
    rights::{self, RuleNamespaces},
    roles::{
        csi_server,
        node::{self, NodeMetrics},
    },
    sidecar::SidecarRun,
    signals::{ProcessOutcome, Signals},
    storage_capacity::StorageCapacityCheck,
    supervisor::{self, Workload},
    telemetry,
};

/// Minor version of the oldest Kubernetes 1 that is supported.
const OLDEST_MINOR: u32 = 33;

/// Runs until a signal or an error.
///
/// # Errors
/// [`CommandError`], one line.
pub(crate) async fn run(
    flags: &ClusterFlags,
    environment: &HashMap<String, String>,
) -> Result<ProcessOutcome, CommandError> {
    let resolve = {
        let (values, environment) = (flags.values.clone(), environment.clone());
        move || ResolvedConfig::for_cluster(&values, &environment)
    };
    let resolved = resolve()?;
    run_roles(&resolved, Box::new(resolve), environment, &ClientEnvironment::from_process(), None).await
}

/// Runs the role that replaces a sidecar until a signal or an error.
///
/// # Errors
/// [`CommandError`], one line.
pub(crate) async fn run_sidecar(
    sidecar: &SidecarRun,
    environment: &HashMap<String, String>,
) -> Result<ProcessOutcome, CommandError> {
    let resolve = {
        let (values, environment, defaults) = (sidecar.values.clone(), environment.clone(), sidecar.defaults);
        move || ResolvedConfig::for_sidecar(&values, &environment, defaults)
    };
    let mut resolved = resolve()?;
    let mut client = ClientEnvironment::from_process();
    if !sidecar.reads_kubeconfig_variable {
        client = client.without_kubeconfig_variable();
    } else if client.kubeconfig.is_some() {
        // csi-provisioner prefers the variable to the flag.
        resolved.configuration.kubeconfig = None;
    }
    run_roles(&resolved, Box::new(resolve), environment, &client, Some(sidecar)).await
}

/// Runs the roles of a configuration until a signal or an error. `source` resolves the configuration again.
/// `sidecar` is the sidecar whose command line the configuration comes from.
async fn run_roles(
    resolved: &ResolvedConfig,
    source: ConfigSource,
    environment: &HashMap<String, String>,
    client_environment: &ClientEnvironment,
    sidecar: Option<&SidecarRun>,
) -> Result<ProcessOutcome, CommandError> {
    let configuration = &resolved.configuration;
    let roles = &configuration.role;
    let start_log = || {
        logging::start(configuration);
        if let Some(warning) = sidecar.and_then(|sidecar| sidecar.warning.as_deref()) {
            tracing::warn!("{warning}");
        }
    };
    if roles.is_node_only() {
        start_log();
        return run_node_roles(configuration, Reloader::new(source, resolved)).await;
    }
    node::check_single_process(configuration)?;
    if !roles.has_driver_roles() {
        return Err(ConfigError::Missing(
            "no role: expected at least one, as in --role provisioner".to_owned(),
        )
        .into());
    }
    start_log();
    // Server roles need no cluster.
    let mut connection_reloader = None;
    let cluster = match roles.cluster.is_empty() {
        true => None,
        false => {
            let reloader = ConnectionReloader::new(configuration.into(), client_environment);
            let reloader = connection_reloader.insert(reloader);
            let connection = client::connect(configuration, client_environment).await?;
            reloader.add(connection.clone());
            Some(connection)
        }
    };
    let mut registry = Registry::default();
    process_metrics::register(&mut registry);
    let metrics = ServerMetrics::register(&mut registry);
    let reloader = Reloader::new(source, resolved);
    let loader = DriverLoader::new(configuration, &mut registry)?;
    let drivers = loader.load_all(configuration).await?;
    if cluster.is_some() && configuration.node_name.is_none() {
        drivers::check_no_node_local_driver(&drivers)?;
    }
    if cluster.is_some() && leader_election::is_enabled(configuration, environment) {
        drivers::check_elected_drivers(&drivers)?;
    }
    if cluster.is_some() {
        leader_election::log_if_off_by_node_name(configuration, environment);
    }
    let driver_names: Vec<_> =
        drivers.iter().map(|driver| driver.backend().description().name.clone()).collect();
    let mut capacity_check = None;
    if let Some(cluster) = &cluster {
        if sidecar.is_some_and(|sidecar| sidecar.enables_capacity) {
            let mut check = StorageCapacityCheck::new(cluster.client.clone(), driver_names.clone());
            check.run().await?;
            capacity_check = Some(check);
        }
        report_missing_rights(configuration, environment, cluster, &drivers).await;
        other_controller::warn_if_lease_is_renewed(
            configuration,
            &cluster.client,
            &cluster.namespace,
            leader_election::own_lease_namespace(configuration, environment).as_deref(),
        );
    }
    let servers = csi_server::listen(configuration, &drivers, &metrics).await?;
    // Until here a signal ends the process without a drain, also while a driver loads slowly.
    let mut signals = Signals::install()?;
    let api = cluster.as_ref().map(ClusterConnection::api_description);
    let controllers = match cluster {
        None => None,
        Some(cluster) => Some(create_controller_manager(configuration, cluster, &drivers, &mut registry)?),
    };
    let campaigns = match &controllers {
        Some(controllers) if leader_election::is_enabled(configuration, environment) => {
            // A connection of its own: a busy process still renews its leases in time.
            let connection = client::connect(configuration, client_environment).await?;
            let client = connection.client.clone();
            if let Some(reloader) = &mut connection_reloader {
                reloader.add(connection);
            }
            let metrics = controllers.metrics();
            let only_owner = drivers::with_data_of_this_process(&drivers);
            leader_election::campaigns(
                configuration,
                environment,
                client,
                &driver_names,
                &only_owner,
                metrics,
            )
        }
        Some(_) | None => Vec::new(),
    };
    let node_metrics = NodeMetrics { served: metrics, calls: loader.call_metrics.clone() };
    let node_roles = node::start_if_configured(configuration, &node_metrics).await?;
    let reloader = reloader.with_drivers(&loader.engine, &drivers).with_connection(connection_reloader);
    let workload = Workload { controllers, campaigns, servers, node_roles, reloader: Some(reloader) };
    let running = supervisor::start(workload, registry, &telemetry::endpoints(configuration)).await?;
    let external_failure = async {
        match capacity_check {
            Some(check) => check.wait_for_failure().await,
            None => pending().await,
        }
    };
    let drain_timeout = configuration.drain_timeout.get();
    let end = running.run_until_signal(&mut signals, drain_timeout, external_failure).await;
    end.map_err(|failure| match (failure, api) {
        (CommandError::Controllers(source @ ControllerManagerError::Start(_)), Some(api)) => {
            CommandError::ControllerStart { api, source }
        }
        (failure, _) => failure,
    })
}

/// Runs a process with node roles only. They run no driver and read credentials only when they start, so
/// nothing changes alive: `reloader` reports the changes that need a restart.
async fn run_node_roles(
    configuration: &Configuration,
    reloader: Reloader,
) -> Result<ProcessOutcome, CommandError> {
    let stop = CancellationToken::new();
    let roles = async {
        let end = node::run(configuration).await;
        stop.cancel();
        end
    };
    let (end, ()) = tokio::join!(roles, reloader.run(stop.clone()));
    end
}

/// Logs an error, in the background, if the API server is older than the oldest version that is supported.
/// There is no error if the version cannot be read.
fn report_old_cluster(cluster: &ClusterConnection) {
    let client = cluster.client.clone();
    tokio::spawn(async move {
        if let Ok(version) = client.apiserver_version().await
            && is_too_old(&version.major, &version.minor)
        {
            tracing::error!(
                "the API server has the version {}: expected Kubernetes 1.{OLDEST_MINOR} or later; what is missing \
                 fails later, by its name",
                version.git_version
            );
        }
    });
}

/// Returns true for a version below the oldest one that is supported. Managed clusters have minor versions
/// such as `33+`. An unknown form is not too old.
fn is_too_old(major: &str, minor: &str) -> bool {
    let minor = minor.trim_end_matches(|end: char| !end.is_ascii_digit());
    match (major.parse::<u32>(), minor.parse::<u32>()) {
        (Ok(major), Ok(minor)) => (major, minor) < (1, OLDEST_MINOR),
        _ => false,
    }
}

/// Warns, in the background, if the namespace of Cofferdam's own objects does not exist. There is no warning
/// if the account may not read it, because no role needs that permission.
fn warn_if_namespace_missing(cluster: &ClusterConnection) {
    let (client, namespace) = (cluster.client.clone(), cluster.namespace.clone());
    tokio::spawn(async move {
        let attributes = ResourceAttributes {
            verb: Some("get".to_owned()),
            version: Some("v1".to_owned()),
            resource: Some("namespaces".to_owned()),
            name: Some(namespace.clone()),
            ..Default::default()
        };
        if rights::is_allowed(&client, attributes).await
            && let Err(kube::Error::Api(status)) = Api::<Namespace>::all(client).get(&namespace).await
            && status.code == 404
        {
            tracing::warn!(
                namespace,
                "the namespace does not exist, and neither Leases nor the intent journal can be written \
                 there: create it, or set --namespace"
            );
        }
    });
}

/// Logs all rights that the roles may need and that the account lacks.
async fn report_missing_rights(
    configuration: &Configuration,
    environment: &HashMap<String, String>,
    cluster: &ClusterConnection,
    drivers: &[LoadedDriver],
) {
    let lease_namespace = leader_election::own_lease_namespace(configuration, environment);
    let backends: Vec<_> = drivers.iter().map(LoadedDriver::backend).collect();
    let settings = controller_settings(configuration, cluster.namespace.clone());
    let placement = settings.placement(&backends);
    let rules = table::rbac_rules_of_process(&settings, placement);
    // The account of a node has rights for single Secrets, or none.
    let reads_namespaces = placement == DriverPlacement::ClusterWide
        && rules.iter().any(|rule| rule.scope == RuleScope::DriverSecrets);
    let namespaces = RuleNamespaces {
        process: &cluster.namespace,
        leases: lease_namespace.as_deref(),
        secrets: reads_namespaces.then_some(&settings.secret_namespaces),
    };
    let (client, roles) = (&cluster.client, &configuration.role);
    if let Some(message) =
        rights::missing_rights_message(client, roles, &rules, placement.into(), namespaces).await
    {
        tracing::error!("{message}");
    }
}

/// Creates the manager of the roles that reconcile a cluster. `supervisor::start` runs it.
fn create_controller_manager(
    configuration: &Configuration,
    cluster: ClusterConnection,
    drivers: &[LoadedDriver],
    registry: &mut Registry,
) -> Result<Arc<ControllerManager>, CommandError> {
    warn_if_namespace_missing(&cluster);
    report_old_cluster(&cluster);
    // The processes of nodes are many, and only some of them have work.
    if configuration.node_name.is_none() {
        tokio::spawn(connect::keep_open(cluster.client.clone()));
    }
    let roles = &configuration.role.cluster;
    tracing::info!(api = %cluster.url, namespace = %cluster.namespace, ?roles, "starting");
    let dependencies = Dependencies {
        client: cluster.client,
        backends: drivers.iter().map(LoadedDriver::backend).collect(),
        clock: cofferdam_cluster::system_clock(),
        observer: Arc::new(NoopStepObserver),
    };
    let settings = controller_settings(configuration, cluster.namespace);
    Ok(Arc::new(ControllerManager::new(settings, dependencies, registry)?))
}

/// Converts the configuration to the settings of the controllers.
pub(crate) fn controller_settings(configuration: &Configuration, namespace: String) -> Settings {
    let workers = configuration.worker_threads.map(|workers| workers.0);
    let default_fs_type = configuration.default_fstype.clone().filter(|name| !name.is_empty());
    let is_enabled = |gate| configuration.feature_gates.is_enabled(gate);
    let defaults = Settings::default();
    let secret_namespaces = configuration.secret_namespaces.as_ref().map(|list| list.0.clone());
    Settings {
        roles: configuration.role.cluster.clone(),
        secret_namespaces: secret_namespaces.unwrap_or_else(|| SecretNamespaces::only(&namespace)),
        namespace,
        identity: host_name(),
        calls: CallSettings {
            timeout: configuration.timeout.get(),
            retry_interval_start: configuration.retry_interval_start.get(),
            retry_interval_max: configuration.retry_interval_max.get(),
        },
        watch_timeout: defaults.watch_timeout,
        node: configuration.node_name.as_deref().map(|node| NodeDeployment {
            node: node.into(),
            every_driver: configuration.node_deployment,
            immediate_binding: configuration.node_deployment_immediate_binding,
            base_delay: configuration.node_deployment_base_delay.get(),
            max_delay: configuration.node_deployment_max_delay.get(),
        }),
        provisioner: ProvisionerSettings {
            volume_name_prefix: configuration.volume_name_prefix.clone(),
            volume_name_uuid_length: configuration.volume_name_uuid_length.0,
            worker_threads: workers.unwrap_or(defaults.provisioner.worker_threads),
            default_fs_type: default_fs_type.clone(),
            extra_create_metadata: configuration.extra_create_metadata,
            controller_publish_read_only: configuration.controller_publish_readonly,
            topology: is_enabled(FeatureGate::Topology),
            volume_attributes_class: is_enabled(FeatureGate::VolumeAttributesClass),
            strict_topology: configuration.strict_topology,
            immediate_topology: configuration.immediate_topology,
            orphan_scan_interval: configuration.orphan_scan_interval.0,
            stuck_after: defaults.provisioner.stuck_after,
        },
        attacher: AttacherSettings {
            worker_threads: workers.unwrap_or(defaults.attacher.worker_threads),
            resync: configuration.resync.get(),
            reconcile_sync: configuration.reconcile_sync.get(),
            max_entries: configuration.max_entries.0,
            default_fs_type,
            attach_error_code: is_enabled(FeatureGate::MutableCsiNodeAllocatableCount),
        },
        resizer: ResizerSettings {
            workers: configuration.workers.0,
            expand_timeout: configuration.resize_timeout.map(GoDuration::get),
            modify_timeout: configuration.modify_timeout.map(GoDuration::get),
            resync_period: configuration.resync_period.get(),
            handle_volume_inuse_error: configuration.handle_volume_inuse_error,
            extra_modify_metadata: configuration.extra_modify_metadata,
            volume_attributes_class: is_enabled(FeatureGate::VolumeAttributesClass),
            annotate_fs_resize: is_enabled(FeatureGate::AnnotateFsResize),
        },
        attach_detach: AttachDetachSettings {
            force_detach_after: defaults
                .attach_detach
                .force_detach_after
                .filter(|_| !configuration.disable_force_detach_on_timeout),
            request_may_apply: defaults.attach_detach.request_may_apply,
        },
        snapshots: SnapshotSettings {
            name_prefix: configuration.snapshot_name_prefix.clone(),
            name_uuid_length: configuration.snapshot_name_uuid_length.0,
            extra_create_metadata: configuration.extra_create_metadata,
            workers: workers.unwrap_or(defaults.snapshots.workers),
            prevent_volume_mode_conversion: configuration.prevent_volume_mode_conversion,
            distributed: configuration.enable_distributed_snapshotting,
        },
    }
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
