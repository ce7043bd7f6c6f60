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
