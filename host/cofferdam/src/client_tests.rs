use super::*;

#[test]
fn the_kubeconfig_is_chosen_from_flag_variable_pod_and_home_in_order() {
    let home = std::env::temp_dir().join(format!("cofferdam-client-{}", std::process::id()));
    std::fs::create_dir_all(home.join(".kube")).unwrap();
    std::fs::write(home.join(".kube/config"), "").unwrap();
    let mut environment = ClientEnvironment {
        kubeconfig: Some("a:b".to_owned()),
        in_cluster: true,
        home: Some(home.clone()),
        ..ClientEnvironment::default()
    };
    let flag = Path::new("/flag");
    assert_eq!(environment.choose_source(Some(flag)).unwrap(), ClientConfigSource::File(flag.to_owned()));
    assert_eq!(
        environment.choose_source(None).unwrap(),
        ClientConfigSource::KubeconfigVariable("a:b".to_owned())
    );
    environment.kubeconfig = None;
    assert_eq!(environment.choose_source(None).unwrap(), ClientConfigSource::InCluster);
    environment.in_cluster = false;
    assert_eq!(environment.choose_source(None).unwrap(), ClientConfigSource::File(home.join(".kube/config")));
    std::fs::remove_dir_all(&home).unwrap();
    let error = environment.choose_source(None).unwrap_err().to_string();
    let path = home.join(".kube/config");
    let expected = |variable: &str| {
        format!(
            "no cluster: expected --kubeconfig FILE, {variable}a pod's service account, or {}",
            path.display()
        )
    };
    assert_eq!(error, expected("KUBECONFIG, "));
    // The variable is not named if it is not read.
    environment.kubeconfig = Some("a:b".to_owned());
    let error = environment.without_kubeconfig_variable().choose_source(None).unwrap_err().to_string();
    assert_eq!(error, expected(""));
}

#[tokio::test]
async fn the_client_does_not_retry_and_uses_the_contexts_namespace() {
    let text = "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
        contexts: [{name: c, context: {cluster: k, user: u, namespace: storage}}]\n\
        clusters: [{name: k, cluster: {server: 'https://127.0.0.1:1'}}]\n\
        users: [{name: u, user: {token: t}}]\n";
    let cluster = connect_with_kubeconfig(text, "test").await.unwrap();
    assert_eq!((cluster.namespace.as_str(), cluster.url.as_str()), ("storage", "https://127.0.0.1:1/"));
    let broken = connect_with_kubeconfig(&text.replace("cluster: k,", "cluster: other,"), "test").await;
    let error = broken.err().unwrap().to_string();
    assert!(error.starts_with("kubeconfig test cannot be used: ") && error.contains("other"), "{error}");
}

/// A secret in the kubeconfigs, which no error may quote.
const TOKEN: &str = "s3cr3t-t0k3n";

fn write_kubeconfig(directory: &tempfile::TempDir, text: &str) -> PathBuf {
    let path = directory.path().join("config");
    std::fs::write(&path, text).unwrap();
    path
}

#[tokio::test]
async fn kubeconfig_errors_never_quote_the_file() {
    let directory = tempfile::TempDir::new().unwrap();
    let head = "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
        contexts: [{name: c, context: {cluster: k, user: u}}]\n";
    let cluster = "clusters: [{name: k, cluster: {server: 'https://127.0.0.1:1'}}]\n";
    for (text, location) in [
        (format!("root:{TOKEN}:0\nbin:{TOKEN}:1\n"), "line 1, column 1"),
        (format!("{head}{cluster}users:\n- name: u\n  user:\n    token: [{TOKEN}]\n"), "line 9, column 12"),
        (format!("{head}{cluster}users:\n- name: u\n  user:\n    token: \"{TOKEN}\n"), "line "),
        (format!("{head}{cluster}users:\n- name: u\n  user: {TOKEN}\n"), "line 8, column 9"),
    ] {
        let path = write_kubeconfig(&directory, &text);
        for error in [read_kubeconfig(&path).err(), read_kubeconfig_list(&path.display().to_string()).err()] {
            let line = one_line(&error.unwrap());
            let start = format!("cannot read kubeconfig {}: {location}", path.display());
            assert!(line.starts_with(&start) && !line.contains(TOKEN), "{line}");
        }
        let error = connect_with_kubeconfig(&text, "test").await.err().unwrap();
        assert!(!one_line(&error).contains(TOKEN), "{error}");
    }
    for (user, expected) in [
        (format!("client-key-data: '{TOKEN}', client-certificate-data: '{TOKEN}'"), "is not base64"),
        (
            format!(
                "exec: {{apiVersion: client.authentication.k8s.io/v1, command: echo, args: ['{TOKEN}: [']}}"
            ),
            "ExecCredential",
        ),
        (
            format!("exec: {{apiVersion: client.authentication.k8s.io/v1, command: ls, args: ['/{TOKEN}']}}"),
            "plugin failed: exit status",
        ),
    ] {
        let text = format!("{head}{cluster}users: [{{name: u, user: {{{user}}}}}]\n");
        let error = one_line(&connect_with_kubeconfig(&text, "test").await.err().unwrap());
        assert!(error.contains(expected) && !error.contains(TOKEN), "{error}");
    }
}

#[tokio::test]
async fn a_proxy_password_is_not_in_the_error() {
    for scheme in ["http", "socks5", "socks5h"] {
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: k, \
             user: u}}}}]\n\
             clusters: [{{name: k, cluster: {{server: 'https://127.0.0.1:1', proxy-url: \
             '{scheme}://me:{TOKEN}@127.0.0.1:2'}}}}]\n\
             users: [{{name: u, user: {{}}}}]\n",
        );
        let error = one_line(&connect_with_kubeconfig(&text, "test").await.err().unwrap());
        assert!(error.contains("proxy-url is set") && !error.contains(TOKEN), "{error}");
    }
}

#[tokio::test]
async fn a_credential_plugin_failure_never_quotes_its_output() {
    let directory = tempfile::TempDir::new().unwrap();
    let marker = directory.path().join("fails");
    for (fails, expected) in [
        (format!("echo {TOKEN}; echo {TOKEN} >&2; exit 3"), "the credential plugin failed: exit status: 3"),
        (
            format!("echo '{{\"status\": [{TOKEN}'"),
            "the output of the credential plugin is not an ExecCredential",
        ),
    ] {
        // The token has expired, so the plugin runs again for every request.
        let script = format!(
            "#!/bin/sh\nif [ -e {marker} ]; then {fails}; else echo '{{\"kind\": \"ExecCredential\", \
             \"apiVersion\": \"client.authentication.k8s.io/v1\", \"status\": {{\"token\": \"{TOKEN}\", \
             \"expirationTimestamp\": \"2020-01-01T00:00:00Z\"}}}}'; fi\n",
            marker = marker.display(),
        );
        let plugin = directory.path().join("plugin");
        std::fs::write(&plugin, script).unwrap();
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: k, \
             user: u}}}}]\n\
             clusters: [{{name: k, cluster: {{server: 'http://127.0.0.1:1'}}}}]\n\
             users: [{{name: u, user: {{exec: {{apiVersion: client.authentication.k8s.io/v1, command: sh, \
             args: ['{}']}}}}}}]\n",
            plugin.display(),
        );
        let cluster = connect_with_kubeconfig(&text, "test").await.unwrap();
        std::fs::write(&marker, "").unwrap();
        let error = cluster.client.apiserver_version().await.unwrap_err();
        let (line, debug) = (one_line(&error), format!("{error:?}"));
        assert!(line.contains(expected) && !line.contains(TOKEN) && !debug.contains(TOKEN), "{line}");
        std::fs::remove_file(&marker).unwrap();
    }
}

#[tokio::test]
async fn an_unknown_context_is_reported_with_the_known_ones() {
    let text = "contexts: [{name: home, context: {cluster: k}}, {name: work, context: {cluster: k}}]\n";
    let kubeconfig = Kubeconfig::from_yaml(text).unwrap();
    let options = KubeConfigOptions { context: Some("nope".to_owned()), ..KubeConfigOptions::default() };
    let error = config_from_kubeconfig(kubeconfig, &options, "/k").await.err().unwrap().to_string();
    assert_eq!(error, "kubeconfig /k has no context \"nope\": expected one of home, work");
}

#[test]
fn an_error_line_has_no_control_and_format_characters() {
    let error = ClientError::Client {
        url: "https://h/\u{202e}".to_owned(),
        problem: "Internal: a\u{1b}]52;c;x\u{7}\nb\u{9b}2J".to_owned(),
    };
    let line = "cannot create a client for https://h/\\u{202e}: Internal: a\\u{1b}]52;c;x\\u{7} b\\u{9b}2J";
    assert_eq!(one_line(&error), line);
}

#[test]
fn an_error_of_the_api_is_its_message_and_reason() {
    let status = kube::core::Status::failure("pods \"x\" not found", "NotFound").with_code(404);
    let error = kube::Error::Api(Box::new(status));
    assert_eq!(one_line(&error), "pods \"x\" not found: NotFound");
}
