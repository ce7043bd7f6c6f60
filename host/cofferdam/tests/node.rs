//! Tests of the node roles in the built binary: all three in one process, and invalid settings at the start.
//! They need no root: no volume is mounted.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test fails by panicking, also in what its functions share"
)]

#[path = "common/process.rs"]
mod process;

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    os::unix::net::UnixStream,
    path::Path,
    process::{Command, Stdio},
};

use process::{Process, lines};

const MANIFEST: &str = r#"{"manifestVersion":1,"driver":"pool.example.com","version":"1",
    "topologyKeys":["topology.cofferdam.dev/node"],"volumesPerNode":null,"features":[],"abilities":[]}"#;

fn run_command(home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cofferdam"));
    command.arg("run").args(arguments).env_clear().env("HOME", home).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Exit code of an invalid setting.
const INVALID: i32 = 2;
/// Exit code of a directory that cannot be used.
const UNUSABLE: i32 = 1;

/// Expects this exit code, and this text on stderr.
fn assert_start_fails(home: &Path, arguments: &[&str], code: i32, expected: &str) {
    let output = run_command(home, arguments).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
    assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
}

fn get(port: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

#[test]
fn node_registrar_and_liveness_in_one_process() {
    let home = tempfile::TempDir::new().unwrap();
    let path = |name: &str| home.path().join(name).display().to_string();
    fs::write(path("manifest.json"), MANIFEST).unwrap();
    let (manifest, socket, plugins) =
        (path("manifest.json"), path("csi.sock"), home.path().display().to_string());
    #[rustfmt::skip] // flags with their values
    let arguments = [
        "--role", "node,registrar", "--role", "liveness", "--manifest", &manifest, "--csi-endpoint", &socket,
        "--node-name", "n1", "--plugin-registration-path", &plugins, "--http-endpoint", "127.0.0.1:0",
        "--log", "info", "--kubelet-root", &plugins,
    ];
    let mut child = Process::start(&mut run_command(home.path(), &arguments));
    let mut log = lines(child.take_stderr());
    let mut next_line_with = |what: &str| log.find(|line| line.contains(what)).unwrap();
    // This line may be logged before or after the registration socket is served.
    let port =
        next_line_with("/healthz").split("127.0.0.1:").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    let registration = home.path().join("pool.example.com@reg.sock");
    while UnixStream::connect(&registration).is_err() {
        std::thread::yield_now();
    }
    UnixStream::connect(&socket).expect("the socket is served before kubelet hears of it");
    let healthy = get(&port, "/healthz");
    assert!(healthy.starts_with("HTTP/1.1 200") && healthy.ends_with("ok\n"), "{healthy}");
    let metrics = get(&port, "/metrics");
    assert!(metrics.contains("/csi.v1.Identity/Probe"), "{metrics}");

    child.signal("TERM");
    assert_eq!(child.wait_blocking().code(), Some(0));
    assert!(!registration.exists() && !Path::new(&socket).exists(), "kubelet forgets the driver");
}

#[test]
fn invalid_node_settings_are_rejected_at_start() {
    let home = tempfile::TempDir::new().unwrap();
    let path = |name: &str| home.path().join(name).display().to_string();
    fs::write(path("manifest.json"), MANIFEST).unwrap();
    let write = |name: &str, text: &str| {
        fs::write(path(name), text).unwrap();
        path(name)
    };
    let rootless = write("rootless.toml", "[node]\nconnection-kinds = [\"directory\"]\n");
    let unknown = write("unknown.toml", "[node]\nconnection-kinds = [\"smb\"]\n");
    let without_rules = write("without-rules.toml", "[node]\nconnection-kinds = [\"nfs\"]\n");
    let missing_root = "[node]\nconnection-kinds = [\"directory\"]\ndirectory-root = \"/nowhere/pool\"\n";
    let missing_root = write("away.toml", missing_root);
    let (manifest, socket) = (path("manifest.json"), path("csi.sock"));
    let base = ["--role", "node", "--manifest", &manifest, "--csi-endpoint", &socket, "--node-name", "n1"];
    let with =
        |more: &[&str]| -> Vec<String> { base.iter().chain(more).map(|text| (*text).to_owned()).collect() };
    let assert_fails = |arguments: Vec<String>, code: i32, expected: &str| {
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        assert_start_fails(home.path(), &arguments, code, expected);
    };
    assert_start_fails(home.path(), &["--role", "node"], INVALID, "role node needs manifest");
    assert_start_fails(home.path(), &["--role", "registrar"], INVALID, "role registrar needs csi-address");
    assert_start_fails(home.path(), &["--role", "liveness"], INVALID, "role liveness needs csi-address");
    assert_fails(with(&["--role", "provisioner"]), INVALID, "--single-process");
    let served = ["--role", "csi-server", "--backend", "x.wasm", "--csi-socket", "/nowhere/csi.sock"];
    assert_fails(with(&served), INVALID, "--single-process");
    assert_fails(with(&["--kubelet-root", "relative"]), INVALID, "relative");
    let existing_directory = path("");
    assert_fails([with(&["--kubelet-root"]), vec![path("none")]].concat(), UNUSABLE, "kubelet-root: ");
    assert_fails(
        [with(&["--kubelet-root"]), vec![manifest.clone()]].concat(),
        UNUSABLE,
        "is not a directory",
    );
    assert_fails(
        [with(&["--kubelet-root", &existing_directory, "--config"]), vec![missing_root]].concat(),
        UNUSABLE,
        "directory-root: /nowhere",
    );
    assert_fails([with(&["--config"]), vec![rootless]].concat(), INVALID, "directory-root");
    assert_fails([with(&["--config"]), vec![unknown]].concat(), INVALID, "smb");
    let expected = "connection-kinds has nfs: expected nfs to be set";
    assert_fails([with(&["--config"]), vec![without_rules]].concat(), INVALID, expected);
}
