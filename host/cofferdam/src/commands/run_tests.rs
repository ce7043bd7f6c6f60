//! Tests of the settings of the controllers.

use std::{
    collections::{BTreeSet, HashMap},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use cofferdam_controllers::Role;

use super::*;
use crate::config::{CliValues, SETTINGS};

/// The settings that controllers read, each with a value other than its default. Several values are
/// separated by commas.
#[rustfmt::skip] // one row per setting
const OFF_DEFAULT: &[(&str, &str)] = &[
    ("role", "provisioner,attacher,resizer,attach-detach"),
    ("secret-namespaces", "arrays"),
    ("timeout", "7s"),
    ("retry-interval-start", "2s"),
    ("retry-interval-max", "3m"),
    ("node-name", "node-1"),
    ("node-deployment", "true"),
    ("node-deployment-immediate-binding", "false"),
    ("node-deployment-base-delay", "11s"),
    ("node-deployment-max-delay", "12s"),
    ("volume-name-prefix", "vol"),
    ("volume-name-uuid-length", "9"),
    ("worker-threads", "13"),
    ("default-fstype", "xfs"),
    ("extra-create-metadata", "true"),
    ("controller-publish-readonly", "true"),
    ("feature-gates",
        "Topology=false,VolumeAttributesClass=false,MutableCSINodeAllocatableCount=false,AnnotateFsResize=false"),
    ("strict-topology", "true"),
    ("immediate-topology", "false"),
    ("snapshot-name-prefix", "snap"),
    ("snapshot-name-uuid-length", "8"),
    ("prevent-volume-mode-conversion", "false"),
    ("enable-distributed-snapshotting", "true"),
    ("orphan-scan-interval", "14m"),
    ("resync", "15m"),
    ("reconcile-sync", "16m"),
    ("max-entries", "17"),
    ("workers", "18"),
    ("resize-timeout", "20s"),
    ("modify-timeout", "21s"),
    ("resync-period", "19m"),
    ("handle-volume-inuse-error", "false"),
    ("extra-modify-metadata", "true"),
    ("disable-force-detach-on-timeout", "true"),
];

/// The settings that no controller reads.
const READ_ELSEWHERE: &[&str] = &[
    // Drivers and the sockets that the process serves
    "backend",
    "compilation-cache",
    "csi-address",
    "csi-socket",
    "socket-mode",
    "socket-group",
    // The connection to the cluster; `namespace` is the second argument of `controller_settings`
    "kubeconfig",
    "master",
    "context",
    "namespace",
    // The process
    "http-endpoint",
    "metrics-address",
    "metrics-path",
    "drain-timeout",
    "log",
    "log-format",
    "leader-election",
    "leader-election-namespace",
    "leader-election-lease-duration",
    "leader-election-renew-deadline",
    "leader-election-retry-period",
    "leader-election-labels",
    // The node roles
    "single-process",
    "manifest",
    "csi-endpoint",
    "node-records",
    "kubelet-root",
    "kubelet-registration-path",
    "plugin-registration-path",
    "probe-timeout",
    "health-port",
    "node",
];

const fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(minutes * 60)
}

fn settings_off_default() -> Settings {
    let values = OFF_DEFAULT.iter().fold(CliValues::default(), |values, (name, text)| {
        let is_list = matches!(*name, "role" | "feature-gates");
        let items: Vec<_> = match is_list {
            true => text.split(',').map(str::to_owned).collect(),
            false => vec![(*text).to_owned()],
        };
        values.with(name, items)
    });
    let resolved = ResolvedConfig::for_cluster(&values, &HashMap::new()).unwrap();
    controller_settings(&resolved.configuration, "storage".to_owned())
}

#[test]
fn every_setting_is_read_by_controllers_or_elsewhere() {
    let listed: Vec<&str> =
        OFF_DEFAULT.iter().map(|(name, _)| *name).chain(READ_ELSEWHERE.iter().copied()).collect();
    let unique: BTreeSet<&str> = listed.iter().copied().collect();
    let declared: BTreeSet<&str> = SETTINGS.iter().map(|setting| setting.name.as_str()).collect();
    assert_eq!((unique.len(), unique), (listed.len(), declared));
}

/// The patterns name every field: a new one does not compile without an expectation.
#[test]
fn every_setting_of_a_controller_has_the_configured_value() {
    let Settings {
        roles,
        namespace,
        secret_namespaces,
        identity,
        calls,
        watch_timeout,
        node,
        provisioner,
        attacher,
        resizer,
        attach_detach,
        snapshots,
    } = settings_off_default();
    let roles: BTreeSet<&str> = roles.into_iter().map(Role::as_str).collect();
    assert_eq!(roles, ["provisioner", "attacher", "resizer", "attach-detach"].into());
    assert_eq!((namespace.as_str(), secret_namespaces.to_string().as_str()), ("storage", "arrays"));
    assert_eq!(identity, host_name());
    assert_eq!(watch_timeout, Settings::default().watch_timeout);
    let CallSettings { timeout, retry_interval_start, retry_interval_max } = calls;
    assert_eq!((timeout, retry_interval_start), (Duration::from_secs(7), Duration::from_secs(2)));
    assert_eq!(retry_interval_max, minutes(3));
    let NodeDeployment { node, every_driver, immediate_binding, base_delay, max_delay } = node.unwrap();
    assert_eq!((node.to_string().as_str(), every_driver, immediate_binding), ("node-1", true, false));
    assert_eq!((base_delay, max_delay), (Duration::from_secs(11), Duration::from_secs(12)));
    check_provisioner(&provisioner);
    let AttacherSettings {
        worker_threads,
        resync,
        reconcile_sync,
        max_entries,
        default_fs_type,
        attach_error_code,
    } = attacher;
    assert_eq!((worker_threads, resync, reconcile_sync), (13, minutes(15), minutes(16)));
    assert_eq!((max_entries, default_fs_type.as_deref()), (Some(17), Some("xfs")));
    assert!(!attach_error_code);
    let ResizerSettings {
        workers,
        expand_timeout,
        modify_timeout,
        resync_period,
        handle_volume_inuse_error,
        extra_modify_metadata,
        volume_attributes_class,
        annotate_fs_resize,
    } = resizer;
    assert_eq!((workers, resync_period), (18, minutes(19)));
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    assert_eq!((expand_timeout, modify_timeout), (seconds(20), seconds(21)));
    assert!(!handle_volume_inuse_error && extra_modify_metadata);
    assert!(!volume_attributes_class && !annotate_fs_resize);
    let AttachDetachSettings { force_detach_after, request_may_apply } = attach_detach;
    assert_eq!((force_detach_after, request_may_apply), (None, Duration::from_secs(60)));
    let SnapshotSettings {
        name_prefix,
        name_uuid_length,
        extra_create_metadata,
        workers,
        prevent_volume_mode_conversion,
        distributed,
    } = snapshots;
    assert_eq!((name_prefix.as_str(), name_uuid_length, workers), ("snap", Some(8), 13));
    assert!(extra_create_metadata && !prevent_volume_mode_conversion && distributed);
}

fn check_provisioner(settings: &ProvisionerSettings) {
    let ProvisionerSettings {
        volume_name_prefix,
        volume_name_uuid_length,
        worker_threads,
        default_fs_type,
        extra_create_metadata,
        controller_publish_read_only,
        topology,
        volume_attributes_class,
        strict_topology,
        immediate_topology,
        orphan_scan_interval,
        stuck_after,
    } = settings;
    assert_eq!((volume_name_prefix.as_str(), *volume_name_uuid_length), ("vol", Some(9)));
    assert_eq!((*worker_threads, default_fs_type.as_deref()), (13, Some("xfs")));
    assert!(*extra_create_metadata && *controller_publish_read_only && *strict_topology);
    assert!(!topology && !volume_attributes_class && !immediate_topology);
    assert_eq!((*orphan_scan_interval, *stuck_after), (Some(minutes(14)), minutes(15)));
}

#[test]
fn a_cluster_below_the_oldest_version_is_too_old() {
    for (major, minor, expected) in [
        ("1", "32", true),
        ("1", "33", false),
        ("1", "32+", true),
        ("1", "33+", false),
        ("1", "40", false),
        ("2", "0", false),
        ("", "", false),
        ("1", "x", false),
    ] {
        assert_eq!(is_too_old(major, minor), expected, "{major}.{minor}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_with_node_roles_only_checks_the_configuration_again() {
    let settings = ["role=liveness", "csi-address=/nonexistent/csi.sock", "health-port=0"];
    let variables = settings.map(|setting| {
        let (name, value) = setting.split_once('=').unwrap();
        (format!("COFFERDAM_{}", name.replace('-', "_").to_uppercase()), value.to_owned())
    });
    let environment = HashMap::from(variables);
    let resolve = move || ResolvedConfig::for_cluster(&CliValues::default(), &environment);
    let resolved = resolve().unwrap();
    let checks = Arc::new(AtomicUsize::new(0));
    let source: ConfigSource = Box::new({
        let checks = Arc::clone(&checks);
        move || {
            checks.fetch_add(1, Ordering::Relaxed);
            resolve()
        }
    });
    let reloader = Reloader::new(source, &resolved);
    tokio::select! {
        end = run_node_roles(&resolved.configuration, reloader) => panic!("ended: {end:?}"),
        () = tokio::time::sleep(Duration::from_secs(60)) => {}
    }
    assert!(checks.load(Ordering::Relaxed) > 1);
}
