//! Tests of the built binary's command line.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test fails by panicking, also in what its functions share"
)]

#[path = "common/process.rs"]
mod process;

use std::{
    fs,
    io::Read as _,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use process::{Process, lines};

/// A temporary directory.
struct TestDirectory(PathBuf);

impl TestDirectory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("cofferdam-cli-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.0.join(name);
        fs::write(&path, content).unwrap();
        path.display().to_string()
    }
}

impl Drop for TestDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The program with an environment of `HOME` and `TMPDIR` only.
fn cofferdam(scratch: &TestDirectory, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cofferdam"));
    command
        .args(arguments)
        .env_clear()
        .env("HOME", &scratch.0)
        .env("TMPDIR", &scratch.0)
        .stdin(Stdio::null());
    command
}

fn run(scratch: &TestDirectory, arguments: &[&str]) -> Output {
    cofferdam(scratch, arguments).output().unwrap()
}

/// Expects exit code 1 and one line on stderr; returns it without the program's name.
fn run_error(scratch: &TestDirectory, arguments: &[&str]) -> String {
    error_line(&mut cofferdam(scratch, arguments), "cofferdam", 1)
}

/// Expects the exit code of invalid values, 2, and one line on stderr; returns it without the program's name.
fn usage_error(scratch: &TestDirectory, arguments: &[&str]) -> String {
    error_line(&mut cofferdam(scratch, arguments), "cofferdam", 2)
}

fn error_line(command: &mut Command, program: &str, code: i32) -> String {
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{command:?}: {stderr}");
    assert_eq!(stderr.lines().count(), 1, "{command:?}: {stderr}");
    stderr.trim_end().strip_prefix(&format!("{program}: ")).unwrap().to_owned()
}

/// The error of `cofferdam run` with these flags.
fn start_error(scratch: &TestDirectory, flags: &[&str]) -> String {
    let mut arguments = vec!["run", "--role", "provisioner", "--log", "warn"];
    arguments.extend(flags);
    run_error(scratch, &arguments)
}

/// The error of `cofferdam run` with this component file.
fn driver_error(scratch: &TestDirectory, file: &str) -> String {
    let kubeconfig = scratch.file("kubeconfig", KUBECONFIG);
    start_error(scratch, &["--kubeconfig", &kubeconfig, "--backend", file])
}

#[test]
fn an_invalid_component_file_is_reported_with_its_path() {
    let scratch = TestDirectory::new("driver");
    let memory = cofferdam_carried::MEMORY;
    for (name, content, expected) in [
        ("empty.wasm", &[][..], "component"),
        ("text.wasm", b"#!/bin/sh\nexit 0\n", "component"),
        ("core.wasm", b"\0asm\x01\0\0\0", "component"),
        ("cut.wasm", &memory[..memory.len() / 2], "component"),
    ] {
        let file = scratch.file(name, content);
        let line = driver_error(&scratch, &file);
        assert!(line.contains(&file) && line.contains(expected), "{line}");
    }
    let line = driver_error(&scratch, "/nowhere/array.wasm");
    assert!(line.contains("/nowhere/array.wasm") && line.contains("No such file"), "{line}");
}

/// The directory of the chart's volume has another file if the ConfigMap lacks the key.
#[test]
fn a_missing_component_of_a_mounted_config_map_is_reported_with_its_path() {
    let scratch = TestDirectory::new("missing-key");
    let kubeconfig = scratch.file("kubeconfig", KUBECONFIG);
    let other = scratch.file("other.wasm", cofferdam_carried::MEMORY);
    let missing = other.replace("other.wasm", "array.wasm");
    let config = scratch.file("controller.toml", format!("[backend.driver]\nfile = \"{missing}\"\n"));
    let line = start_error(&scratch, &["--kubeconfig", &kubeconfig, "--config", &config]);
    let expected = format!("{missing}: cannot be read: No such file or directory");
    assert!(line.contains(&expected), "{line}: expected {expected}");
}

#[test]
fn a_component_of_another_contract_version_is_rejected() {
    let scratch = TestDirectory::new("contract");
    let interface = b"cofferdam:storage/volumes@0.1.0";
    let mut component = cofferdam_carried::MEMORY.to_vec();
    let mut replaced = 0;
    for start in 0..component.len() - interface.len() {
        if component[start..].starts_with(interface) {
            component[start + interface.len() - 5..start + interface.len()].copy_from_slice(b"0.9.0");
            replaced += 1;
        }
    }
    assert!(replaced > 0, "the component names the interface");
    let line = driver_error(&scratch, &scratch.file("later.wasm", component));
    assert!(line.contains("@0.9.0") && line.contains("@0.1.0"), "{line}");
}

#[test]
fn two_backends_with_one_driver_name_are_rejected() {
    let scratch = TestDirectory::new("twins");
    let file = scratch.file("memory.wasm", cofferdam_carried::MEMORY);
    let kubeconfig = scratch.file("kubeconfig", KUBECONFIG);
    let (first, second) = (format!("a={file}"), format!("b={file}"));
    let line =
        start_error(&scratch, &["--kubeconfig", &kubeconfig, "--backend", &first, "--backend", &second]);
    assert!(line.contains("memory.cofferdam.dev") && line.contains("one backend per driver"), "{line}");
}

/// A kubeconfig of an unreachable API: port 1 is closed.
const KUBECONFIG: &str = r#"
apiVersion: v1
kind: Config
current-context: nobody
contexts: [{name: nobody, context: {cluster: nobody, user: nobody, namespace: storage}}]
clusters: [{name: nobody, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: nobody, user: {token: none}}]
"#;

#[test]
fn an_unusable_kubeconfig_is_reported() {
    let scratch = TestDirectory::new("kubeconfig");
    let driver = scratch.file("memory.wasm", cofferdam_carried::MEMORY);
    let with = |flags: &[&str]| start_error(&scratch, &[&["--backend", &driver], flags].concat());
    let line = with(&["--kubeconfig", "/nowhere/config"]);
    assert!(
        line.starts_with("cannot read kubeconfig /nowhere/config: ") && line.contains("No such file"),
        "{line}"
    );

    let broken = scratch.file("broken", "clusters: [\n");
    let line = with(&["--kubeconfig", &broken]);
    assert!(line.starts_with(&format!("cannot read kubeconfig {broken}: ")), "{line}");

    let kubeconfig = scratch.file("kubeconfig", KUBECONFIG);
    let line = with(&["--kubeconfig", &kubeconfig, "--context", "elsewhere"]);
    assert!(
        line.starts_with(&format!("kubeconfig {kubeconfig} has no context \"elsewhere\": "))
            && line.ends_with("nobody"),
        "{line}"
    );

    let line = with(&["--kubeconfig", &kubeconfig]);
    let api = format!("; the API is https://127.0.0.1:1/ (kubeconfig {kubeconfig})");
    assert!(line.starts_with("cannot start: ") && line.ends_with(&api), "an unreachable API: {line}");

    let line = with(&[]);
    assert!(line.starts_with("no cluster: expected --kubeconfig FILE"), "{line}");
}

#[test]
fn a_process_in_a_pod_logs_that_its_node_name_turns_leader_election_off() {
    let scratch = TestDirectory::new("elections");
    let kubeconfig = scratch.file("kubeconfig", KUBECONFIG);
    let reason = "leader election is off because node-name is set (--node-name or COFFERDAM_NODE_NAME)";
    let log = |flags: &[&str], variables: &[(&str, &str)]| {
        let run = ["run", "--role", "attach-detach", "--kubeconfig", &kubeconfig, "--log", "info"];
        let mut command = cofferdam(&scratch, &[&run[..], flags].concat());
        let output = command.envs(variables.iter().copied()).output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    let (pod, node) = (("KUBERNETES_SERVICE_HOST", "10.0.0.1"), ("COFFERDAM_NODE_NAME", "n1"));
    let text = log(&[], &[pod, node]);
    assert_eq!(
        text.lines().filter(|line| line.contains("INFO") && line.contains(reason)).count(),
        1,
        "{text}"
    );
    for (flags, variables) in [
        (&[][..], &[node][..]),
        (&["--leader-election=false"], &[pod, node]),
        (&["--leader-election=false"], &[pod]),
    ] {
        let text = log(flags, variables);
        assert!(text.contains("cannot start") && !text.contains(reason), "{text}");
    }
}

#[test]
fn completions_name_the_commands_for_every_shell() {
    let scratch = TestDirectory::new("completions");
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let output = cofferdam(&scratch, &["completions", shell]).output().unwrap();
        let script = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{shell}: {script}");
        for name in ["cofferdam", "orphans", "admission-policy", "leader-election-lease-duration"] {
            assert!(script.contains(name), "{shell}: no {name}");
        }
    }
    let output = cofferdam(&scratch, &["completions", "tcsh"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn an_invalid_setting_is_reported_in_one_line() {
    let scratch = TestDirectory::new("setting");
    assert_eq!(
        usage_error(&scratch, &["run", "--role", "resiser"]),
        "flag --role: unknown role \"resiser\": expected one of provisioner, attacher, resizer, \
         pv-controller, protection, attach-detach, startup-taint, snapshotter, snapshot-controller, node, \
         registrar, liveness, csi-server"
    );
    assert_eq!(usage_error(&scratch, &["run"]), "no role: expected at least one, as in --role provisioner");
    let line = usage_error(&scratch, &["dev", "--timeout", "soon"]);
    assert!(line.starts_with("flag --timeout: \"soon\" is not a duration"), "{line}");
    let file = scratch.file("c.toml", "worker-threads = \"x\"\n");
    assert_eq!(
        usage_error(&scratch, &["config", "--config", &file]),
        format!("{file}:1: worker-threads: found the text \"x\", expected a number from 1 to 10000")
    );
}

#[test]
fn every_invalid_value_ends_the_program_with_code_2() {
    let scratch = TestDirectory::new("values");
    let file = scratch.file("c.toml", "timeout = \"0s\"\n");
    let orphan = ["orphans", "delete", "array.example.com", "vol-1"];
    for (arguments, expected) in [
        (&["run", "--role", "attacher", "--timeout=0s"][..], "flag --timeout: \"0s\" is not a duration"),
        (&["config", "--config", &file], "timeout: \"0s\" is not a duration"),
        (&["dev", "--timeout=0s"], "flag --timeout: \"0s\" is not a duration"),
        (&["status", "--stuck-after=0s"], "flag --stuck-after: \"0s\" is not a duration"),
        (&[&orphan[..], &["--timeout=0s"]].concat(), "flag --timeout: \"0s\" is not a duration"),
        (&["run", "--role", "attacher", "--workers=0"], "flag --workers: "),
        (&["config", "--config", "/nowhere"], "flag --config: cannot read configuration file /nowhere"),
    ] {
        let line = usage_error(&scratch, arguments);
        assert!(line.contains(expected), "{arguments:?}: {line}");
    }
    for program in ["csi-provisioner", "csi-attacher", "csi-resizer"] {
        for flag in ["--timeout=0s", "--timeout=-1s", "--timeout=1", "--retry-interval-max=0"] {
            let mut command = cofferdam(&scratch, &[flag]);
            let line = error_line(command.arg0(program), program, 2);
            assert!(line.contains("--timeout") || line.contains("--retry-interval-max"), "{line}");
        }
    }
}

#[test]
fn render_rbac_accepts_an_empty_list_of_secret_namespaces() {
    let scratch = TestDirectory::new("render");
    let rendered = |flags: &[&str]| {
        let output = run(&scratch, &[&["render", "rbac", "--role", "provisioner"], flags].concat());
        assert!(output.status.success(), "{flags:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(rendered(&[]).contains("secrets"));
    for flags in [&["--secret-namespaces="][..], &["--secret-namespaces", ""]] {
        let text = rendered(flags);
        assert!(text.contains("configmaps") && !text.contains("secrets"), "{text}");
    }
}

#[test]
fn render_crds_prints_the_files_of_the_chart() {
    let scratch = TestDirectory::new("crds");
    let output = run(&scratch, &["render", "crds"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let chart =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/helm/cofferdam-snapshot-crds/templates");
    let files = ["volumesnapshots", "volumesnapshotcontents", "volumesnapshotclasses"]
        .map(|name| std::fs::read_to_string(chart.join(format!("{name}.yaml"))).unwrap());
    assert_eq!(String::from_utf8(output.stdout).unwrap(), files.join("---\n"));
}

#[test]
fn config_shows_every_value_with_its_origin() {
    let scratch = TestDirectory::new("config");
    let file = scratch.file("c.toml", "role = [\"provisioner\"]\n\n[backend.array]\nfile = \"a.wasm\"\n");
    let output = cofferdam(&scratch, &["config", "--config", &file, "--backend", "array=b.wasm"])
        .env("COFFERDAM_TIMEOUT", "2m")
        .output()
        .unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<String> =
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for row in [
        format!("role provisioner {file}:1"),
        "backend.array.file b.wasm flag --backend".to_owned(),
        "timeout 2m environment variable COFFERDAM_TIMEOUT".to_owned(),
        "worker-threads (not set) default".to_owned(),
    ] {
        assert!(rows.contains(&row), "{row} in\n{text}");
    }
}

#[test]
fn snapshots_can_be_created_restored_and_deleted_by_calls() {
    let scratch = TestDirectory::new("snapshot-calls");
    let file = scratch.file("memory.wasm", cofferdam_carried::MEMORY);
    let state = scratch.0.join("state.redb").display().to_string();
    let call = |arguments: &[&str]| {
        let line = [&["backend", "call", &file], arguments, &["--state", &state, "-o", "json"]].concat();
        let output = run(&scratch, &line);
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_str::<serde_json::Value>(&stdout).unwrap()
    };
    let volume = call(&["volumes.create", "--volume-name", "a", "--size", "1Gi"]);
    let volume = volume["response"]["handle"].as_str().unwrap();
    let owner = "cluster=c,snapshot=u,content=snapcontent-u,deletion-policy=retain";
    let create = ["snapshots.create", "--snapshot-name", "s", "--source", volume, "--snapshot-owner", owner];
    let created = &call(&create)["response"];
    assert_eq!((&created["source"], &created["ready"]), (&volume.into(), &true.into()), "{created}");
    let snapshot = created["handle"].as_str().unwrap();
    let owner = &created["owner"];
    assert_eq!((&owner["contentName"], &owner["retain"]), (&"snapcontent-u".into(), &true.into()));
    assert_eq!(call(&["snapshots.get", "--handle", snapshot])["response"], *created);
    let listed = || call(&["snapshots.list", "--source", volume])["response"]["snapshots"].clone();
    assert_eq!(listed(), serde_json::json!([created]));

    for (function, source, context) in [
        ("restoring.create-from-snapshot", snapshot, "source-snapshot"),
        ("cloning.create-from-volume", volume, "source-volume"),
    ] {
        let create = [function, "--volume-name", context, "--size", "1Gi", "--source", source];
        let copy = &call(&create)["response"];
        assert_eq!(copy["context"][context], source, "{copy}");
    }
    assert_eq!(call(&["snapshots.delete", "--handle", snapshot])["response"], serde_json::Value::Null);
    assert_eq!(listed(), serde_json::json!([]));
    let output = run(
        &scratch,
        &[
            "backend",
            "call",
            &file,
            "volumes.create",
            "--volume-name",
            "b",
            "--snapshot-owner",
            "cluster=c,\
           snapshot=u,content=n",
        ],
    );
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("volumes.create has no argument --snapshot-owner"), "{stderr}");
}

#[test]
fn the_dev_demo_succeeds() {
    let scratch = TestDirectory::new("demo");
    let output = run(&scratch, &["dev", "--demo"]);
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{stdout}{stderr}");
    let expected_lines = [
        "sees the pod Running on node-1",
        "sees demo with 2Gi",
        "writes no data, because mounts are only recorded: compares what the driver returns",
        "sees the snapshot ready, 2Gi",
        "compares the driver's snapshot: snap-snapshot-",
        "sees restored Bound to pvc-",
        "compares the driver's volume of restored: 2147483648 bytes, source-snapshot=snap-snapshot-",
        "sees cloned Bound to pvc-",
        "compares the driver's volume of cloned: 2147483648 bytes, source-volume=mem-pvc-",
        "finds no copy and no snapshot",
        "cordons node-1 and recreates the pod",
        "sees the pod Running on node-2",
        "finds no entry of the volume in the driver's state; other entries: nothing",
        "finds nothing mounted and nothing attached",
        "demo: succeeded",
    ];
    let mut rest = &*stdout;
    for line in expected_lines {
        assert!(rest.contains(line), "{line:?} in its place in\n{stdout}");
        rest = rest.split_once(line).unwrap().1;
    }
    assert!(!stdout.contains('\x1b'), "no colours for a pipe: {stdout}");
    let left: Vec<_> = fs::read_dir(&scratch.0)
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().into_string().ok())
        .collect();
    let is_of_home = |name: &String| name == ".cache" || name == ".local";
    assert!(left.iter().all(is_of_home), "the kubeconfig is removed: {left:?}");
}

#[test]
fn pods_of_a_node_local_driver_run_on_its_node() {
    let scratch = TestDirectory::new("pool-demo");
    let pool = scratch.0.join("pool");
    fs::create_dir(&pool).unwrap();
    for (settings, node) in [("", "node-1"), ("settings = { node = \"here\" }\n", "here")] {
        let section = format!("[backend.pool]\n{settings}pool = {{ directory = {pool:?} }}\n");
        let config = scratch.file("pool.toml", section);
        let output = run(&scratch, &["dev", "--demo", "--config", &config, "--nodes", "3"]);
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
        assert!(stdout.contains(&format!("sees the pod Running on {node}")), "{stdout}");
        assert!(stdout.contains("finds no copy and no snapshot"), "{stdout}");
        assert_eq!(file_names(&pool), [".lock"], "the pool is empty again");
    }
}

/// Names of the files in a directory.
fn file_names(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| name.into_string().unwrap()).collect()
}

/// Without CAP_SYS_ADMIN, the program runs as root of a new user namespace and a new mount namespace.
#[cfg(target_os = "linux")]
#[test]
fn copies_of_a_mounted_volume_have_the_data_of_their_source() {
    let scratch = TestDirectory::new("real-demo");
    let pool = scratch.0.join("pool");
    fs::create_dir(&pool).unwrap();
    let config = scratch.file("pool.toml", format!("[backend.pool.pool]\ndirectory = {pool:?}\n"));
    let arguments = ["dev", "--demo", "--real-mounts", "--config", &config];
    let mut command = cofferdam(&scratch, &arguments);
    if !can_mount() {
        let mut unshare = Command::new("unshare");
        unshare.args(["--user", "--map-root-user", "--mount", env!("CARGO_BIN_EXE_cofferdam")]);
        unshare.args(arguments).env("HOME", &scratch.0).env("TMPDIR", &scratch.0);
        unshare.env_remove("XDG_RUNTIME_DIR").stdin(Stdio::null());
        command = unshare;
    }
    let output = command.output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    let expected_lines = [
        "writes \"written before the snapshot\" to the volume",
        "sees the snapshot ready, 2Gi",
        "writes \"changed after the snapshot\" to the volume",
        "reads \"written before the snapshot\" from restored",
        "reads \"changed after the snapshot\" from cloned",
        "finds no copy and no snapshot",
        "demo: succeeded",
    ];
    let mut rest = &*stdout;
    for line in expected_lines {
        assert!(rest.contains(line), "{line:?} in its place in\n{stdout}");
        rest = rest.split_once(line).unwrap().1;
    }
    assert_eq!(file_names(&pool), [".lock"], "the pool is empty again");
    assert_eq!(leftover_files(&scratch), [""; 0]);
}

/// Returns true if this process has CAP_SYS_ADMIN, which root in a container may lack.
#[cfg(target_os = "linux")]
fn can_mount() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    let capabilities = u64::from_str_radix(line.trim(), 16).unwrap();
    // CAP_SYS_ADMIN
    capabilities & (1 << 21) != 0
}

#[test]
fn the_demo_fails_if_the_driver_does_not_return_the_snapshot() {
    let scratch = TestDirectory::new("lost-snapshot");
    let settings = "[backend.memory.settings]\nerrors = \"get-snapshot:not-found:always\"\n";
    let config = scratch.file("memory.toml", settings);
    let output = run(&scratch, &["dev", "--demo", "--config", &config, "--nodes", "0"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("the demo failed: the driver's GetSnapshot: NotFound"), "{stderr}");
}

#[test]
fn the_demo_takes_no_snapshot_without_its_roles() {
    let scratch = TestDirectory::new("no-snapshots");
    let roles = "provisioner,pv-controller,protection,snapshotter";
    let output = run(&scratch, &["dev", "--demo", "--nodes", "0", "--role", roles]);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    let skipped = "takes no snapshot: expected the roles snapshot-controller and snapshotter";
    assert!(stdout.contains(skipped), "{stdout}");
    assert!(
        stdout.contains("compares the driver's volume of cloned: ") && !stdout.contains("restored"),
        "{stdout}"
    );
}

#[test]
fn the_dev_demo_runs_with_a_vendor_component() {
    let scratch = TestDirectory::new("vendor-demo");
    let file = scratch.file("my_array.wasm", cofferdam_test_guests::STARTER);
    let output = run(&scratch, &["dev", "--demo", "--backend", &file]);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    for line in [
        "requests no larger size: the driver does not support expansion",
        "takes no snapshot: the driver does not support snapshots",
        "clones no volume: the driver does not support it",
        "sees the pod Running on node-2",
    ] {
        assert!(stdout.contains(line), "{line:?} in\n{stdout}");
    }
}

#[test]
fn dev_without_nodes_runs_the_api_and_controllers() {
    let scratch = TestDirectory::new("no-nodes");
    let output = run(&scratch, &["dev", "--demo", "--nodes", "0"]);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{stdout}");
    assert!(stdout.contains("demo: succeeded") && !stdout.contains("Pod demo"), "{stdout}");
    assert!(stdout.contains("writes no data, because no pod mounts the volume: "), "{stdout}");
    assert!(stdout.contains("finds no copy and no snapshot"), "{stdout}");
}

/// Starts a process with piped stdout and stderr; returns it with the lines of its stdout.
fn start(mut command: Command) -> (Process, impl Iterator<Item = String>) {
    let mut process = Process::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let stdout = lines(process.take_stdout());
    (process, stdout)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dev_creates_a_default_snapshot_class_for_drivers_with_snapshots() {
    let scratch = TestDirectory::new("snapshot-class");
    let kubeconfig = scratch.0.join("kubeconfig");
    let starter = format!("starter={}", scratch.file("starter.wasm", cofferdam_test_guests::STARTER));
    let memory = format!("fast_one={}", scratch.file("memory.wasm", cofferdam_carried::MEMORY));
    let path = kubeconfig.display().to_string();
    let flags = ["dev", "--kubeconfig-out", &path, "--backend", &starter, "--backend", &memory];
    let (_dev, mut output) = start(cofferdam(&scratch, &flags));
    output.find(|line| line.contains("ready in")).unwrap();
    let config = kube::config::Kubeconfig::read_from(&kubeconfig).unwrap();
    let config = kube::Config::from_custom_kubeconfig(config, &Default::default()).await.unwrap();
    let client = kube::Client::try_from(config).unwrap();
    let request = http::Request::get("/apis/snapshot.storage.k8s.io/v1/volumesnapshotclasses");
    let classes: serde_json::Value = client.request(request.body(Vec::new()).unwrap()).await.unwrap();
    assert_eq!(classes["items"].as_array().map(Vec::len), Some(1), "{classes}");
    let class = &classes["items"][0];
    let default = &class["metadata"]["annotations"]["snapshot.storage.kubernetes.io/is-default-class"];
    assert_eq!(
        [&class["metadata"]["name"], default, &class["driver"], &class["deletionPolicy"]],
        ["cofferdam-fast-one", "true", "memory.cofferdam.dev", "Delete"],
    );
}

/// Creates a claim of the default class of `dev`, and waits until it is bound.
async fn bind_claim(kubeconfig: &Path) {
    let config = kube::config::Kubeconfig::read_from(kubeconfig).unwrap();
    let config = kube::Config::from_custom_kubeconfig(config, &Default::default()).await.unwrap();
    let claims: kube::Api<k8s_openapi::api::core::v1::PersistentVolumeClaim> =
        kube::Api::default_namespaced(kube::Client::try_from(config).unwrap());
    let claim = serde_json::json!({
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    claims.create(&kube::api::PostParams::default(), &serde_json::from_value(claim).unwrap()).await.unwrap();
    let is_bound = async || {
        let claim = claims.get("data").await.unwrap();
        claim.status.and_then(|status| status.phase).as_deref() == Some("Bound")
    };
    let bound = async {
        while !is_bound().await {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), bound).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dev_names_what_the_storage_still_has_and_a_later_run_deletes_it() {
    let scratch = TestDirectory::new("leftovers");
    let kubeconfig = scratch.0.join("kubeconfig");
    let (path, state) = (kubeconfig.display().to_string(), scratch.0.join("state").display().to_string());
    let flags = ["dev", "--nodes", "0", "--state", &state, "--kubeconfig-out", &path];
    let (mut dev, mut output) = start(cofferdam(&scratch, &flags));
    output.find(|line| line.contains("ready in")).unwrap();
    bind_claim(&kubeconfig).await;
    dev.signal("KILL");
    assert!(dev.wait_blocking().code().is_none());
    std::fs::remove_file(&kubeconfig).unwrap();

    let run_again = |more: &[&str]| -> Vec<String> {
        let (mut dev, mut output) = start(cofferdam(&scratch, &[&flags[..], more].concat()));
        output.find(|line| line.contains("ready in")).unwrap();
        dev.signal("INT");
        let rest: Vec<_> = output.collect();
        assert_eq!(dev.wait_blocking().code(), Some(0), "{rest:?}");
        rest
    };
    let named = run_again(&[]);
    let start = "driver memory.cofferdam.dev still stores 1 volume and 0 snapshots of this cluster:";
    assert!(named.iter().any(|line| line == start), "{named:?}");
    assert!(named.iter().any(|line| line.starts_with("  volume mem-pvc-")), "{named:?}");
    assert!(named.iter().any(|line| line.contains("the same command with --delete")), "{named:?}");
    let kept = run_again(&["--keep"]);
    assert!(kept.iter().any(|line| line == start) && !kept.iter().any(|line| line.contains("--delete")));
    let deleted = run_again(&["--delete"]);
    let end = "driver memory.cofferdam.dev: deleted 1 volume and 0 snapshots";
    assert!(deleted.iter().any(|line| line == end), "{deleted:?}");
    let nothing = run_again(&["--delete"]);
    let end = "driver memory.cofferdam.dev stores nothing of this cluster";
    assert!(nothing.iter().any(|line| line == end), "{nothing:?}");
}

#[test]
fn dev_has_nodes_with_given_names_and_zones() {
    let scratch = TestDirectory::new("named-nodes");
    let flags = [
        "dev",
        "--demo",
        "--setting",
        "topology=topology.example/zone=us-east-1a,us-east-1b",
        "--node",
        "a=aws:///us-east-1a/i-0abc,topology.kubernetes.io/zone=us-east-1a",
        "--node",
        "b,topology.kubernetes.io/zone=elsewhere,topology.example/zone=us-east-1b",
    ];
    let output = run(&scratch, &flags);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    assert!(stdout.contains("a, b, simulated"), "{stdout}");
    for (flags, expected) in [
        (&["--node", "a,b"][..], "\"b\": expected LABEL=VALUE"),
        (&["--node", "=aws:///a/i"], "expected the node's name first"),
        (&["--node", "x=y"], "expected the node's name first"),
        (&["--node", "topology.kubernetes.io/zone=a"], "expected the node's name first"),
        (&["--node", "a,l=1,l=2"], "the label l was set twice"),
        (&["--node", "a", "--nodes", "2"], "cannot be used with"),
    ] {
        let output = run(&scratch, &[&["dev"], flags].concat());
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && text.contains(expected), "{text}");
    }
}

#[test]
fn dev_configures_one_component_by_flags() {
    let scratch = TestDirectory::new("dev-flags");
    let memory = scratch.file("memory.wasm", cofferdam_carried::MEMORY);
    let broken = scratch.file("broken.wasm", cofferdam_test_guests::BROKEN);
    let other = format!("other={memory}");
    let two = "[backend.a]\nfile = \"a.wasm\"\n[backend.b]\nfile = \"b.wasm\"\n";
    let two = scratch.file("two.toml", two);
    for (flags, expected) in [
        (&["--setting", "a=1", "--config", &two][..], "configures one component, and there are 2: a, b"),
        (&["--name", "x", "--backend", &other], "1 --backend with a name or none; expected one --backend"),
        (&["--name", "x/y", "--backend", &memory], "--name \"x/y\": expected letters"),
        (&["--origin", "http://a", "--csi", "unix:///nowhere.sock"], "--origin is for components"),
        (&["--secret", "a=b"], "expected @FILE or $VARIABLE"),
    ] {
        let line = usage_error(&scratch, &[&["dev"], flags].concat());
        assert!(line.contains(expected), "{flags:?}: {line}");
    }
    let config = format!("[backend.array]\nfile = {memory:?}\n");
    let config = scratch.file("array.toml", config);
    let line = usage_error(&scratch, &["dev", "--config", &config, "--backend", &broken]);
    let expected = format!(
        "the configuration has [backend.array]: for its settings and grants, expected --backend \
                            array={broken}"
    );
    assert!(line.contains("which is not granted to it") && line.ends_with(&expected), "{line}");
}

#[test]
fn roles_run_against_an_api_and_drain_on_sigterm() {
    let scratch = TestDirectory::new("drain");
    let kubeconfig = scratch.0.join("kubeconfig").display().to_string();
    let driver = scratch.file("memory.wasm", cofferdam_carried::MEMORY);

    // The API with roles that need no driver.
    let api = ["dev", "--role", "pv-controller", "--role", "protection", "--kubeconfig-out", &kubeconfig];
    let (mut api, mut api_lines) = start(cofferdam(&scratch, &api));
    api_lines.find(|line| line.contains("ready in")).unwrap();

    let flags = ["--kubeconfig", &kubeconfig, "--backend", &driver, "--http-endpoint", "127.0.0.1:0"];
    let arguments = [&["run", "--role", "provisioner"], &flags[..]].concat();
    let (mut roles, _lines) = start(cofferdam(&scratch, &arguments));
    let mut log = lines(roles.take_stderr());
    let line = log.find(|line| line.contains("serving /healthz")).unwrap();
    let address = line.rsplit_once("address=").unwrap().1.trim().to_owned();
    assert!(get(&address, "/healthz").ends_with("\r\n\r\nok\n"));
    wait_until_ready(&address);
    let metrics = get(&address, "/metrics");
    assert!(
        metrics.contains("process_start_time_seconds") && metrics.contains("cofferdam_journal_commits"),
        "{metrics}"
    );

    roles.signal("TERM");
    assert!(log.any(|line| line.contains("SIGTERM: draining")), "the drain is logged");
    assert_eq!(roles.wait_blocking().code(), Some(0));

    api.signal("INT");
    assert_eq!(api_lines.last().as_deref(), Some("stopped"));
    let stderr = std::io::read_to_string(api.take_stderr()).unwrap();
    assert_eq!((api.wait_blocking().code(), stderr.as_str()), (Some(0), ""));
    assert!(!Path::new(&kubeconfig).exists(), "the kubeconfig is removed");
}

/// Names of the files and directories that a process left in its temporary directory.
fn leftover_files(scratch: &TestDirectory) -> Vec<String> {
    let names = fs::read_dir(&scratch.0).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter_map(|name| name.into_string().ok()).filter(|name| name.starts_with("cofferdam-")).collect()
}

#[test]
fn dev_survives_a_closed_stderr() {
    let scratch = TestDirectory::new("closed-stderr");
    let (mut dev, mut output) = start(cofferdam(&scratch, &["dev", "--log", "debug"]));
    drop(dev.take_stderr());
    output.find(|line| line.contains("ready in")).unwrap();
    dev.signal("TERM");
    assert_eq!(output.last().as_deref(), Some("stopped"));
    assert_eq!(dev.wait_blocking().code(), Some(0));
    assert_eq!(leftover_files(&scratch), [""; 0]);
}

#[test]
fn a_second_signal_leaves_no_files_of_recorded_mounts() {
    let scratch = TestDirectory::new("insists");
    for _ in 0..3 {
        let (mut dev, mut output) = start(cofferdam(&scratch, &["dev"]));
        output.find(|line| line.contains("ready in")).unwrap();
        // Send the signal twice, as `timeout` does to the process and to its group.
        let id = dev.id().to_string();
        Command::new("kill").args(["-TERM", &id, &id]).status().unwrap();
        let code = dev.wait_blocking().code();
        assert!(matches!(code, Some(0 | 130)), "{code:?}");
        assert_eq!(leftover_files(&scratch), [""; 0]);
    }
}

#[test]
fn a_demo_with_a_missing_role_is_rejected() {
    let scratch = TestDirectory::new("lacking");
    assert_eq!(
        usage_error(&scratch, &["dev", "--role", "provisioner", "--demo", "--nodes", "0"]),
        "flag --role: the demo lacks pv-controller, protection: expected these too, or no role at all"
    );
    let line = usage_error(&scratch, &["dev", "--role", "provisioner,pv-controller,protection", "--demo"]);
    assert!(line.contains("the demo lacks attacher, resizer, attach-detach: "), "{line}");
}

#[test]
fn the_nodes_flag_accepts_0_to_100() {
    let scratch = TestDirectory::new("nodes");
    for value in ["-1", "abc", "1.5", "101"] {
        let output = run(&scratch, &["dev", "--nodes", value]);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(&format!("'{value}'")) && text.contains("'--nodes <NUMBER>'"), "{text}");
        assert!(text.contains("expected a number from 0 to 100"), "{text}");
    }
}

#[test]
fn kubeconfig_errors_do_not_quote_the_file() {
    let scratch = TestDirectory::new("secret");
    let file = scratch.file("passwd", "root:hunter2:0:0\nbin:hunter2:1:1\n");
    let line = run_error(&scratch, &["status", "--kubeconfig", &file]);
    assert!(line.starts_with(&format!("cannot read kubeconfig {file}: line 1, column 1: ")), "{line}");
    assert!(!line.contains("hunter2"), "{line}");
}

#[test]
fn a_missing_namespace_is_warned_about() {
    let scratch = TestDirectory::new("namespace");
    let kubeconfig = scratch.0.join("kubeconfig").display().to_string();
    let api = ["dev", "--role", "protection", "--nodes", "0", "--kubeconfig-out", &kubeconfig];
    let (_api, mut api_lines) = start(cofferdam(&scratch, &api));
    let output: Vec<_> = api_lines.by_ref().take_while(|line| !line.contains("kubectl")).collect();
    assert!(output.iter().any(|line| line.ends_with("none: pods do not start")), "{output:?}");
    let flags = ["run", "--role", "attach-detach", "--kubeconfig", &kubeconfig, "--namespace", "nowhere"];
    let (mut roles, _lines) = start(cofferdam(&scratch, &flags));
    let log = lines(roles.take_stderr());
    let warning = log.take_while(|line| !line.contains("ERROR")).find(|line| line.contains("does not exist"));
    assert!(warning.unwrap().contains("namespace=\"nowhere\""));
}

/// The response to a request, with its headers.
fn get(address: &str, path: &str) -> String {
    use std::io::Write as _;
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: cofferdam\r\nconnection: close\r\n\r\n").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

/// Polls `/readyz`, which cannot be watched, until the process is ready.
fn wait_until_ready(address: &str) {
    while !get(address, "/readyz").starts_with("HTTP/1.1 200 ") {
        std::thread::yield_now();
    }
}

#[test]
fn a_closed_stdout_is_no_error() {
    let scratch = TestDirectory::new("pipe");
    let mut child =
        cofferdam(&scratch, &["config"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!((child.wait().unwrap().code(), stderr.as_str()), (Some(0), ""));
}

/// Exit code and stdout of `backend test`. stderr has the progress of reports that are not text, and is empty
/// otherwise.
fn run_backend_test(scratch: &TestDirectory, arguments: &[&str]) -> (Option<i32>, String) {
    let output = run(scratch, &[&["backend", "test"], arguments].concat());
    let progress = String::from_utf8(output.stderr).unwrap();
    if arguments.contains(&"json") || arguments.contains(&"junit") {
        assert!(progress.starts_with("seed 9\nloaded broken.example 1\n"), "{progress}");
        assert!(progress.contains("FAILED volumes/no-size ("), "{progress}");
    } else {
        assert_eq!(progress, "", "{arguments:?}");
    }
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn backend_test_passes_a_conformant_driver() {
    let scratch = TestDirectory::new("passes");
    let file = scratch.file("memory.wasm", cofferdam_carried::MEMORY);
    let flags =
        ["--only", "modification", "--only", "crashes/cr*", "--mutable-parameter", "iops=100", "--seed", "5"];
    let (code, report) = run_backend_test(&scratch, &[&[file.as_str()], &flags[..]].concat());
    assert_eq!(code, Some(0), "{report}");
    for expected in [
        "memory.cofferdam.dev",
        "seed          5\n",
        "  passed  all-or-nothing\n",
        "\n7 passed, 0 failed, 0 skipped\n",
    ] {
        assert!(report.contains(expected), "{expected:?} is not in\n{report}");
    }
}

#[test]
fn backend_test_reports_a_failed_case_in_every_format() {
    let scratch = TestDirectory::new("fails");
    let file = scratch.file("broken.wasm", cofferdam_test_guests::BROKEN);
    let flags = [
        "--grant",
        "http",
        "--setting",
        "broken-rule=volumes/no-size",
        "--only",
        "volumes/no-*",
        "--seed",
        "9",
    ];
    let with = |output| run_backend_test(&scratch, &[&[file.as_str()], &flags[..], &["-o", output]].concat());

    let (code, report_text) = with("text");
    assert_eq!(code, Some(1), "{report_text}");
    let repeat_line = format!(
        "rerun     cofferdam backend test {file} --grant http --setting broken-rule=volumes/no-size --only \
         volumes/no-size --seed 9\n"
    );
    for expected in ["  FAILED  no-size\n", "  passed  no-capability\n", repeat_line.as_str()] {
        assert!(report_text.contains(expected), "{expected:?} is not in\n{report_text}");
    }

    let (code, json) = with("json");
    let report: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((code, &report["failed"], &report["seed"]), (Some(1), &1.into(), &9.into()));

    let (code, xml) = with("junit");
    assert_eq!(code, Some(1));
    assert!(xml.starts_with("<?xml") && xml.contains("tests=\"2\" failures=\"1\""), "{xml}");
}

#[test]
fn backend_test_rejects_invalid_arguments_with_exit_code_2() {
    let scratch = TestDirectory::new("untested");
    let memory = scratch.file("memory.wasm", cofferdam_carried::MEMORY);
    let broken = scratch.file("broken.wasm", cofferdam_test_guests::BROKEN);
    for (arguments, expected) in [
        (&[memory.as_str(), "--only", "nothing/"][..], "--only \"nothing/\": no case matches"),
        (&[&memory, "--node", "a"], "--node: 1 given; expected two that differ"),
        (&[&memory, "--timeout", "soon"], "--timeout: "),
        (&[&memory, "--parameter", "a=1", "--other-parameter", "a=1"], "expected another value than that of"),
        (&[&memory, "--parameter", "a=1", "--parameter", "a=2"], "--parameter"),
        (&["/nowhere.wasm"], "/nowhere.wasm: cannot be read"),
        (&[&broken], "which is not granted to it; name the origins of its requests"),
    ] {
        let output = run(&scratch, &[&["backend", "test"], arguments].concat());
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {line}");
        assert!(line.lines().count() == 1 && line.contains(expected), "{arguments:?}: {line}");
    }
}
