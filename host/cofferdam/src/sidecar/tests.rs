//! Tests of the sidecars' command lines.

use std::{ffi::OsStr, fmt::Write as _};

use super::{
    flags::{FLAGS, FlagEffect, SidecarFlag},
    value::ValueType,
    *,
};
use crate::config::{ConfigError, Configuration, FeatureGate, LogFormat, ResolvedConfig};

/// The page with the table of flags.
const PAGE: &str = include_str!("../../../../docs/sidecar-flags.md");

#[test]
fn secrets_of_every_namespace_are_read_unless_the_environment_lists_some() {
    for sidecar in [Sidecar::Provisioner, Sidecar::Attacher, Sidecar::Resizer, Sidecar::Snapshotter] {
        let run = run_of(sidecar, "");
        let secret_namespaces = |environment: &HashMap<String, String>| {
            let resolved = ResolvedConfig::for_sidecar(&run.values, environment, run.defaults).unwrap();
            resolved.configuration.secret_namespaces.unwrap().0.to_string()
        };
        let listed = [("COFFERDAM_SECRET_NAMESPACES".to_owned(), "storage,arrays".to_owned())].into();
        assert_eq!(secret_namespaces(&no_environment()), "*", "{sidecar:?}");
        assert_eq!(secret_namespaces(&listed), "arrays,storage", "{sidecar:?}");
    }
}

fn no_environment() -> HashMap<String, String> {
    HashMap::new()
}

fn parse_text(sidecar: Sidecar, text: &str) -> Result<SidecarCommand, SidecarError> {
    let arguments = text.split(' ').filter(|argument| !argument.is_empty()).map(OsString::from);
    parse(sidecar, arguments, &no_environment())
}

fn run_of(sidecar: Sidecar, text: &str) -> SidecarRun {
    match parse_text(sidecar, text) {
        Ok(SidecarCommand::Run(run)) => *run,
        other => panic!("{text}: {other:?}"),
    }
}

fn resolve(sidecar: Sidecar, text: &str) -> Result<ResolvedConfig, ConfigError> {
    let run = run_of(sidecar, text);
    ResolvedConfig::for_sidecar(&run.values, &no_environment(), run.defaults)
}

fn configuration(sidecar: Sidecar, text: &str) -> Configuration {
    resolve(sidecar, text).unwrap().configuration
}

/// Arguments without which the sidecar does not start. A later value of a flag replaces them.
fn required_arguments(sidecar: Sidecar) -> &'static str {
    if sidecar == Sidecar::Registrar { "--kubelet-registration-path=/p/csi.sock " } else { "" }
}

#[test]
fn a_program_is_recognized_by_its_file_name() {
    for sidecar in Sidecar::ALL {
        let path = format!("/usr/bin/{}", sidecar.program());
        assert_eq!(Sidecar::from_program(OsStr::new(&path)), Some(sidecar));
        assert_eq!(Sidecar::from_program(OsStr::new(sidecar.program())), Some(sidecar));
    }
    for program in
        ["cofferdam", "/bin/csi-external-health-monitor-controller", "", "/", "csi-provisioner.old"]
    {
        assert_eq!(Sidecar::from_program(OsStr::new(program)), None, "{program}");
    }
}

#[test]
fn defaults_are_those_of_the_sidecar() {
    for (sidecar, timeout, probe_timeout) in [
        (Sidecar::Provisioner, "10s", "3s"),
        (Sidecar::Attacher, "15s", "3s"),
        (Sidecar::Resizer, "10s", "3s"),
        (Sidecar::Snapshotter, "1m", "3s"),
        (Sidecar::SnapshotController, "1m", "3s"),
        (Sidecar::Registrar, "1m", "1s"),
        (Sidecar::LivenessProbe, "1m", "3s"),
    ] {
        let is_registrar = sidecar == Sidecar::Registrar;
        let arguments = if is_registrar { "--kubelet-registration-path=/p/csi.sock" } else { "" };
        let found = configuration(sidecar, arguments);
        assert_eq!(found.timeout.to_string(), timeout, "{sidecar:?}");
        assert_eq!(found.probe_timeout.to_string(), probe_timeout, "{sidecar:?}");
        let address = found.csi_address.map(|address| address.0.to_string());
        let has_driver = sidecar != Sidecar::SnapshotController;
        assert_eq!(address.as_deref(), has_driver.then_some("/run/csi/socket"), "{sidecar:?}");
        assert!(found.leader_election != Some(true) && found.http_endpoint.is_none());
        assert!(found.immediate_topology && found.volume_name_uuid_length.0.is_none());
    }
}

/// The default of each flag that sets a setting is the default of this setting.
#[test]
fn defaults_of_flags_are_defaults_of_settings() {
    for flag in FLAGS {
        let FlagEffect::Sets(setting) = flag.effect else { continue };
        for sidecar in flag.sidecars {
            let required = required_arguments(*sidecar);
            let table = |arguments: &str| format!("{:?}", configuration(*sidecar, arguments));
            // Settings whose default depends on the role have no value.
            if flag.default.is_empty() || matches!(setting, "worker-threads" | "health-port") {
                continue;
            }
            let given = format!("{required}--{}={}", flag.name, flag.default);
            assert_eq!(table(&given), table(required), "{sidecar:?} --{}", flag.name);
        }
    }
}

/// A value of a flag that differs from its default.
fn other_value(flag: &SidecarFlag) -> &'static str {
    match (flag.name, flag.value) {
        ("http-endpoint" | "metrics-address", _) => ":7",
        ("metrics-path", _) => "/m",
        ("master", _) => "https://other",
        ("csi-address", _) => "/other/csi.sock",
        ("retry-interval-max", _) => "7m",
        ("leader-election-lease-duration", _) => "17s",
        ("node-deployment-max-delay", _) => "71s",
        (_, ValueType::Bool) if flag.default == "true" => "false",
        (_, ValueType::Bool) => "true",
        (_, ValueType::Int | ValueType::Uint) => "7",
        (_, ValueType::Duration) => "7s",
        (_, ValueType::Labels) => "team:a",
        _ => "other",
    }
}

#[test]
fn each_flag_changes_its_setting_only() {
    for flag in FLAGS {
        let FlagEffect::Sets(setting) = flag.effect else { continue };
        for sidecar in flag.sidecars {
            let required = required_arguments(*sidecar);
            let settings = |arguments: &str| resolve(*sidecar, arguments).unwrap().setting_values();
            let before = settings(required);
            let after = settings(&format!("{required}--{}={}", flag.name, other_value(flag)));
            let changed: Vec<_> = after
                .iter()
                .filter(|(name, value)| before.get(*name) != Some(value))
                .map(|(name, value)| (*name, value.as_str()))
                .collect();
            assert_eq!(changed, [(setting, other_value(flag))], "{sidecar:?} --{}", flag.name);
        }
    }
}

/// Errors of settings name the flag of the sidecar.
#[test]
fn errors_name_the_flag_of_the_command_line() {
    for (sidecar, text, expected) in [
        (Sidecar::Resizer, "--csiTimeout=0", "flag --csiTimeout: "),
        (Sidecar::Registrar, "--kubelet-registration-path=/p/s --timeout=0", "flag --timeout: "),
        (Sidecar::Registrar, "--kubelet-registration-path=/p/s --health-port=70000", "flag --health-port: "),
        (
            Sidecar::LivenessProbe,
            "--health-port=70000",
            "flag --health-port: found the number 70000, expected a whole number from 0 to 65535",
        ),
    ] {
        let error = resolve(sidecar, text).unwrap_err();
        assert!(error.to_string().starts_with(expected), "{text}: {error}");
    }
}

#[test]
fn flags_set_settings() {
    let found = configuration(
        Sidecar::Provisioner,
        "--volume-name-prefix=vol --volume-name-uuid-length=10 --leader-election \
         --leader-election-namespace=storage --leader-election-labels=team:a,tier:b --timeout 5m \
         --extra-create-metadata --immediate-topology=false --default-fstype=xfs --worker-threads=7 \
         --feature-gates=Topology=false -v=5 --logging-format=json --controller-publish-readonly=true",
    );
    assert_eq!((found.volume_name_prefix.as_str(), found.volume_name_uuid_length.0), ("vol", Some(10)));
    assert!(
        found.leader_election == Some(true)
            && found.extra_create_metadata
            && found.controller_publish_readonly
    );
    assert_eq!(found.leader_election_namespace.unwrap().0, "storage");
    let labels = [("team".to_owned(), "a".to_owned()), ("tier".to_owned(), "b".to_owned())];
    assert_eq!(found.leader_election_labels.0, labels.into());
    assert_eq!(found.timeout.to_string(), "5m");
    assert!(!found.immediate_topology && !found.feature_gates.is_enabled(FeatureGate::Topology));
    assert_eq!(found.default_fstype.as_deref(), Some("xfs"));
    assert_eq!(found.worker_threads.map(|workers| workers.0), Some(7));
    assert_eq!((found.log.0.as_str(), found.log_format), ("info,cofferdam=debug", LogFormat::Json));

    let found = configuration(Sidecar::Registrar, "--kubelet-registration-path /p/s --health-port=9809");
    assert_eq!(found.http_endpoint.unwrap().to_string(), ":9809");
    let found = configuration(Sidecar::LivenessProbe, "--health-port=9810 --probe-timeout=1s");
    assert_eq!(found.health_port, Some(9810));
    let found = configuration(Sidecar::Resizer, "--csiTimeout=2m5s --http-endpoint=");
    assert_eq!((found.timeout.to_string().as_str(), found.http_endpoint), ("2m5s", None));
}

#[test]
fn verbosity_never_logs_requests() {
    for (flag, filter) in
        [("-v=0", "info"), ("-v 3", "info"), ("--v=4", "info,cofferdam=debug"), ("-v9", DEBUG)]
    {
        assert_eq!(configuration(Sidecar::Provisioner, flag).log.0, filter, "{flag}");
    }
}

/// The filter of the highest verbosity.
const DEBUG: &str = "info,cofferdam=debug";

#[test]
fn node_deployment_takes_the_node_from_the_environment() {
    let arguments = || [OsString::from("--node-deployment")];
    let environment = HashMap::from([("NODE_NAME".to_owned(), "node-1".to_owned())]);
    let Ok(SidecarCommand::Run(run)) = parse(Sidecar::Provisioner, arguments(), &environment) else {
        panic!("expected a role to run");
    };
    let found = ResolvedConfig::for_sidecar(&run.values, &environment, run.defaults).unwrap().configuration;
    assert!(found.node_deployment);
    assert_eq!(found.node_name.as_deref(), Some("node-1"));
    let error = parse(Sidecar::Provisioner, arguments(), &no_environment()).unwrap_err().to_string();
    assert_eq!(
        error,
        "the environment variable NODE_NAME must be set with --node-deployment: expected the name of the Node"
    );
}

#[test]
fn flags_without_effect_are_named_in_one_warning() {
    let run = run_of(
        Sidecar::Attacher,
        "--kube-api-qps=20 --kube-api-burst=10 --max-grpc-log-length=100 --logtostderr --v=2 extra --v=3",
    );
    assert_eq!(
        run.warning.unwrap(),
        "csi-attacher: flags without effect: \
         --max-grpc-log-length=100: requests and responses are not logged; \
         --kube-api-qps=20: requests to the API are not rate limited; \
         extra and 1 more: the sidecar ignores these arguments, too"
    );
    let quiet =
        "--kube-api-qps=5 --leader-election=false --feature-gates=MutableCSINodeAllocatableCount=true";
    assert_eq!(run_of(Sidecar::Attacher, quiet).warning, None, "defaults are not named");
    let groups =
        "--feature-gates=CSIVolumeGroupSnapshot=true --groupsnapshot-name-prefix=g --resync-period=1h";
    assert_eq!(
        run_of(Sidecar::Snapshotter, groups).warning.unwrap(),
        "csi-snapshotter: flags without effect: --groupsnapshot-name-prefix=g: VolumeGroupSnapshots are left \
         alone; --resync-period=1h: watches report each change; a snapshot that is not ready is asked for again \
         after a back-off; --feature-gates=CSIVolumeGroupSnapshot=true: VolumeGroupSnapshots are left alone"
    );
    let gates = "--feature-gates=RecoverVolumeExpansionFailure=false,ReleaseLeaderElectionOnExit=true";
    assert_eq!(
        run_of(Sidecar::Resizer, gates).warning.unwrap(),
        "csi-resizer: flags without effect: --feature-gates=RecoverVolumeExpansionFailure=false: \
         a failed expansion can be replaced by a smaller one, and the claim's status has its size"
    );
}

#[test]
fn gates_of_the_sidecars_libraries_are_accepted() {
    let run = run_of(Sidecar::Attacher, "--feature-gates=WatchList=false");
    assert_eq!(
        run.warning.unwrap(),
        "csi-attacher: flags without effect: --feature-gates=WatchList=false: the gate is for API servers"
    );
}

#[test]
fn a_command_line_that_the_sidecar_rejects_is_rejected() {
    for (sidecar, text, expected) in [
        (Sidecar::Provisioner, "--resync=1m", "flag provided but not defined: --resync"),
        (
            Sidecar::Attacher,
            "--password=hunter2",
            "flag provided but not defined: --password: expected a flag of",
        ),
        (Sidecar::Attacher, "--metrics-address=:1 --http-endpoint=:2", "only one of --metrics-address and"),
        (Sidecar::LivenessProbe, "--health-port=1 --http-endpoint=:2", "only one of --health-port and"),
        (Sidecar::Registrar, "", "--kubelet-registration-path is a required parameter"),
        (
            Sidecar::Registrar,
            "--mode=kubelet-registration-probe",
            "--kubelet-registration-path is a required",
        ),
        (
            Sidecar::Resizer,
            "--feature-gates=Topology=true",
            "--feature-gates: unrecognized feature gate: Topology",
        ),
        (Sidecar::Resizer, "--logging-format=xml", "--logging-format: unsupported log format \"xml\""),
        (
            Sidecar::Provisioner,
            "--leader-election-type=endpoints",
            "--leader-election-type: unsupported type",
        ),
        (Sidecar::SnapshotController, "--csi-address=/csi/s", "flag provided but not defined: --csi-address"),
        (Sidecar::SnapshotController, "--leader-election-labels=a:b", "flag provided but not defined"),
        (
            Sidecar::Snapshotter,
            "--node-deployment",
            "the environment variable NODE_NAME must be set with --node-deployment",
        ),
        (
            Sidecar::Snapshotter,
            "--feature-gates=Topology=true",
            "--feature-gates: unrecognized feature gate: Topology",
        ),
        (Sidecar::LivenessProbe, "--version", "flag provided but not defined: --version"),
    ] {
        let error = parse_text(sidecar, text).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
}

#[test]
fn other_commands_are_recognized() {
    let is = |sidecar, text: &str, expected: fn(&SidecarCommand) -> bool| {
        assert!(expected(&parse_text(sidecar, text).unwrap()), "{text}");
    };
    is(Sidecar::Attacher, "--version --http-endpoint=:1", |found| matches!(found, SidecarCommand::Version));
    is(Sidecar::LivenessProbe, "-help", |found| matches!(found, SidecarCommand::Help));
    let probe = "--kubelet-registration-path=/p --mode=kubelet-registration-probe";
    is(Sidecar::Registrar, probe, |found| matches!(found, SidecarCommand::Exit));
}

#[test]
fn automaxprocs_limits_the_threads() {
    assert!(run_of(Sidecar::Attacher, "--automaxprocs").limits_threads);
    assert!(!run_of(Sidecar::Attacher, "--automaxprocs=false").limits_threads);
}

/// The row of docs/sidecar-flags.md for each flag.
fn page_rows() -> String {
    let mut rows = String::new();
    for flag in FLAGS {
        let programs: Vec<_> = flag.sidecars.iter().map(|sidecar| sidecar.program()).collect();
        let programs =
            if programs.len() == Sidecar::ALL.len() { "all".to_owned() } else { programs.join(", ") };
        let default = if flag.default.is_empty() { "none".to_owned() } else { format!("`{}`", flag.default) };
        let _ = writeln!(rows, "| `{}` | {programs} | {default} | {} |", flag.name, flag.effect);
    }
    rows
}

#[test]
fn the_page_of_flags_is_up_to_date() {
    let start = "<!-- flags: generated -->\n";
    let table = PAGE.split_once(start).and_then(|(_, rest)| rest.split_once("<!-- end -->")).unwrap().0;
    let header = "| flag | program | default | effect |\n|---|---|---|---|\n";
    let expected = format!("{header}{}", page_rows());
    assert!(table == expected, "expected in docs/sidecar-flags.md:\n{start}{expected}<!-- end -->");
}

#[test]
fn help_names_every_flag() {
    for sidecar in Sidecar::ALL {
        let help = help(sidecar);
        for flag in FLAGS.iter().filter(|flag| flag.sidecars.contains(&sidecar)) {
            assert!(help.contains(&format!("--{} ", flag.name)), "{sidecar:?}: {}", flag.name);
        }
    }
}
