//! The effect of the sidecars' flags, as the driver, the API server and HTTP clients see it.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
    time::Duration,
};

use serde_json::{Value, json};

use crate::{
    driver::{Behavior, NAME, RecordedCall},
    fixture::{CLAIMS, Fixture, LEASE, free_port, lease_holder, page, poll, until},
    process::Process,
};

const MINUTE: Duration = Duration::from_secs(60);
const ADDS: &str = "workqueue_adds_total{name=\"attacher_attach\"}";

/// The deadline is the flag's 50 minutes, less the time since the start of the call, and not the default of
/// at most 15 s.
fn is_of_fifty_minutes(call: &RecordedCall) -> bool {
    call.timeout.is_some_and(|timeout| timeout > MINUTE && timeout < 51 * MINUTE)
}

#[tokio::test]
async fn flags_of_the_provisioner_change_create_calls() {
    type Effect = fn(&RecordedCall) -> bool;
    // Flags, the effect, and if the process without the flag has it.
    let table: [(&str, Effect); 5] = [
        ("--timeout=50m", is_of_fifty_minutes),
        ("--default-fstype=xfs", |call| call.fs_type == "xfs"),
        ("--extra-create-metadata", |call| {
            call.parameters.get("csi.storage.k8s.io/pvc/name").is_some_and(|name| name == "claim")
        }),
        ("--feature-gates=Topology=false", |call| call.topologies == 0),
        ("--feature-gates=VolumeAttributesClass=false", |call| call.mutable_parameters.is_empty()),
    ];
    let first_create = async |flags: &[&str]| {
        let fixture = Fixture::start(Behavior::default()).await;
        let _process = fixture.start_sidecar("csi-provisioner", flags);
        fixture.create_claim("claim").await;
        fixture.wait_for_calls("CreateVolume", 1).await
    };
    let default = first_create(&[]).await;
    for (flag, effect) in table {
        let call = first_create(&[flag]).await;
        assert!(effect(&call), "{flag}: {call:?}");
        assert!(!effect(&default), "without {flag}: {default:?}");
    }
}

/// The requisite topologies are those of the selected node with `--strict-topology`, and otherwise of all
/// nodes.
#[tokio::test]
async fn topologies_are_those_of_the_flags() {
    for (flags, expected) in [(&["--strict-topology"][..], 1), (&[], 2)] {
        let fixture = Fixture::start(Behavior::default()).await;
        fixture.create_node("node-2", "b").await;
        let _process = fixture.start_sidecar("csi-provisioner", flags);
        fixture.create_claim_for_node("claim", "node-1").await;
        let call = fixture.wait_for_calls("CreateVolume", 1).await;
        assert_eq!(call.topologies, expected, "{flags:?}: {call:?}");
    }
    for (flags, expected) in [(&["--immediate-topology=false"][..], 0), (&[], 2)] {
        let fixture = Fixture::start(Behavior::default()).await;
        fixture.create_node("node-2", "b").await;
        let _process = fixture.start_sidecar("csi-provisioner", flags);
        fixture.create_claim("claim").await;
        let call = fixture.wait_for_calls("CreateVolume", 1).await;
        assert_eq!(call.topologies, expected, "{flags:?}: {call:?}");
    }
}

#[tokio::test]
async fn flags_of_the_provisioner_change_volumes() {
    let flags = ["--volume-name-prefix=vol", "--volume-name-uuid-length=8", "--controller-publish-readonly"];
    for (flags, prefix, length, read_only) in
        [(&flags[..], "vol-", 8, json!(true)), (&[], "pvc-", 36, Value::Null)]
    {
        let fixture = Fixture::start(Behavior::default()).await;
        let _process = fixture.start_sidecar("csi-provisioner", flags);
        let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": "claim", "annotations": {"volume.kubernetes.io/storage-provisioner": NAME}},
            "spec": {"storageClassName": "gold", "accessModes": ["ReadOnlyMany"],
                "resources": {"requests": {"storage": "1Gi"}}}});
        fixture.create(CLAIMS, claim).await;
        let volume = fixture.wait_for_volume("claim").await;
        let name = volume["metadata"]["name"].as_str().unwrap();
        assert!(name.starts_with(prefix) && name.len() == prefix.len() + length, "{flags:?}: {name}");
        assert_eq!(volume["spec"]["csi"]["readOnly"], read_only, "{flags:?}: {volume}");
    }
}

/// With a wrong address in the kubeconfig, only `--master` leads to the API server.
#[tokio::test]
async fn the_api_server_is_that_of_the_flag() {
    for sidecar in ["csi-provisioner", "csi-resizer"] {
        let fixture = Fixture::start(Behavior::default()).await;
        let path = fixture.path().join("kubeconfig");
        let kubeconfig = std::fs::read_to_string(&path).unwrap();
        let url =
            kubeconfig.split(['\'', '"', ' ', '\n', ',']).find(|word| word.starts_with("https://")).unwrap();
        let master = format!("--master={url}");
        let wrong = format!("https://127.0.0.1:{}", free_port());
        std::fs::write(&path, kubeconfig.replace(url, &wrong)).unwrap();
        let method = fixture.create_work(sidecar, "work").await;
        let _process = fixture.start_sidecar(sidecar, &[&master]);
        fixture.wait_for_calls(method, 1).await;
    }
}

/// Flags of a process that attempts to select its node for a claim with hardly a delay.
const SHORT_DELAYS: [&str; 2] = ["--node-deployment-base-delay=1ms", "--node-deployment-max-delay=2ms"];

/// Starts csi-provisioner on node-1, as one of the processes of all nodes.
fn start_on_node(fixture: &Fixture, flags: &[&str]) -> Process {
    let environment = BTreeMap::from([("NODE_NAME".to_owned(), "node-1".to_owned())]);
    let mut arguments = fixture.connection_flags();
    arguments.extend(["--node-deployment"].iter().chain(flags).map(|flag| (*flag).to_owned()));
    fixture.spawn_with(&mut fixture.command("csi-provisioner", &arguments), &environment)
}

/// Each attempt to select the node reads the driver's capacity, and fails without capacity. The delay doubles
/// with each attempt, so with either of the default delays the last of these attempts is later than the test
/// waits.
#[tokio::test]
async fn attempts_to_select_the_node_have_the_delays_of_the_flags() {
    let fixture = Fixture::start(Behavior { has_no_capacity: true, ..Behavior::default() }).await;
    let _process = start_on_node(&fixture, &SHORT_DELAYS);
    fixture.create_claim("claim").await;
    fixture.wait_for_calls("GetCapacity", 20).await;
    assert!(fixture.driver.calls("CreateVolume").is_empty());
}

/// One worker takes the claims in the order of their creation: when it provisions a claim, it has looked at
/// the claims before. The delay is random, and at least a thousandth of the flag's.
#[tokio::test]
async fn no_node_is_selected_within_a_long_delay() {
    let fixture = Fixture::start(Behavior::default()).await;
    let flags =
        ["--node-deployment-base-delay=1000h", "--node-deployment-max-delay=1000h", "--worker-threads=1"];
    let _process = start_on_node(&fixture, &flags);
    // The process knows the class and the nodes.
    fixture.create_claim_for_node("first", "node-1").await;
    fixture.wait_for_volume("first").await;
    fixture.create_claim("immediate").await;
    fixture.create_claim_for_node("last", "node-1").await;
    fixture.wait_for_volume("last").await;
    let claim = fixture.get(&format!("{CLAIMS}/immediate")).await;
    assert!(claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"].is_null(), "{claim}");
    assert_eq!(fixture.driver.calls("CreateVolume").len(), 2);
}

/// A claim without a selected node is provisioned on one of the nodes, unless the flag says otherwise.
#[tokio::test]
async fn immediate_claims_are_provisioned_as_the_flag_says() {
    let start = async |flags: &[&str]| {
        let fixture = Fixture::start(Behavior::default()).await;
        let process = start_on_node(&fixture, &[&SHORT_DELAYS[..], flags].concat());
        fixture.create_claim("immediate").await;
        (fixture, process)
    };
    let (fixture, _process) = start(&[]).await;
    fixture.wait_for_calls("CreateVolume", 1).await;

    let (fixture, _process) = start(&["--node-deployment-immediate-binding=false"]).await;
    fixture.create_claim_for_node("selected", "node-1").await;
    fixture.wait_for_calls("CreateVolume", 1).await;
    let volumes = |list: &Value| list["items"].as_array().is_some_and(|items| !items.is_empty());
    let list = fixture.wait_for("/api/v1/persistentvolumes", volumes).await;
    assert_eq!(list["items"][0]["spec"]["claimRef"]["name"], "selected", "{list}");
    assert_eq!(fixture.driver.calls("CreateVolume").len(), 1);
}

/// Names of a process's threads that run its tasks.
fn worker_threads(process: &Process) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", process.id())).unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim_end() == "cofferdam").count()
}

/// The first processor that this process may use.
fn allowed_processor() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    list.trim().split([',', '-']).next().unwrap().to_owned()
}

/// A process on one processor has one worker with the flag, and at least two without it. Threads for blocking
/// work, which have the same name, end after some seconds without work.
#[tokio::test]
async fn automaxprocs_limits_the_worker_threads() {
    for (flags, is_expected) in
        [(&["--automaxprocs"][..], (|count| count == 1) as fn(usize) -> bool), (&[], |count| count >= 2)]
    {
        let fixture = Fixture::start(Behavior::default()).await;
        let mut command = Command::new("taskset");
        command.args(["--cpu-list", &allowed_processor()]).arg(fixture.program("csi-attacher"));
        let process = fixture.spawn(command.args(fixture.connection_flags()).args(flags));
        fixture.create_attachment("attachment").await;
        fixture.wait_for_calls("ControllerPublishVolume", 1).await;
        let what = format!("number of worker threads with {flags:?}");
        until(&what, || is_expected(worker_threads(&process)).then_some(())).await;
    }
}

/// The default intervals are 1 s, 2 s, 4 s and so on. With a first interval of 100 ms and the default of the
/// longest, those after the first five are longer than 3 s. One short interval therefore is enough, and a
/// slow machine may delay the others. The work exists before the process, so that no change of it causes a
/// call.
#[tokio::test]
async fn retry_intervals_are_those_of_the_flags() {
    let behavior = Behavior { fails_creates: true, fails_publications: true, ..Behavior::default() };
    for sidecar in ["csi-provisioner", "csi-attacher"] {
        for (flags, skipped) in [
            (&["--retry-interval-start=20ms"][..], 0),
            (&["--retry-interval-start=100ms", "--retry-interval-max=200ms"], 5),
        ] {
            let fixture = Fixture::start(behavior).await;
            let method = fixture.create_work(sidecar, "work").await;
            let _process = fixture.start_sidecar(sidecar, flags);
            let has_short_interval = || {
                let calls = fixture.driver.calls(method);
                let mut intervals = calls.windows(2).skip(skipped).map(|pair| pair[1].at - pair[0].at);
                intervals.any(|interval| interval < Duration::from_millis(500)).then_some(())
            };
            until(&format!("short interval of {sidecar} with {flags:?}"), has_short_interval).await;
        }
    }
}

#[tokio::test]
async fn worker_threads_limit_concurrent_calls() {
    for (program, method, limit) in [
        ("csi-provisioner", "CreateVolume", "--worker-threads=1"),
        ("csi-attacher", "ControllerPublishVolume", "--worker-threads=1"),
        ("csi-resizer", "ControllerExpandVolume", "--workers=1"),
    ] {
        let start = async |flags: &[&str]| {
            let fixture = Fixture::start(Behavior { held_method: method, ..Behavior::default() }).await;
            for name in ["a", "b", "c", "d"] {
                fixture.create_work(program, name).await;
            }
            let process = fixture.start_sidecar(program, flags);
            (fixture, process)
        };
        // No call returns, so all of them run at the same time.
        let (fixture, _process) = start(&[]).await;
        fixture.wait_for_calls(method, 4).await;
        assert_eq!(fixture.driver.max_running_calls(), 4, "{program}");

        let (fixture, _process) = start(&[limit]).await;
        for count in 1..=4 {
            fixture.wait_for_calls(method, count).await;
            fixture.driver.release();
        }
        assert_eq!(fixture.driver.max_running_calls(), 1, "{program}");
    }
}

#[tokio::test]
async fn flags_of_leader_election_are_those_of_the_lease() {
    let mut fixture = Fixture::start(Behavior::default()).await;
    let flags = [
        "--leader-election",
        "--leader-election-namespace=storage",
        "--leader-election-lease-duration=21s",
        "--leader-election-renew-deadline=3s",
        "--leader-election-retry-period=100ms",
        "--leader-election-labels=team:a,tier:b",
    ];
    let process = fixture.start_sidecar("csi-provisioner", &flags);
    let lease = fixture.wait_for(LEASE, |lease| !lease_holder(lease).is_empty()).await;
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 21);
    assert_eq!(lease["metadata"]["labels"], json!({"team": "a", "tier": "b"}));
    // With the default period of 5 s, this number of renewals takes longer than the test waits.
    let renewals = std::sync::Mutex::new(BTreeSet::new());
    let count = |lease: &Value| {
        let mut renewals = renewals.lock().unwrap();
        renewals.insert(lease["spec"]["renewTime"].to_string());
        renewals.len() > 20
    };
    fixture.wait_for(LEASE, count).await;
    fixture.stop_api();
    let lost = || process.log().contains("not renewed within the renew deadline, 3s").then_some(());
    until("the loss of the Lease", lost).await;
}

/// A page, and the status code that is expected.
async fn assert_pages(port: u16, pages: &[(&str, u16)], flags: &[&str]) {
    for (path, expected) in pages {
        let (code, body) = page(port, path).await;
        assert_eq!(code, *expected, "{flags:?} {path}: {body}");
        let has_metrics = body.contains("\n# TYPE ");
        let is_metrics = *expected == 200 && path.contains('m');
        assert_eq!(has_metrics, is_metrics, "{flags:?} {path}: {body}");
    }
}

#[tokio::test]
async fn pages_are_on_the_ports_of_the_flags() {
    let (port, other) = (free_port(), free_port());
    let endpoint = format!("--http-endpoint=127.0.0.1:{port}");
    let metrics = format!("--metrics-address=127.0.0.1:{port}");
    let health = format!("--health-port={other}");
    let all: &[_] = &[("/healthz", 200), ("/metrics", 200)];
    let other_path: &[_] = &[("/healthz", 200), ("/metrics", 404), ("/m", 200)];
    let metrics_only: &[_] = &[("/healthz", 404), ("/metrics", 200)];
    let health_only: &[_] = &[("/healthz", 200), ("/metrics", 404)];
    let registration = "--kubelet-registration-path=/p/csi.sock";
    type Row<'a> = (&'a str, &'a [&'a str], &'a [(u16, &'a [(&'a str, u16)])]);
    let table: [Row<'_>; 9] = [
        ("csi-provisioner", &[&endpoint], &[(port, all)]),
        ("csi-attacher", &[&endpoint, "--metrics-path=/m"], &[(port, other_path)]),
        ("csi-resizer", &[&metrics], &[(port, metrics_only)]),
        ("csi-resizer", &[&metrics, "--metrics-path=/m"], &[(port, &[("/metrics", 404), ("/m", 200)])]),
        ("csi-node-driver-registrar", &[registration, &health], &[(other, all)]),
        ("csi-node-driver-registrar", &[registration, &endpoint], &[(port, all)]),
        ("livenessprobe", &[&health], &[(other, all)]),
        ("livenessprobe", &[&health, &metrics], &[(other, health_only), (port, metrics_only)]),
        ("livenessprobe", &[&endpoint], &[(port, all)]),
    ];
    for (program, flags, ports) in table {
        let fixture = Fixture::start(Behavior::default()).await;
        let plugins = format!("--plugin-registration-path={}", fixture.path().display());
        let _process = match program {
            "livenessprobe" => fixture.start_node_sidecar(program, flags),
            "csi-node-driver-registrar" => {
                fixture.start_node_sidecar(program, &[flags, &[&plugins]].concat())
            }
            _ => fixture.start_sidecar(program, flags),
        };
        for (port, pages) in ports {
            assert_pages(*port, pages, flags).await;
        }
    }
}

#[tokio::test]
async fn probe_calls_have_the_timeout_of_the_flag() {
    for (flags, expected) in [(&["--probe-timeout=5s"][..], "within 5s"), (&[], "within 3s")] {
        let fixture = Fixture::start(Behavior { hangs_in_probes: true, ..Behavior::default() }).await;
        let port = free_port();
        let health = format!("--health-port={port}");
        let _process = fixture.start_node_sidecar("livenessprobe", &[flags, &[&health]].concat());
        let (code, body) = page(port, "/healthz").await;
        assert!(code == 500 && body.contains(expected), "{flags:?}: {code} {body}");
    }
}

/// Dashboards select the calls by the driver's name, as for livenessprobe.
#[tokio::test]
async fn probe_calls_are_counted_by_code() {
    for (hangs_in_probes, hangs_in_plugin_info, name, code) in [
        (false, false, NAME, "OK"),
        (true, false, NAME, "DeadlineExceeded"),
        (true, true, "unknown-driver", "DeadlineExceeded"),
    ] {
        let behavior = Behavior { hangs_in_probes, hangs_in_plugin_info, ..Behavior::default() };
        let fixture = Fixture::start(behavior).await;
        let port = free_port();
        let health = format!("--health-port={port}");
        let metrics_port = free_port();
        let metrics = format!("--metrics-address=127.0.0.1:{metrics_port}");
        let flags = [health.as_str(), &metrics, "--probe-timeout=500ms"];
        let _process = fixture.start_node_sidecar("livenessprobe", &flags);
        page(port, "/healthz").await;
        let (_, body) = page(metrics_port, "/metrics").await;
        let count = format!(
            "csi_sidecar_operations_seconds_count{{driver_name={name:?},\
             method_name=\"/csi.v1.Identity/Probe\",grpc_status_code={code:?},migrated=\"false\"}} 1"
        );
        assert!(body.contains(&count), "{count}: {body}");
    }
}

#[tokio::test]
async fn calls_of_the_registrar_have_the_timeout_of_the_flag() {
    for (flags, expected) in [(&["--timeout=2s"][..], "within 2s"), (&[], "within 1s")] {
        let fixture = Fixture::start(Behavior { hangs_in_plugin_info: true, ..Behavior::default() }).await;
        let plugins = format!("--plugin-registration-path={}", fixture.path().display());
        let registration = "--kubelet-registration-path=/var/lib/kubelet/plugins/existing/csi.sock";
        let flags = [flags, &[&plugins, registration]].concat();
        let process = fixture.start_node_sidecar("csi-node-driver-registrar", &flags);
        until(&format!("{expected:?} in the log"), || process.log().contains(expected).then_some(())).await;
    }
}

/// Value of a counter of the page, 0 if the page does not have it.
async fn counter(port: u16, name: &str) -> u64 {
    let (_, body) = page(port, "/metrics").await;
    let line = body.lines().find_map(|line| line.strip_prefix(name));
    line.map_or(0, |value| value.trim().parse().unwrap())
}

#[tokio::test]
async fn attachments_are_read_again_at_the_interval_of_the_flag() {
    let fixture = Fixture::start(Behavior::default()).await;
    fixture.create_attachment("attachment").await;
    let port = free_port();
    let endpoint = format!("--http-endpoint=127.0.0.1:{port}");
    // The other interval is longer than the test waits.
    let flags = ["--resync=1s", "--reconcile-sync=87600h", &endpoint];
    let _process = fixture.start_sidecar("csi-attacher", &flags);
    let is_attached = |object: &Value| object["status"]["attached"] == json!(true);
    fixture.wait_for("/apis/storage.k8s.io/v1/volumeattachments/attachment", is_attached).await;
    let added = counter(port, ADDS).await;
    poll("10 added keys", async || (counter(port, ADDS).await >= added + 10).then_some(())).await;
    assert_eq!(fixture.driver.calls("ControllerPublishVolume").len(), 1);
}

#[tokio::test]
async fn claims_are_read_again_at_the_interval_of_the_flag() {
    const ADDS: &str = "workqueue_adds_total{name=\"resizer_expansion\"}";
    let fixture = Fixture::start(Behavior::default()).await;
    fixture.create_claim_to_resize("claim").await;
    let port = free_port();
    let endpoint = format!("--http-endpoint=127.0.0.1:{port}");
    let _process = fixture.start_sidecar("csi-resizer", &["--resync-period=1s", &endpoint]);
    let is_expanded = |claim: &Value| claim["status"]["capacity"]["storage"] == json!("2Gi");
    fixture.wait_for("/api/v1/namespaces/default/persistentvolumeclaims/claim", is_expanded).await;
    let added = counter(port, ADDS).await;
    poll("10 added keys", async || (counter(port, ADDS).await >= added + 10).then_some(())).await;
    assert_eq!(fixture.driver.calls("ControllerExpandVolume").len(), 1);
}

#[tokio::test]
async fn feature_gates_change_what_is_written() {
    let behavior = Behavior { fails_publications: true, expands_on_nodes: true, ..Behavior::default() };
    let table: [(&[&str], &[&str], bool); 2] = [
        (&[], &[], true),
        (
            &["--feature-gates=MutableCSINodeAllocatableCount=false"],
            &["--feature-gates=AnnotateFsResize=false"],
            false,
        ),
    ];
    for (attacher_flags, resizer_flags, has_them) in table {
        let fixture = Fixture::start(behavior).await;
        fixture.create_attachment("attachment").await;
        let _attacher = fixture.start_sidecar("csi-attacher", attacher_flags);
        let has_error = |object: &Value| object["status"]["attachError"]["message"].is_string();
        let attachment =
            fixture.wait_for("/apis/storage.k8s.io/v1/volumeattachments/attachment", has_error).await;
        let code = &attachment["status"]["attachError"]["errorCode"];
        assert_eq!(code == &json!(8), has_them, "{attachment}");

        fixture.create_claim_to_resize("claim").await;
        let _resizer = fixture.start_sidecar("csi-resizer", resizer_flags);
        let is_expanded = |volume: &Value| volume["spec"]["capacity"]["storage"] == json!("2Gi");
        let volume = fixture.wait_for("/api/v1/persistentvolumes/claim", is_expanded).await;
        let annotation = &volume["metadata"]["annotations"]["volume.alpha.kubernetes.io/pre-resize-capacity"];
        assert_eq!(annotation == &json!("1Gi"), has_them, "{volume}");
    }
}

/// csi-provisioner prefers the variable `KUBECONFIG`, which the other sidecars do not read.
#[tokio::test]
async fn the_provisioner_prefers_the_variable_with_the_kubeconfig() {
    let fixture = Fixture::start(Behavior::default()).await;
    fixture.create_claim("claim").await;
    fixture.create_attachment("attachment").await;
    let kubeconfig = fixture.path().join("kubeconfig").display().to_string();
    let environment = BTreeMap::from([("KUBECONFIG".to_owned(), kubeconfig)]);
    let mut arguments = fixture.connection_flags();
    arguments[1] = "--kubeconfig=/nonexistent".to_owned();
    let _provisioner = fixture.spawn_with(&mut fixture.command("csi-provisioner", &arguments), &environment);
    fixture.wait_for_calls("CreateVolume", 1).await;
    let mut attacher = fixture.spawn_with(&mut fixture.command("csi-attacher", &arguments), &environment);
    assert!(!attacher.wait().await.success());
    assert!(attacher.log().contains("/nonexistent"), "{}", attacher.log());
}

#[tokio::test]
async fn the_flag_of_earlier_versions_enables_leader_election() {
    let fixture = Fixture::start(Behavior::default()).await;
    let flags = ["--enable-leader-election", "--leader-election-namespace=storage"];
    let _process = fixture.start_sidecar("csi-provisioner", &flags);
    fixture.wait_for(LEASE, |lease| !lease_holder(lease).is_empty()).await;
}

#[tokio::test]
async fn flags_of_the_attacher_change_its_calls() {
    let fixture = Fixture::start(Behavior::default()).await;
    let flags = ["--timeout=50m", "--default-fstype=xfs", "--reconcile-sync=1s", "--max-entries=3"];
    fixture.create_attachment("attachment").await;
    let _process = fixture.start_sidecar("csi-attacher", &flags);
    let call = fixture.wait_for_calls("ControllerPublishVolume", 1).await;
    assert!(is_of_fifty_minutes(&call) && call.fs_type == "xfs", "{call:?}");
    // With the default of 1 minute, the second call is later than the test waits.
    assert_eq!(fixture.wait_for_calls("ListVolumes", 3).await.max_entries, 3);
}

/// A driver that expands volumes offline only is not called again while a pod uses the claim, unless the flag
/// says so.
#[tokio::test]
async fn flags_of_the_resizer_change_its_calls() {
    let behavior = Behavior { fails_expansions: true, ..Behavior::default() };
    let retries = ["--retry-interval-start=20ms", "--retry-interval-max=40ms"];
    let name = "csi.storage.k8s.io/pvc/name";

    let fixture = Fixture::start(behavior).await;
    fixture.create_claim_to_resize("claim").await;
    let flags = ["--csiTimeout=50m", "--handle-volume-inuse-error=false", "--extra-modify-metadata"];
    let process = fixture.start_sidecar("csi-resizer", &[&flags[..], &retries].concat());
    let call = fixture.wait_for_calls("ControllerExpandVolume", 3).await;
    assert!(is_of_fifty_minutes(&call), "{call:?}");
    let call = fixture.wait_for_calls("ControllerModifyVolume", 1).await;
    assert_eq!(
        (call.mutable_parameters["iops"].as_str(), call.mutable_parameters[name].as_str()),
        ("9", "claim")
    );
    drop(process);

    let fixture = Fixture::start(behavior).await;
    fixture.create_claim_to_resize("claim").await;
    let process = fixture.start_sidecar("csi-resizer", &retries);
    let call = fixture.wait_for_calls("ControllerExpandVolume", 1).await;
    assert!(!is_of_fifty_minutes(&call), "{call:?}");
    let call = fixture.wait_for_calls("ControllerModifyVolume", 1).await;
    assert!(!call.mutable_parameters.contains_key(name), "{call:?}");
    let in_use = |events: &Value| events.to_string().contains("does not expand a volume in use");
    fixture.wait_for("/api/v1/namespaces/default/events", in_use).await;
    assert_eq!(fixture.driver.calls("ControllerExpandVolume").len(), 1);
    drop(process);

    let fixture = Fixture::start(behavior).await;
    fixture.create_claim_to_resize("claim").await;
    let flags = ["--feature-gates=VolumeAttributesClass=false", "--handle-volume-inuse-error=false"];
    let _process = fixture.start_sidecar("csi-resizer", &[&flags[..], &retries].concat());
    fixture.wait_for_calls("ControllerExpandVolume", 3).await;
    assert!(fixture.driver.calls("ControllerModifyVolume").is_empty());
}

#[tokio::test]
async fn timeouts_of_the_resizer_are_those_of_the_flags() {
    // Flags, and if the expansion and the modification have the long timeout.
    for (flags, expected) in [
        (&["--resize-timeout=50m"][..], (true, false)),
        (&["--modify-timeout=50m"], (false, true)),
        (&["--timeout=50m", "--resize-timeout=1m", "--modify-timeout=1m"], (true, true)),
    ] {
        let fixture = Fixture::start(Behavior { fails_expansions: true, ..Behavior::default() }).await;
        fixture.create_claim_to_resize("claim").await;
        let _process = fixture.start_sidecar("csi-resizer", flags);
        let expansion = fixture.wait_for_calls("ControllerExpandVolume", 1).await;
        let modification = fixture.wait_for_calls("ControllerModifyVolume", 1).await;
        let found = (is_of_fifty_minutes(&expansion), is_of_fifty_minutes(&modification));
        assert_eq!(found, expected, "{flags:?}");
    }
}

/// With `storageCapacity: true`, pods would wait for CSIStorageCapacity objects that the program does not
/// write.
#[tokio::test]
async fn capacity_objects_that_the_scheduler_needs_end_the_process() {
    for (storage_capacity, flags, runs) in [
        (true, &["--enable-capacity"][..], false),
        (true, &[], true),
        (false, &["--enable-capacity", "--capacity-poll-interval=30s"], true),
    ] {
        let fixture = Fixture::start(Behavior::default()).await;
        let driver = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": NAME},
            "spec": {"storageCapacity": storage_capacity}});
        fixture.create("/apis/storage.k8s.io/v1/csidrivers", driver).await;
        let mut process = fixture.start_sidecar("csi-provisioner", flags);
        fixture.create_claim("claim").await;
        if runs {
            fixture.wait_for_calls("CreateVolume", 1).await;
            continue;
        }
        assert!(!process.wait().await.success());
        let log = process.log();
        assert!(
            log.contains("--enable-capacity: the storageCapacity of CSIDriver existing.example is true"),
            "{log}"
        );
        assert!(fixture.driver.calls("CreateVolume").is_empty());
    }
}
