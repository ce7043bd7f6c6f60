use std::path::{Path, PathBuf};

use clap::{Args as _, FromArgMatches as _};
use cofferdam_controllers::table::CONTROLLERS;

use super::{
    settings::{FlagScope, SettingDefault},
    *,
};

fn write_config(name: &str, text: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("cofferdam-config-{}-{name}.toml", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path
}

fn environment(variables: &[(&str, &str)]) -> HashMap<String, String> {
    variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn flags_with(values: &[(&'static str, &str)]) -> CliValues {
    values
        .iter()
        .fold(CliValues::default(), |flags, &(setting, value)| flags.with(setting, [(*value).to_owned()]))
}

fn config_file(path: &Path) -> CliValues {
    CliValues::from_file(Some(path.to_owned()))
}

fn resolve_error(flags: &CliValues, variables: &[(&str, &str)]) -> String {
    let line = ResolvedConfig::for_cluster(flags, &environment(variables)).unwrap_err().to_string();
    assert!(!line.contains('\n'), "one line: {line}");
    line
}

fn file_error(name: &str, text: &str) -> String {
    let path = write_config(name, text);
    let line = resolve_error(&config_file(&path), &[]);
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
    let flags = config_file(&path)
        .with("timeout", ["7s".to_owned()])
        .with("backend", ["dir/memory-1.0.wasm".to_owned()]);
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
        let row = table.as_str().lines().find(|row| row.starts_with(&format!("{key} "))).unwrap();
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
    let flags = config_file(&path).with("backend", ["memory=b.wasm".to_owned()]);
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
    let flags = flags_with(&[("role", "provisioner"), ("role", "pv-controller,protection")]);
    let resolved = ResolvedConfig::for_cluster(&flags, &HashMap::new()).unwrap();
    assert_eq!(resolved.configuration.role.cluster.len(), 3);
    let variables = environment(&[("COFFERDAM_BACKEND", "a.wasm, second=dir/a.wasm")]);
    let resolved = ResolvedConfig::for_cluster(&CliValues::default(), &variables).unwrap();
    assert_eq!(resolved.configuration.backend.keys().collect::<Vec<_>>(), ["a", "second"]);
}

#[test]
fn a_csi_socket_is_a_backend() {
    let flags = flags_with(&[
        ("csi-address", "/run/csi/socket"),
        ("backend", "array=unix:///run/array.sock"),
        ("backend", "unix:other.sock"),
    ]);
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
    let resolved = ResolvedConfig::for_cluster(&CliValues::default(), &variables).unwrap();
    assert_eq!(resolved.configuration.backend["csi"].csi.as_ref().unwrap().0.to_string(), "/s");
}

#[test]
fn dev_runs_every_cluster_role_with_log_level_warn() {
    let off = flags_with(&[("orphan-scan-interval", "off")]);
    let resolved = ResolvedConfig::for_dev(&off, &HashMap::new()).unwrap();
    assert_eq!(resolved.configuration.orphan_scan_interval.0, None);
    let resolved = ResolvedConfig::for_dev(&CliValues::default(), &HashMap::new()).unwrap();
    assert_eq!(resolved.configuration.role.cluster.len(), 9);
    assert_eq!(resolved.configuration.log.0, "warn");
    assert_eq!(resolved.configuration.backend.keys().collect::<Vec<_>>(), [MEMORY_BACKEND]);
    for role in ["node", "registrar", "liveness", "csi-server"] {
        let flags = flags_with(&[("role", role)]);
        assert_eq!(
            ResolvedConfig::for_dev(&flags, &HashMap::new()).unwrap_err().to_string(),
            format!(
                "flag --role: {role} is for `cofferdam run`: expected roles that reconcile a cluster: \
                 provisioner, attacher, resizer, pv-controller, protection, attach-detach, startup-taint, \
                 snapshotter, snapshot-controller"
            )
        );
    }
    let flags = flags_with(&[("role", "foo")]);
    assert_eq!(
        ResolvedConfig::for_dev(&flags, &HashMap::new()).unwrap_err().to_string(),
        "flag --role: unknown role \"foo\": expected one of provisioner, attacher, resizer, pv-controller, \
         protection, attach-detach, startup-taint, snapshotter, snapshot-controller"
    );
    let path = write_config("dev", "[backend.memory.settings]\ncapacity = \"1Gi\"\n");
    let flags = config_file(&path);
    let resolved = ResolvedConfig::for_dev(&flags, &HashMap::new()).unwrap();
    assert_eq!(resolved.configuration.backend[MEMORY_BACKEND].settings["capacity"].0, "1Gi");
    let missing = ResolvedConfig::for_cluster(&flags, &HashMap::new());
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
    for (flags, expected) in [
        (
            flags_with(&[("role", "resiser")]),
            "flag --role: unknown role \"resiser\": expected one of provisioner, attacher, resizer, \
             pv-controller, protection, attach-detach, startup-taint, snapshotter, snapshot-controller, \
             node, registrar, liveness, csi-server",
        ),
        (
            flags_with(&[("timeout", "10")]),
            "flag --timeout: \"10\" is not a duration: expected one above zero such as 500ms, 10s or 1m30s",
        ),
        (
            flags_with(&[("worker-threads", "many")]),
            "flag --worker-threads: found the text \"many\", expected a number from 1 to 10000",
        ),
        (flags_with(&[("resync", "10ms")]), "flag --resync: found 10ms, expected at least 1s"),
        (
            flags_with(&[("max-entries", "-1")]),
            "flag --max-entries: found the text \"-1\", expected a number from 0 to 10000",
        ),
        (
            flags_with(&[("worker-threads", "0")]),
            "flag --worker-threads: found the number 0, expected a number from 1 to 10000",
        ),
        (
            flags_with(&[("extra-create-metadata", "yes")]),
            "flag --extra-create-metadata: found the text \"yes\", expected a boolean",
        ),
        (
            flags_with(&[("http-endpoint", "8080")]),
            "flag --http-endpoint: \"8080\" is not an address: expected [HOST]:PORT, such as :8080 or \
             127.0.0.1:8080",
        ),
        (
            flags_with(&[("role", "liveness"), ("http-endpoint", ":1"), ("health-port", "2")]),
            "flag --health-port: cannot be set with http-endpoint, which has the same pages: expected one of \
             the two",
        ),
        (
            flags_with(&[("role", "registrar"), ("http-endpoint", ":1"), ("health-port", "9808")]),
            "flag --health-port: cannot be set with http-endpoint, which has the same pages: expected one of \
             the two",
        ),
        (
            flags_with(&[("metrics-path", "metrics")]),
            "flag --metrics-path: \"metrics\" is not a path for metrics: expected a path such as /metrics, \
             and none of health",
        ),
        (
            flags_with(&[("metrics-path", "/healthz")]),
            "flag --metrics-path: \"/healthz\" is not a path for metrics: expected a path such as \
             /metrics, and none of health",
        ),
        (
            flags_with(&[("orphan-scan-interval", "10ms")]),
            "flag --orphan-scan-interval: \"10ms\" is not a scan interval: expected at least 1s, such as 1h, \
             or off",
        ),
        (
            flags_with(&[("log-format", "xml")]),
            "flag --log-format: found \"xml\", expected one of text, json",
        ),
        (
            flags_with(&[("retry-interval-max", "500ms")]),
            "flag --retry-interval-max: found 500ms, expected at least retry-interval-start, 1s",
        ),
        (
            flags_with(&[("backend", "a/x.wasm"), ("backend", "b/x.wasm")]),
            "two backends have the name x, a/x.wasm and b/x.wasm: expected different names, as in --backend \
             NAME=FILE",
        ),
        (
            flags_with(&[("backend", "tcp://1.2.3.4:5")]),
            "flag --backend: \"tcp://1.2.3.4:5\": only unix: or a file: expected [NAME=]FILE, or \
             [NAME=]unix:PATH",
        ),
        (
            flags_with(&[("backend", "")]),
            "flag --backend: found no file: expected [NAME=]FILE, or [NAME=]unix:PATH",
        ),
        (
            flags_with(&[("backend", "unix:")]),
            "flag --backend: \"unix:\" is not a driver's socket: expected a path, unix:PATH or unix:///PATH",
        ),
        (
            flags_with(&[("csi-address", "unix://nope.sock")]),
            "flag --csi-address: \"unix://nope.sock\" is not a driver's socket: expected a path, unix:PATH \
             or unix:///PATH",
        ),
        (
            flags_with(&[("log", "blah")]),
            "flag --log: \"blah\" is not a level: expected off, error, warn, info, debug or trace, or \
             directives such as \
             info,cofferdam_controllers=debug",
        ),
        (
            config_file(Path::new("/nowhere.toml")),
            "flag --config: cannot read configuration file /nowhere.toml: No such file or directory (os \
             error 2)",
        ),
    ] {
        assert_eq!(resolve_error(&flags, &[]), expected);
    }
    for allowed in ["Warn,cofferdam_controllers=debug", "off", "info,[span]=trace"] {
        ResolvedConfig::for_cluster(&flags_with(&[("log", allowed)]), &HashMap::new()).unwrap();
    }
    let others = environment(&[("RUST_LOG", "hyper"), ("COFFERDAM_CONFIG", "")]);
    ResolvedConfig::for_cluster(&CliValues::default(), &others).unwrap();
    assert_eq!(
        resolve_error(&CliValues::default(), &[("COFFERDAM_CONFIG", "/nowhere.toml")]),
        "environment variable COFFERDAM_CONFIG: cannot read configuration file /nowhere.toml: No such file \
         or directory (os \
         error 2)"
    );
    let none = CliValues::default();
    assert_eq!(
        resolve_error(&none, &[("COFFERDAM_DRAIN_TIMEOUT", "soon")]),
        "environment variable COFFERDAM_DRAIN_TIMEOUT: drain-timeout: \"soon\" is not a duration: expected \
         one above \
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
            "FILE:2: unknown key timout: expected one of role, backend, csi-address, csi-socket, \
             socket-mode, socket-group, kubeconfig, "
        ),
        "{unknown}"
    );
    let nested = file_error("nested", "[backend.a]\nfile = \"a\"\nsetings = {}\n");
    assert!(
        nested.starts_with(
            "FILE:3: unknown key backend.a.setings: expected one of file, csi, socket, driver-name, sha256, \
             settings, secrets, class-secrets, grants, http, state, pool, limits"
        ),
        "{nested}"
    );
    for (name, text, expected) in [
        (
            "type",
            "\n\ntimeout = 5\n",
            "FILE:3: timeout: found the number 5, expected a duration such as \"500ms\", \"10s\" or \
             \"1m30s\"",
        ),
        (
            "list",
            "role = \"x\"\n",
            "FILE:1: role: unknown role \"x\": expected one of provisioner, attacher, resizer, \
             pv-controller, protection, attach-detach, startup-taint, snapshotter, snapshot-controller, \
             node, registrar, liveness, csi-server",
        ),
        (
            "number",
            "role = 5\n",
            "FILE:1: role: found the number 5, expected a list of roles, such as [\"provisioner\"]",
        ),
        (
            "secret",
            "[backend.a]\nfile = \"x\"\n[backend.a.secrets]\npin = 4711\n",
            "FILE:4: backend.a.secrets.pin: expected the path of a file with the secret; the value is not \
             shown",
        ),
        ("missing", "[backend.a]\n", "backend.a.file is missing: expected it, or backend.a.csi, in FILE:1"),
        (
            "csi",
            "[backend.a]\ncsi = \"tcp://array:9000\"\n",
            "FILE:2: backend.a.csi: \"tcp://array:9000\" is not a driver's socket: expected a path, \
             unix:PATH or unix:///PATH",
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
            "class-secrets-of-csi",
            "[backend.a]\ncsi = \"/s\"\nclass-secrets = true\n",
            "FILE:3: backend.a.class-secrets: is for components: expected none beside backend.a.csi",
        ),
        (
            "named",
            "[backend.a]\nfile = \"x\"\ndriver-name = \"y\"\n",
            "FILE:3: backend.a.driver-name: is for CSI drivers: expected it beside backend.a.csi",
        ),
        (
            "twice",
            "csi-address = \"/s\"\n[backend.csi]\ncsi = \"/t\"\n",
            "FILE:1: csi-address: is the driver csi, and so is backend.csi: expected one of the two, or \
             another name",
        ),
        (
            "unserved",
            "role = [\"csi-server\"]\n[backend.a]\nfile = \"x\"\n",
            "no socket for the role csi-server: expected --csi-socket, or `socket` in [backend.NAME]",
        ),
        (
            "shared",
            "role = [\"csi-server\"]\n[backend.a]\nfile = \"x\"\nsocket = \"/s\"\n[backend.b]\nfile = \
             \"x\"\nsocket = \"unix:///s\"\n",
            "FILE:7: backend.b.socket: is the socket of backend.a too: expected one of its own",
        ),
        (
            "several",
            "csi-socket = \"/s\"\n[backend.a]\nfile = \"x\"\n[backend.b]\nfile = \"x\"\n",
            "FILE:1: csi-socket: is for one driver, and there are several: expected `socket` in the section \
             of each",
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
            "FILE:3: backend.a.grants.0: found \"network\", expected one of log, ambient, deadline, \
             settings, secrets, reveal, sign, session, http, state, pool",
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
    let absent = resolve_error(&config_file(Path::new("/nowhere/c.toml")), &[]);
    assert!(
        absent.starts_with("flag --config: cannot read configuration file /nowhere/c.toml: No such file"),
        "{absent}"
    );
}

#[test]
fn every_setting_has_a_field() {
    let known = file_error("known", "nothing = 1\n");
    let (_, listed) = known.split_once("expected one of ").unwrap();
    let names: Vec<&str> = SETTINGS.iter().map(|setting| setting.name.as_str()).collect();
    assert_eq!(listed.split(", ").collect::<Vec<_>>(), names);
}

#[test]
fn every_setting_has_a_flag_of_its_scope() {
    let has_flag = |command: &clap::Command, name: &str| {
        command.get_arguments().any(|argument| argument.get_long() == Some(name))
    };
    let run = SettingFlags::<RunSelection>::augment_args(clap::Command::new("run"));
    let dev = SettingFlags::<DevSelection>::augment_args(clap::Command::new("dev"));
    for setting in SETTINGS.iter() {
        let scope = setting.group.scope;
        assert_eq!(has_flag(&run, &setting.name), scope != FlagScope::File, "{}", setting.name);
        assert_eq!(has_flag(&dev, &setting.name), scope == FlagScope::Process, "{}", setting.name);
    }
    assert_eq!(SETTINGS.len(), 66);
    assert!(has_flag(&run, "config") && has_flag(&dev, "config"));
    let connection = SettingFlags::<ConnectionSelection>::augment_args(clap::Command::new("status"));
    assert!(has_flag(&connection, "kubeconfig") && has_flag(&connection, "context"));
    assert!(!has_flag(&connection, "config") && !has_flag(&connection, "namespace"));
}

#[test]
fn flags_are_read_from_a_command_line() {
    let parse = |line: &[&str]| {
        let command = SettingFlags::<RunSelection>::augment_args(clap::Command::new("run"));
        let matches = command.try_get_matches_from([&["run"][..], line].concat())?;
        SettingFlags::<RunSelection>::from_arg_matches(&matches).map(|flags| flags.values)
    };
    let values = parse(&["--strict-topology", "--immediate-topology=false", "--csi", "/s", "--role", "node"]);
    let values = values.unwrap();
    assert_eq!(values.get("strict-topology"), ["true"]);
    assert_eq!(values.get("immediate-topology"), ["false"]);
    assert_eq!(
        (values.get("csi-address"), values.get("role")),
        (&["/s".to_owned()][..], &["node".to_owned()][..])
    );
    assert!(values.get("timeout").is_empty());
    let values = parse(&["--role", "node", "--role", "registrar", "--config", "c.toml"]).unwrap();
    assert_eq!(values.get("role"), ["node", "registrar"]);
    assert_eq!(values.config_file.as_deref(), Some(Path::new("c.toml")));
    assert!(parse(&["--timeout", "1s", "--timeout", "2s"]).is_err(), "a single value cannot be repeated");
    assert!(parse(&["--strict-topology", "false"]).is_err(), "a boolean needs an equals sign");
}

/// The table of docs/configuration.md.
fn settings_table() -> String {
    let mut table = "| setting | default | roles | meaning |\n|---|---|---|---|\n".to_owned();
    for setting in SETTINGS.iter() {
        let default = match setting.default {
            SettingDefault::Unset => "none".to_owned(),
            SettingDefault::Value(value) => format!("`{value}`"),
            SettingDefault::InDev(value, in_dev) => format!("`{value}`; in `dev`: `{in_dev}`"),
            SettingDefault::Computed(description) => description.to_owned(),
        };
        let (name, roles, help) = (&setting.name, setting.group.roles, setting.help);
        table.push_str(&format!("| `{name}` | {default} | {roles} | {help} |\n"));
    }
    table
}

#[test]
fn the_documentation_lists_every_setting() {
    let page = include_str!("../../../../docs/configuration.md");
    let (_, rest) = page.split_once("<!-- settings: generated -->\n").unwrap();
    let (documented, _) = rest.split_once("<!-- end -->").unwrap();
    let expected = settings_table();
    assert!(documented == expected, "docs/configuration.md: expected between the markers\n{expected}");
}

#[test]
fn the_documentation_and_the_help_describe_every_controller() {
    let (page, help) = (include_str!("../../../../docs/how-it-works.md"), Roles::help());
    for controller in CONTROLLERS {
        let row = format!("| `{}` | {} |", controller.role, controller.replaces);
        assert!(page.contains(&row), "docs/how-it-works.md: expected {row}");
        assert!(help.contains(controller.role.as_str()) && help.contains(controller.help), "{help}");
    }
}

#[test]
fn the_defaults_of_settings_are_those_of_the_controllers() {
    let resolved = ResolvedConfig::for_cluster(&CliValues::default(), &HashMap::new()).unwrap();
    let defaults = cofferdam_controllers::Settings::default();
    let configured =
        crate::commands::run::controller_settings(&resolved.configuration, defaults.namespace.clone());
    let expected = cofferdam_controllers::Settings {
        roles: configured.roles.clone(),
        identity: configured.identity.clone(),
        ..defaults
    };
    assert_eq!(format!("{configured:?}"), format!("{expected:?}"));
}

#[test]
fn secrets_are_read_in_the_own_namespace_unless_others_are_listed() {
    let found = |flags: &[(&'static str, &str)], variables: &[(&str, &str)]| {
        let resolved = ResolvedConfig::for_cluster(&flags_with(flags), &environment(variables)).unwrap();
        let settings =
            crate::commands::run::controller_settings(&resolved.configuration, "storage".to_owned());
        settings.secret_namespaces.to_string()
    };
    const VARIABLE: &str = "COFFERDAM_SECRET_NAMESPACES";
    assert_eq!(found(&[], &[]), "storage");
    assert_eq!(found(&[("secret-namespaces", "b, a")], &[]), "a,b");
    assert_eq!(found(&[("secret-namespaces", "*")], &[(VARIABLE, "a")]), "*");
    assert_eq!(found(&[], &[(VARIABLE, "a")]), "a");
    assert_eq!(found(&[], &[(VARIABLE, "")]), "none");
    for (value, expected) in [
        ("a,*", "\"a,*\" is not a list of namespaces: expected * alone, or the names of namespaces"),
        ("a/b", "\"a/b\" is not a namespace"),
    ] {
        let error = resolve_error(&flags_with(&[("secret-namespaces", value)]), &[]);
        assert!(error.contains("secret-namespaces") && error.contains(expected), "{error}");
    }
}

#[test]
fn the_node_name_placeholder_is_expanded_in_settings() {
    let text = "[backend.pool]\nfile = \"pool.wasm\"\n[backend.pool.settings]\nnode = \
     \"$(node-name)\"\nother = \"a$(node-name)\"\n";
    let path = write_config("node-name", text);
    let flags = config_file(&path);
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

#[test]
fn secrets_of_classes_and_of_origins_are_configured_by_section() {
    let text = "[backend.a]\nfile = \"x\"\nclass-secrets = true\n\
                [[backend.a.http.origins]]\norigin = \"https://a\"\nsecrets = [\"user\", \"password\"]\n\
                [[backend.a.http.origins]]\norigin = \"https://b\"\n\
                [backend.b]\nfile = \"x\"\n";
    let path = write_config("class-secrets", text);
    let resolved = ResolvedConfig::for_dev(&config_file(&path), &environment(&[])).unwrap();
    let section = |name| resolved.configuration.backend.get(name).unwrap();
    let granted = crate::drivers::backend_config("a", section("a")).unwrap();
    let plain = crate::drivers::backend_config("b", section("b")).unwrap();
    assert_eq!((granted.class_secrets, plain.class_secrets), (true, false));
    let [first, second] = granted.http.origins.try_into().unwrap();
    assert_eq!(first.secrets, Some(["password".to_owned(), "user".to_owned()].into()));
    assert_eq!(second.secrets, None);
}
