use std::future::{pending, ready};

use futures::{FutureExt as _, future::BoxFuture};

use super::*;

/// Runs work that is not stopped, and returns its error.
async fn run_to_early_exit(workload: Workload) -> String {
    let running = start(workload, Registry::default(), &[]).await.unwrap();
    let SupervisedProcess { roles, .. } = running;
    early_exit_error(roles.await).to_string()
}

#[tokio::test]
async fn a_node_role_that_exits_ends_the_process() {
    let local = |task: BoxFuture<'static, ()>| Some(RunningNodeRoles::from_task("registrar", task));
    let error =
        run_to_early_exit(Workload { node_roles: local(ready(()).boxed()), ..Workload::default() }).await;
    assert_eq!(error, "role registrar stopped without a signal");
    let panics = async { panic!("on purpose") };
    let error =
        run_to_early_exit(Workload { node_roles: local(panics.boxed()), ..Workload::default() }).await;
    assert_eq!(error, "role node stopped without a signal", "a panic loses the role's name");
}

#[tokio::test]
async fn a_csi_socket_server_that_exits_ends_the_process() {
    let servers =
        |of_b: BoxFuture<'static, ()>| [("a".to_owned(), pending().boxed()), ("b".to_owned(), of_b)];
    let stop = CancellationToken::new();
    let result = csi_server::serve(servers(ready(()).boxed()), stop.clone()).await;
    assert_eq!(result.unwrap_err().to_string(), "backend b: the server of its socket stopped");
    let panics = async { panic!("on purpose") };
    let result = csi_server::serve(servers(panics.boxed()), stop.clone()).await;
    assert_eq!(result.unwrap_err().to_string(), "backend b: the server of its socket stopped");
}

#[tokio::test]
async fn stopped_node_roles_and_sockets_end_without_error() {
    let stop = CancellationToken::new();
    let until = |stop: CancellationToken| async move { stop.cancelled().await }.boxed();
    let servers = [("a".to_owned(), until(stop.clone()))];
    let local = RunningNodeRoles::from_task("node", until(stop.clone()));
    let workload = Workload { node_roles: Some(local), ..Workload::default() };
    let running = tokio::spawn(workload.run(stop.clone()));
    let serving = tokio::spawn(csi_server::serve(servers, stop.clone()));
    stop.cancel();
    assert!(running.await.unwrap().is_ok() && serving.await.unwrap().is_ok());
}

#[tokio::test]
async fn a_process_without_sockets_and_node_roles_runs_until_stopped() {
    let stop = CancellationToken::new();
    let serving = csi_server::serve(Vec::<(String, BoxFuture<'static, ()>)>::new(), stop.clone());
    tokio::pin!(serving);
    assert!(futures::poll!(&mut serving).is_pending());
    stop.cancel();
    assert!(serving.await.is_ok());
}
