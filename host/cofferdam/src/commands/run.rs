//! `cofferdam run`: runs the configured roles in this process.

use std::{collections::HashMap, future::pending, sync::Arc};

use cofferdam_cluster::observer::NoopStepObserver;
use cofferdam_controllers::{
    AttachDetachSettings, AttacherSettings, CallSettings, ControllerManager, ControllerManagerError,
    Dependencies, NodeDeployment, ProvisionerSettings, ResizerSettings, Settings,
};
use cofferdam_csi::server::ServerMetrics;
use k8s_openapi::api::{
    authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
    core::v1::Namespace,
};
use kube::{Api, api::PostParams};
use prometheus_client::registry::Registry;

use crate::{
    cli::ClusterFlags,
    client::{self, ClientEnvironment, ClusterConnection},
    config::{ConfigError, Configuration, ResolvedConfig},
    drivers::{self, DriverLoader, LoadedDriver},
    error::CommandError,
    logging, process_metrics,
    roles::{csi_server, node},
    signals::{ProcessOutcome, Signals},
    supervisor::{self, Workload},
};

/// Runs until a signal or an error.
///
/// # Errors
/// [`CommandError`], one line.
pub(crate) async fn run(
    flags: &ClusterFlags,
    environment: &HashMap<String, String>,
) -> Result<ProcessOutcome, CommandError> {
    let resolved = ResolvedConfig::for_cluster(&flags.values, environment)?;
    let configuration = &resolved.configuration;
    let roles = &configuration.role;
    if roles.is_node_only() {
        logging::start(configuration);
        return node::run(configuration).await;
    }
    node::check_single_process(configuration)?;
    if !roles.has_driver_roles() {
        return Err(ConfigError::Missing(
            "no role: expected at least one, as in --role provisioner".to_owned(),
        )
        .into());
    }
    logging::start(configuration);
    // Server roles need no cluster.
    let cluster = match roles.cluster.is_empty() {
        true => None,
        false => Some(client::connect(configuration, &ClientEnvironment::from_process()).await?),
    };
    let mut registry = Registry::default();
    process_metrics::register(&mut registry);
    let metrics = ServerMetrics::register(&mut registry);
    let drivers = DriverLoader::new(configuration, &mut registry)?.load_all(configuration).await?;
    if cluster.is_some() && configuration.node_name.is_none() {
        drivers::check_no_node_local_driver(&drivers)?;
    }
    let servers = csi_server::listen(configuration, &drivers, &metrics).await?;
    // Until here a signal ends the process without a drain, also while a driver loads slowly.
    let mut signals = Signals::install()?;
    let api = cluster.as_ref().map(ClusterConnection::api_description);
    let controllers = match cluster {
        None => None,
        Some(cluster) => Some(create_controller_manager(configuration, cluster, &drivers, &mut registry)?),
    };
    let node_roles = node::start_if_configured(configuration, &metrics).await?;
    let workload = Workload { controllers, servers, node_roles };
    let running = supervisor::start(workload, registry, node::endpoint(configuration).as_ref()).await?;
    let end = running.run_until_signal(&mut signals, configuration.drain_timeout.get(), pending()).await;
    end.map_err(|failure| match (failure, api) {
        (CommandError::Controllers(source @ ControllerManagerError::Start(_)), Some(api)) => {
            CommandError::ControllerStart { api, source }
        }
        (failure, _) => failure,
    })
}

/// Warns, in the background, if the namespace of Cofferdam's own objects does not exist. There is no warning
/// if the account may not read it, because no role needs that permission.
fn warn_if_namespace_missing(cluster: &ClusterConnection) {
    let (client, namespace) = (cluster.client.clone(), cluster.namespace.clone());
    tokio::spawn(async move {
        if can_get_namespace(client.clone(), &namespace).await
            && let Err(kube::Error::Api(status)) = Api::<Namespace>::all(client).get(&namespace).await
            && status.code == 404
        {
            tracing::warn!(
                namespace,
                "the namespace does not exist, and the intent journal cannot be written there: create it, or \
                 set \
                 --namespace"
            );
        }
    });
}

/// Reports if the account may read a namespace. A SelfSubjectAccessReview avoids a denied request, which
/// would be in the cluster's audit log. An API without access reviews, as in dev, permits everything.
async fn can_get_namespace(client: kube::Client, namespace: &str) -> bool {
    let attributes = ResourceAttributes {
        verb: Some("get".to_owned()),
        version: Some("v1".to_owned()),
        resource: Some("namespaces".to_owned()),
        name: Some(namespace.to_owned()),
        ..Default::default()
    };
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
    let review = SelfSubjectAccessReview { spec, ..Default::default() };
    match Api::all(client).create(&PostParams::default(), &review).await {
        Ok(response) => response.status.is_some_and(|status| status.allowed),
        Err(kube::Error::Api(status)) => matches!(status.code, 404 | 405),
        Err(_) => false,
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
    let defaults = Settings::default();
    Settings {
        roles: configuration.role.cluster.clone(),
        namespace,
        identity: process_identity(),
        calls: CallSettings {
            timeout: configuration.timeout.get(),
            retry_interval_start: configuration.retry_interval_start.get(),
            retry_interval_max: configuration.retry_interval_max.get(),
        },
        node: configuration.node_name.as_deref().map(|node| NodeDeployment {
            node: node.into(),
            every_driver: configuration.node_deployment,
            immediate_binding: configuration.node_deployment_immediate_binding,
            base_delay: configuration.node_deployment_base_delay.get(),
            max_delay: configuration.node_deployment_max_delay.get(),
        }),
        provisioner: ProvisionerSettings {
            volume_name_prefix: configuration.volume_name_prefix.clone(),
            worker_threads: workers.unwrap_or(defaults.provisioner.worker_threads),
            default_fs_type: default_fs_type.clone(),
            extra_create_metadata: configuration.extra_create_metadata,
            strict_topology: configuration.strict_topology,
            immediate_topology: configuration.immediate_topology,
            orphan_scan_interval: configuration.orphan_scan_interval.0,
        },
        attacher: AttacherSettings {
            worker_threads: workers.unwrap_or(defaults.attacher.worker_threads),
            resync: configuration.resync.get(),
            reconcile_sync: configuration.reconcile_sync.get(),
            max_entries: configuration.max_entries.0,
            default_fs_type,
        },
        resizer: ResizerSettings {
            workers: configuration.workers.0,
            resync_period: configuration.resync_period.get(),
            handle_volume_inuse_error: configuration.handle_volume_inuse_error,
            extra_modify_metadata: configuration.extra_modify_metadata,
        },
        attach_detach: AttachDetachSettings {
            force_detach_on_timeout: !configuration.disable_force_detach_on_timeout,
        },
    }
}

/// Name of this process in events, in the provisioner identity of volumes, and in deletion requests of
/// `cofferdam orphans`: the host name, which in a pod without `hostNetwork` is the pod's name; `cofferdam` if
/// the host name is unknown.
pub(crate) fn process_identity() -> String {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = kernel.trim();
    let name = if name.is_empty() { std::env::var("HOSTNAME").unwrap_or_default() } else { name.to_owned() };
    if name.is_empty() { "cofferdam".to_owned() } else { name }
}
