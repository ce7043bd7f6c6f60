//! The log of a process under the name of a sidecar.

use crate::{
    driver::Behavior,
    fixture::{Fixture, PASSWORD, TIER, free_port, page, until},
    process::Process,
};

/// Provisions a volume with the class's Secret; returns the log.
async fn log_of_provisioner(flags: &[&str]) -> String {
    let fixture = Fixture::start(Behavior::default()).await;
    let mut process = fixture.start_sidecar("csi-provisioner", flags);
    fixture.create_claim("claim").await;
    let call = fixture.wait_for_calls("CreateVolume", 1).await;
    assert_eq!(call.password.as_deref(), Some(PASSWORD));
    assert_eq!(call.parameters["tier"], TIER);
    let has_volume =
        |list: &serde_json::Value| list["items"].as_array().is_some_and(|items| !items.is_empty());
    fixture.wait_for("/api/v1/persistentvolumes", has_volume).await;
    let status = process.end_with("TERM").await;
    let log = process.log();
    assert_eq!(status.code(), Some(0), "{log}");
    log
}

#[tokio::test]
async fn the_highest_verbosity_logs_neither_secrets_nor_requests() {
    for sidecar in ["csi-provisioner", "csi-attacher", "csi-resizer"] {
        let fixture = Fixture::start(Behavior::default()).await;
        let mut process = fixture.start_sidecar(sidecar, &["-v=9"]);
        let method = fixture.create_work(sidecar, "work").await;
        let call = fixture.wait_for_calls(method, 1).await;
        assert_eq!(call.password.as_deref(), Some(PASSWORD), "{sidecar}");
        let log = assert_quiet(sidecar, &mut process).await;
        assert!(log.contains("DEBUG"), "{sidecar}: the verbosity has no effect: {log}");
    }
}

#[tokio::test]
async fn the_highest_verbosity_on_a_node_logs_no_requests() {
    let plugins = tempfile::TempDir::new().unwrap();
    let plugins = format!("--plugin-registration-path={}", plugins.path().display());
    let registration = ["--kubelet-registration-path=/p/csi.sock", &plugins, "-v=9"];
    let port = free_port();
    let health = format!("--health-port={port}");
    let fixture = Fixture::start(Behavior::default()).await;
    let mut registrar = fixture.start_node_sidecar("csi-node-driver-registrar", &registration);
    fixture.wait_for_calls("GetPluginInfo", 1).await;
    assert_quiet("csi-node-driver-registrar", &mut registrar).await;
    let mut liveness = fixture.start_node_sidecar("livenessprobe", &[&health, "-v=9"]);
    assert_eq!(page(port, "/healthz").await.0, 200);
    assert_quiet("livenessprobe", &mut liveness).await;
}

/// Ends a process with `-v=9`. Its log has no Secret or content of a request. Returns the log.
async fn assert_quiet(program: &str, process: &mut Process) -> String {
    let status = process.end_with("TERM").await;
    let log = process.log();
    assert_eq!(status.code(), Some(0), "{program}: {log}");
    for text in [PASSWORD, TIER, "\"apiVersion\"", "secret-name", "volume_capability", "vendor_version"] {
        assert!(!log.contains(text), "{program}: {text}: {log}");
    }
    log
}

#[tokio::test]
async fn the_log_has_the_format_of_the_flag() {
    let log = log_of_provisioner(&["--logging-format=json"]).await;
    assert!(!log.is_empty());
    for line in log.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(line["level"].is_string(), "{line}");
    }
    let log = log_of_provisioner(&["--logging-format=text"]).await;
    assert!(log.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_err()), "{log}");
}

#[tokio::test]
async fn verbosity_zero_logs_no_debug_messages() {
    let log = log_of_provisioner(&["--v=0"]).await;
    assert!(log.contains("INFO") && !log.contains("DEBUG"), "{log}");
}

#[tokio::test]
async fn flags_without_effect_are_logged_once() {
    let log = log_of_provisioner(&["--kube-api-qps=100", "--kube-api-burst=200", "--v=5"]).await;
    let warnings: Vec<_> = log.lines().filter(|line| line.contains("without effect")).collect();
    let [warning] = warnings.as_slice() else { panic!("{log}") };
    assert!(warning.contains("--kube-api-burst=200 --kube-api-qps=100: requests to the API"), "{warning}");
}

#[tokio::test]
async fn an_invalid_value_ends_the_program_with_one_line() {
    let fixture = Fixture::start(Behavior::default()).await;
    let mut process: Process = fixture.start_sidecar("csi-attacher", &["--vmodule=attacher"]);
    assert_eq!(process.wait().await.code(), Some(2));
    let log = until("line of the log", || Some(process.log()).filter(|log| log.ends_with('\n'))).await;
    assert_eq!(
        log,
        "csi-attacher: invalid value \"attacher\" for flag --vmodule: expected PATTERN=NUMBER, with commas \
         between several\n"
    );
}
