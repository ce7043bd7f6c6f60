use super::*;

fn write_config(name: &str, text: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("cofferdam-config-{}-{name}.toml", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path
}

fn environment(variables: &[(&str, &str)]) -> HashMap<String, String> {
    variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn flags_with(change: impl FnOnce(&mut ProcessFlags)) -> ClusterFlags {
    let mut flags = ClusterFlags::default();
    change(&mut flags.process);
    flags
}

fn resolve_error(flags: &ClusterFlags, variables: &[(&str, &str)]) -> String {
    let line = ResolvedConfig::for_cluster(flags, &environment(variables)).unwrap_err().to_string();
    assert!(!line.contains('\n'), "one line: {line}");
    line
}

fn file_error(name: &str, text: &str) -> String {
    let path = write_config(name, text);
    let line = resolve_error(&flags_with(|flags| flags.config = Some(path.clone())), &[]);
    std::fs::remove_file(&path).unwrap();
    line.replace(&path.display().to_string(), "FILE")
}

#[test]
fn flags_override_environment_file_and_defaults_with_origins() {
    let path = write_config(
        "layers",
        "timeout = \"5s\"\nretry-interval-start = \"2s\"\nworker-threads = 7\nhttp-endpoint = \":1\"\n\
         [backend.array]\nfile = \"array.wasm\"\n[backend.array.settings]\nzone = 3\n",
    );
    let flags = flags_with(|flags| {
        flags.config = Some(path.clone());
        flags.timeout = Some("7s".to_owned());
        flags.backend = vec!["dir/memory-1.0.wasm".to_owned()];
    });
    let variables = [
        ("COFFERDAM_TIMEOUT", "6s"),
        ("COFFERDAM_RETRY_INTERVAL_START", "3s"),
        ("COFFERDAM_EXTRA_CREATE_METADATA", "true"),
        ("COFFERDAM_SERVICE_HOST", "10.0.0.1"),
        ("RUST_LOG", "debug"),
    ];
    let resolved = ResolvedConfig::for_cluster(&flags, &environment(&variables)).unwrap();
    let found = &resolved.configuration;
    assert_eq!(found.timeout.to_string(), "7s");
    assert_eq!(found.retry_interval_start.to_string(), "3s");
    assert!(found.extra_create_metadata);
    assert_eq!(found.worker_threads.map(|workers| workers.0), Some(7));
    assert_eq!(found.volume_name_prefix, "pvc");
    assert_eq!(found.orphan_scan_interval.0, Some(std::time::Duration::from_secs(3600)));
    assert_eq!(found.log.0, "debug");
    assert_eq!(found.backend.keys().collect::<Vec<_>>(), ["array", "memory-1-0"]);
    assert_eq!(found.backend["array"].settings["zone"].0, "3");

    let at = |line| ValueOrigin::File(path.clone(), Some(line));
    for (key, origin) in [
        ("timeout", ValueOrigin::Flag("timeout".to_owned())),
        ("retry-interval-start", ValueOrigin::EnvVar("COFFERDAM_RETRY_INTERVAL_START".to_owned())),
        ("worker-threads", at(3)),
        ("backend.array.settings.zone", at(8)),
        ("backend.memory-1-0.file", ValueOrigin::Flag("backend".to_owned())),
        ("log", ValueOrigin::EnvVar("RUST_LOG".to_owned())),
        ("volume-name-prefix", ValueOrigin::Default),
    ] {
        assert_eq!(resolved.origin(key), origin, "{key}");
    }
    let table = resolved.to_table();
    let row = |key: &str| {
        let row = table.lines().find(|row| row.starts_with(&format!("{key} "))).unwrap();
        row.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(row("timeout"), "timeout 7s flag --timeout");
    assert_eq!(row("worker-threads"), format!("worker-threads 7 {}:3", path.display()));
    assert_eq!(row("kubeconfig"), "kubeconfig (not set) default");
    assert_eq!(
        row("backend.array.settings.zone"),
        format!("backend.array.settings.zone 3 {}:8", path.display())
    );
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_flag_replaces_the_file_of_a_backend_and_keeps_its_settings() {
    let path =
        write_config("backend", "[backend.memory]\nfile = \"a.wasm\"\nsettings = { capacity = \"10Gi\" }\n");
    let flags = flags_with(|flags| {
        flags.config = Some(path.clone());
        flags.backend = vec!["memory=b.wasm".to_owned()];
    });
    let resolved = ResolvedConfig::for_cluster(&flags, &HashMap::new()).unwrap();
    let section = &resolved.configuration.backend["memory"];
    assert_eq!(
        (section.file.as_deref(), section.settings["capacity"].0.as_str()),
        (Some(Path::new("b.wasm")), "10Gi")
    );
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn lists_come_from_repeated_flags_and_from_commas() {
    let flags = flags_with(|flags| {
        flags.role = vec!["provisioner".to_owned(), "pv-controller,protection".to_owned()]
    });
    let resolved = ResolvedConfig::for_cluster(&flags, &HashMap::new()).unwrap();
    assert_eq!(resolved.configuration.role.cluster.len(), 3);
    let variables = environment(&[("COFFERDAM_BACKEND", "a.wasm, second=dir/a.wasm")]);
    let resolved = ResolvedConfig::for_cluster(&ClusterFlags::default(), &variables).unwrap();
    assert_eq!(resolved.configuration.backend.keys().collect::<Vec<_>>(), ["a", "second"]);
}

#[test]
fn a_csi_socket_is_a_backend() {
    let flags = flags_with(|flags| {
        flags.csi_address = Some("/run/csi/socket".to_owned());
        flags.backend = vec!["array=unix:///run/array.sock".to_owned(), "unix:other.sock".to_owned()];
    });
    let resolved = ResolvedConfig::for_cluster(&flags, &HashMap::new()).unwrap();
    let sockets: Vec<_> = resolved
        .configuration
        .backend
        .iter()
        .map(|(name, section)| (name.as_str(), section.csi.as_ref().unwrap().0.to_string()))
        .collect();
    let expected = [("array", "/run/array.sock"), ("csi", "/run/csi/socket"), ("other", "other.sock")];
    assert_eq!(sockets, expected.map(|(name, path)| (name, path.to_owned())));
    let variables = environment(&[("COFFERDAM_CSI_ADDRESS", "unix:///s")]);
    let resolved = ResolvedConfig::for_cluster(&ClusterFlags::default(), &variables).unwrap();
    assert_eq!(resolved.configuration.backend["csi"].csi.as_ref().unwrap().0.to_string(), "/s");
}

#[test]
fn dev_runs_every_cluster_role_with_log_level_warn() {
    let off = ProcessFlags { orphan_scan_interval: Some("off".to_owned()), ..ProcessFlags::default() };
    let resolved = ResolvedConfig::for_dev(&off, &HashMap::new()).unwrap();
    assert_eq!(resolved.configuration.orphan_scan_interval.0, None);
    let resolved = ResolvedConfig::for_dev(&ProcessFlags::default(), &HashMap::new()).unwrap();
    assert_eq!(resolved.configuration.role.cluster.len(), 6);
    assert_eq!(resolved.configuration.log.0, "warn");
    assert_eq!(resolved.configuration.backend.keys().collect::<Vec<_>>(), [MEMORY_BACKEND]);
    for role in ["node", "registrar", "liveness", "csi-server"] {
        let flags = ProcessFlags { role: vec![role.to_owned()], ..ProcessFlags::default() };
        assert_eq!(
            ResolvedConfig::for_dev(&flags, &HashMap::new()).unwrap_err().to_string(),
            format!(
                "flag --role: {role} is for `cofferdam run`: expected roles that work on a cluster: provisioner, attacher, resizer, pv-controller, protection, attach-detach"
            )
        );
    }
    let flags = ProcessFlags { role: vec!["foo".to_owned()], ..ProcessFlags::default() };
    assert_eq!(
        ResolvedConfig::for_dev(&flags, &HashMap::new()).unwrap_err().to_string(),
        "flag --role: unknown role \"foo\": expected one of provisioner, attacher, resizer, pv-controller, protection, attach-detach"
    );
    let path = write_config("dev", "[backend.memory.settings]\ncapacity = \"1Gi\"\n");
    let flags = ProcessFlags { config: Some(path.clone()), ..ProcessFlags::default() };
    let resolved = ResolvedConfig::for_dev(&flags, &HashMap::new()).unwrap();
    assert_eq!(resolved.configuration.backend[MEMORY_BACKEND].settings["capacity"].0, "1Gi");
    let missing = ResolvedConfig::for_cluster(
        &ClusterFlags { process: flags, ..ClusterFlags::default() },
        &HashMap::new(),
    );
    let line = missing.unwrap_err().to_string();
    assert_eq!(
        line,
        format!(
            "backend.memory.file is missing: expected it, or backend.memory.csi, in {}:1",
            path.display()
        )
    );
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn an_invalid_flag_or_variable_is_reported_with_value_and_expectation() {
    let text = |text: &str| Some(text.to_owned());
    for (flags, expected) in [
        (
            flags_with(|flags| flags.role = vec!["resiser".to_owned()]),
            "flag --role: unknown role \"resiser\": expected one of provisioner, attacher, resizer, pv-controller, protection, attach-detach, node, registrar, liveness, csi-server",
        ),
        (
            flags_with(|flags| flags.timeout = text("10")),
            "flag --timeout: \"10\" is not a duration: expected one above zero such as 500ms, 10s or 1m30s",
        ),
        (
            flags_with(|flags| flags.worker_threads = text("many")),
            "flag --worker-threads: found the text \"many\", expected a number from 1 to 10000",
        ),
        (flags_with(|flags| flags.resync = text("10ms")), "flag --resync: found 10ms, expected at least 1s"),
        (
            flags_with(|flags| flags.max_entries = text("-1")),
            "flag --max-entries: found the text \"-1\", expected a number from 0 to 10000",
        ),
        (
            flags_with(|flags| flags.worker_threads = text("0")),
            "flag --worker-threads: found the number 0, expected a number from 1 to 10000",
        ),
        (
            flags_with(|flags| flags.extra_create_metadata = text("yes")),
            "flag --extra-create-metadata: found the text \"yes\", expected a boolean",
        ),
        (
            flags_with(|flags| flags.http_endpoint = text("8080")),
            "flag --http-endpoint: \"8080\" is not an address: expected [HOST]:PORT, such as :8080 or \
             127.0.0.1:8080",
        ),
        (
            flags_with(|flags| flags.orphan_scan_interval = text("10ms")),
            "flag --orphan-scan-interval: \"10ms\" is no pause between scans: expected one from 1s, \
             such as 1h, or off",
        ),
        (
            flags_with(|flags| flags.log_format = text("xml")),
            "flag --log-format: found \"xml\", expected one of text, json",
        ),
        (
            flags_with(|flags| flags.retry_interval_max = text("500ms")),
            "flag --retry-interval-max: found 500ms, expected at least retry-interval-start, 1s",
        ),
        (
            flags_with(|flags| flags.backend = vec!["a/x.wasm".to_owned(), "b/x.wasm".to_owned()]),
            "two backends are called x, a/x.wasm and b/x.wasm: expected a name each, as in --backend NAME=FILE",
        ),
        (
            flags_with(|flags| flags.backend = vec!["tcp://1.2.3.4:5".to_owned()]),
            "flag --backend: \"tcp://1.2.3.4:5\": only unix: or a file: expected [NAME=]FILE, or [NAME=]unix:PATH",
        ),
        (
            flags_with(|flags| flags.backend = vec![String::new()]),
            "flag --backend: found no file: expected [NAME=]FILE, or [NAME=]unix:PATH",
        ),
        (
            flags_with(|flags| flags.backend = vec!["unix:".to_owned()]),
            "flag --backend: \"unix:\" is not a driver's socket: expected a path, unix:PATH or unix:///PATH",
        ),
        (
            flags_with(|flags| flags.csi_address = text("unix://nope.sock")),
            "flag --csi-address: \"unix://nope.sock\" is not a driver's socket: expected a path, unix:PATH or unix:///PATH",
        ),
        (
            flags_with(|flags| flags.log = text("blah")),
            "flag --log: \"blah\" is no level: expected off, error, warn, info, debug or trace, or directives such as \
             info,cofferdam_controllers=debug",
        ),
        (
            flags_with(|flags| flags.config = Some("/nowhere.toml".into())),
            "flag --config: cannot read configuration file /nowhere.toml: No such file or directory (os error 2)",
        ),
    ] {
        assert_eq!(resolve_error(&flags, &[]), expected);
    }
    for allowed in ["Warn,cofferdam_controllers=debug", "off", "info,[span]=trace"] {
        ResolvedConfig::for_cluster(&flags_with(|flags| flags.log = text(allowed)), &HashMap::new()).unwrap();
    }
    let others = environment(&[("RUST_LOG", "hyper"), ("COFFERDAM_CONFIG", "")]);
    ResolvedConfig::for_cluster(&ClusterFlags::default(), &others).unwrap();
    assert_eq!(
        resolve_error(&ClusterFlags::default(), &[("COFFERDAM_CONFIG", "/nowhere.toml")]),
        "environment variable COFFERDAM_CONFIG: cannot read configuration file /nowhere.toml: No such file or directory (os \
         error 2)"
    );
    let none = ClusterFlags::default();
    assert_eq!(
        resolve_error(&none, &[("COFFERDAM_DRAIN_TIMEOUT", "soon")]),
        "environment variable COFFERDAM_DRAIN_TIMEOUT: drain-timeout: \"soon\" is not a duration: expected one above \
         zero such as 500ms, 10s or 1m30s"
    );
    assert!(
        resolve_error(&none, &[("RUST_LOG", "a=b=c")])
            .starts_with("environment variable RUST_LOG: log: \"a=b=c\"")
    );
    assert!(
        resolve_error(&none, &[("COFFERDAM_NAMESPACE", "My_NS")]).contains("\"My_NS\" is not a namespace")
    );
}

#[test]
fn an_invalid_file_is_reported_with_its_line() {
    let unknown = file_error("unknown", "timeout = \"1s\"\ntimout = \"1s\"\n");
    assert!(
        unknown.starts_with(
            "FILE:2: unknown key timout: expected one of role, backend, csi-address, csi-socket, socket-mode, socket-group, kubeconfig, "
        ),
        "{unknown}"
    );
    let nested = file_error("nested", "[backend.a]\nfile = \"a\"\nsetings = {}\n");
    assert!(
        nested.starts_with(
            "FILE:3: unknown key backend.a.setings: expected one of file, csi, socket, driver-name, sha256, settings, secrets, grants, http, state, pool, limits"
        ),
        "{nested}"
    );
    for (name, text, expected) in [
        (
            "type",
            "\n\ntimeout = 5\n",
            "FILE:3: timeout: found the number 5, expected a duration such as \"500ms\", \"10s\" or \"1m30s\"",
        ),
        (
            "list",
            "role = \"x\"\n",
            "FILE:1: role: unknown role \"x\": expected one of provisioner, attacher, resizer, pv-controller, protection, attach-detach, node, registrar, liveness, csi-server",
        ),
        (
            "number",
            "role = 5\n",
            "FILE:1: role: found the number 5, expected a list of roles, such as [\"provisioner\"]",
        ),
        (
            "secret",
            "[backend.a]\nfile = \"x\"\n[backend.a.secrets]\npin = 4711\n",
            "FILE:4: backend.a.secrets.pin: expected the path of a file that holds the secret; what stands there is not shown",
        ),
        ("missing", "[backend.a]\n", "backend.a.file is missing: expected it, or backend.a.csi, in FILE:1"),
        (
            "csi",
            "[backend.a]\ncsi = \"tcp://array:9000\"\n",
            "FILE:2: backend.a.csi: \"tcp://array:9000\" is not a driver's socket: expected a path, unix:PATH or unix:///PATH",
        ),
        (
            "both",
            "[backend.a]\ncsi = \"/s\"\nfile = \"x\"\n",
            "FILE:3: backend.a.file: is for components: expected none beside backend.a.csi",
        ),
        (
            "limited",
            "[backend.a]\ncsi = \"/s\"\n[backend.a.limits]\ncpu-ms = 5\n",
            "FILE:3: backend.a.limits: is for components: expected none beside backend.a.csi",
        ),
        (
            "named",
            "[backend.a]\nfile = \"x\"\ndriver-name = \"y\"\n",
            "FILE:3: backend.a.driver-name: is for CSI drivers: expected it beside backend.a.csi",
        ),
        (
            "twice",
            "csi-address = \"/s\"\n[backend.csi]\ncsi = \"/t\"\n",
            "FILE:1: csi-address: is the driver csi, and so is backend.csi: expected one of the two, or another name",
        ),
        (
            "unserved",
            "role = [\"csi-server\"]\n[backend.a]\nfile = \"x\"\n",
            "no socket for the role csi-server: expected --csi-socket, or `socket` in [backend.NAME]",
        ),
        (
            "shared",
            "role = [\"csi-server\"]\n[backend.a]\nfile = \"x\"\nsocket = \"/s\"\n[backend.b]\nfile = \"x\"\nsocket = \"unix:///s\"\n",
            "FILE:7: backend.b.socket: is the socket of backend.a too: expected one of its own",
        ),
        (
            "several",
            "csi-socket = \"/s\"\n[backend.a]\nfile = \"x\"\n[backend.b]\nfile = \"x\"\n",
            "FILE:1: csi-socket: is for one driver, and there are several: expected `socket` in the section of each",
        ),
        (
            "served",
            "csi-socket = \"/s\"\n",
            "FILE:1: csi-socket: serves no driver: expected one, as in --backend",
        ),
        (
            "mode",
            "socket-mode = \"0999\"\n",
            "FILE:1: socket-mode: \"0999\" is not a socket's mode: expected three octal digits, such as 0660",
        ),
        (
            "group",
            "socket-group = \"a:b\"\n",
            "FILE:1: socket-group: \"a:b\" is not a group: expected a name in /etc/group or a number",
        ),
        (
            "dotted",
            "[backend.\"a b\"]\nfile = \"x\"\n",
            "FILE:1: backend name \"a b\": expected letters, digits, dashes and underscores",
        ),
        (
            "grant",
            "[backend.a]\nfile = \"x\"\ngrants = [\"network\"]\n",
            "FILE:3: backend.a.grants.0: found \"network\", expected one of log, ambient, settings, secrets, reveal, session, http, state, pool",
        ),
        (
            "limit",
            "[backend.a]\nfile = \"x\"\n[backend.a.limits]\ncpu-ms = \"5s\"\n",
            "FILE:4: backend.a.limits.cpu-ms: found the text \"5s\", expected a whole number",
        ),
        (
            "limits",
            "[backend.a]\nfile = \"x\"\nlimits = 3\n",
            "FILE:3: backend.a.limits: found the number 3, expected a section",
        ),
        (
            "setting",
            "[backend.a]\nfile = \"x\"\nsettings = { b = [1] }\n",
            "FILE:3: backend.a.settings.b: found a list, expected a text, a number or a boolean",
        ),
    ] {
        assert_eq!(file_error(name, text), expected);
    }
    let syntax = file_error("syntax", "timeout = \"1s\"\nrole = [\n");
    assert!(syntax.starts_with("flag --config: FILE:") && syntax.contains(": not TOML: "), "{syntax}");
    let absent = resolve_error(&flags_with(|flags| flags.config = Some("/nowhere/c.toml".into())), &[]);
    assert!(
        absent.starts_with("flag --config: cannot read configuration file /nowhere/c.toml: No such file"),
        "{absent}"
    );
}

#[test]
fn every_config_key_has_a_field() {
    let known = file_error("known", "nothing = 1\n");
    for key in &KEYS {
        assert!(known.contains(key.name), "{}: {known}", key.name);
    }
}

#[test]
fn every_config_key_has_a_flag() {
    let mut cli_values = ProcessFlags::default().cli_values();
    cli_values.extend(NodeFlags::default().cli_values());
    for key in &KEYS {
        let cluster = ["kubeconfig", "context", "namespace", "node"].contains(&key.name);
        assert!(cluster || cli_values.iter().any(|(name, _)| *name == key.name), "{}", key.name);
    }
}

#[test]
fn the_node_name_placeholder_is_expanded_in_settings() {
    let text = "[backend.pool]\nfile = \"pool.wasm\"\n[backend.pool.settings]\nnode = \"$(node-name)\"\nother = \"a$(node-name)\"\n";
    let path = write_config("node-name", text);
    let flags = flags_with(|flags| flags.config = Some(path.clone()));
    let found = ResolvedConfig::for_cluster(&flags, &environment(&[("COFFERDAM_NODE_NAME", "n1")])).unwrap();
    let settings = &found.configuration.backend["pool"].settings;
    assert_eq!((settings["node"].0.as_str(), settings["other"].0.as_str()), ("n1", "a$(node-name)"));
    let missing = resolve_error(&flags, &[]);
    assert!(
        missing.contains("backend.pool.settings.node") && missing.contains("expected --node-name"),
        "{missing}"
    );
    assert!(resolve_error(&flags, &[("COFFERDAM_NODE_NAME", "")]).contains("node-name"));
    std::fs::remove_file(&path).unwrap();
}
