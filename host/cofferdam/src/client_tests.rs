use super::*;

#[test]
fn the_flag_wins_then_the_variable_then_the_pod_then_the_home() {
    let home = std::env::temp_dir().join(format!("cofferdam-client-{}", std::process::id()));
    std::fs::create_dir_all(home.join(".kube")).unwrap();
    std::fs::write(home.join(".kube/config"), "").unwrap();
    let mut around =
        Surroundings { kubeconfig: Some("a:b".to_owned()), in_cluster: true, home: Some(home.clone()) };
    let flag = Path::new("/flag");
    assert_eq!(around.choose(Some(flag)).unwrap(), Choice::File(flag.to_owned()));
    assert_eq!(around.choose(None).unwrap(), Choice::Variable("a:b".to_owned()));
    around.kubeconfig = None;
    assert_eq!(around.choose(None).unwrap(), Choice::InCluster);
    around.in_cluster = false;
    assert_eq!(around.choose(None).unwrap(), Choice::File(home.join(".kube/config")));
    std::fs::remove_dir_all(&home).unwrap();
    let error = around.choose(None).unwrap_err().to_string();
    assert!(error.starts_with("no cluster: expected --kubeconfig FILE, KUBECONFIG, "), "{error}");
}

#[tokio::test]
async fn the_client_repeats_nothing_and_takes_the_contexts_namespace() {
    let text = "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
        contexts: [{name: c, context: {cluster: k, user: u, namespace: storage}}]\n\
        clusters: [{name: k, cluster: {server: 'https://127.0.0.1:1'}}]\nusers: [{name: u, user: {token: t}}]\n";
    let cluster = from_text(text, "test").await.unwrap();
    assert_eq!((cluster.namespace.as_str(), cluster.url.as_str()), ("storage", "https://127.0.0.1:1/"));
    let broken = from_text(&text.replace("cluster: k,", "cluster: other,"), "test").await;
    let error = broken.err().unwrap().to_string();
    assert!(error.starts_with("kubeconfig test cannot be used: ") && error.contains("other"), "{error}");
}

/// What a secret in these tests looks like.
const TOKEN: &str = "s3cr3t-t0k3n";

fn written(directory: &tempfile::TempDir, text: &str) -> PathBuf {
    let path = directory.path().join("config");
    std::fs::write(&path, text).unwrap();
    path
}

#[tokio::test]
async fn nothing_that_stands_in_a_kubeconfig_is_told() {
    let directory = tempfile::TempDir::new().unwrap();
    let head = "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
        contexts: [{name: c, context: {cluster: k, user: u}}]\n";
    let cluster = "clusters: [{name: k, cluster: {server: 'https://127.0.0.1:1'}}]\n";
    for (text, place) in [
        (format!("root:{TOKEN}:0\nbin:{TOKEN}:1\n"), "line 1, column 1"),
        (format!("{head}{cluster}users:\n- name: u\n  user:\n    token: [{TOKEN}]\n"), "line 9, column 12"),
        (format!("{head}{cluster}users:\n- name: u\n  user:\n    token: \"{TOKEN}\n"), "line "),
        (format!("{head}{cluster}users:\n- name: u\n  user: {TOKEN}\n"), "line 8, column 9"),
    ] {
        let path = written(&directory, &text);
        for error in [read(&path).err(), read_all(&path.display().to_string()).err()] {
            let line = one_line(&error.unwrap());
            let start = format!("cannot read kubeconfig {}: {place}", path.display());
            assert!(line.starts_with(&start) && !line.contains(TOKEN), "{line}");
        }
        let error = from_text(&text, "test").await.err().unwrap();
        assert!(!one_line(&error).contains(TOKEN), "{error}");
    }
    for (user, says) in [
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
        let error = one_line(&from_text(&text, "test").await.err().unwrap());
        assert!(error.contains(says) && !error.contains(TOKEN), "{error}");
    }
}

#[tokio::test]
async fn a_proxys_password_is_not_told() {
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
         clusters: [{{name: k, cluster: {{server: 'https://127.0.0.1:1', proxy-url: 'http://me:{TOKEN}@127.0.0.1:2'}}}}]\n\
         users: [{{name: u, user: {{}}}}]\n",
    );
    let error = one_line(&from_text(&text, "test").await.err().unwrap());
    assert!(error.contains("proxy-url is set") && !error.contains(TOKEN), "{error}");
}

#[tokio::test]
async fn a_plugin_that_fails_later_is_not_quoted_either() {
    let directory = tempfile::TempDir::new().unwrap();
    let marker = directory.path().join("fails");
    for (fails, says) in [
        (format!("echo {TOKEN}; echo {TOKEN} >&2; exit 3"), "the credential plugin failed: exit status: 3"),
        (format!("echo '{{\"status\": [{TOKEN}'"), "what the credential plugin wrote is no ExecCredential"),
    ] {
        // What it gives has run out, and it is asked again for every request.
        let script = format!(
            "#!/bin/sh\nif [ -e {marker} ]; then {fails}; else echo '{{\"kind\": \"ExecCredential\", \
             \"apiVersion\": \"client.authentication.k8s.io/v1\", \"status\": {{\"token\": \"{TOKEN}\", \
             \"expirationTimestamp\": \"2020-01-01T00:00:00Z\"}}}}'; fi\n",
            marker = marker.display(),
        );
        let plugin = directory.path().join("plugin");
        std::fs::write(&plugin, script).unwrap();
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: k, cluster: {{server: 'http://127.0.0.1:1'}}}}]\n\
             users: [{{name: u, user: {{exec: {{apiVersion: client.authentication.k8s.io/v1, command: sh, args: ['{}']}}}}}}]\n",
            plugin.display(),
        );
        let cluster = from_text(&text, "test").await.unwrap();
        std::fs::write(&marker, "").unwrap();
        let error = cluster.client.apiserver_version().await.unwrap_err();
        let (line, debug) = (one_line(&error), format!("{error:?}"));
        assert!(line.contains(says) && !line.contains(TOKEN) && !debug.contains(TOKEN), "{line}");
        std::fs::remove_file(&marker).unwrap();
    }
}

#[tokio::test]
async fn a_context_that_is_not_there_is_told_with_those_that_are() {
    let text = "contexts: [{name: home, context: {cluster: k}}, {name: work, context: {cluster: k}}]\n";
    let kubeconfig = Kubeconfig::from_yaml(text).unwrap();
    let options = KubeConfigOptions { context: Some("nope".to_owned()), ..KubeConfigOptions::default() };
    let error = of_kubeconfig(kubeconfig, &options, "/k").await.err().unwrap().to_string();
    assert_eq!(error, "kubeconfig /k has no context \"nope\": expected one of home, work");
}
