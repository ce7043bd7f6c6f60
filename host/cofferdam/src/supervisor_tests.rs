use std::future::{pending, ready};

use futures::{FutureExt as _, future::BoxFuture};

use super::*;

/// How work ends that nobody stops.
async fn ends(work: Work) -> String {
    let running = start(work, Registry::default(), None).await.unwrap();
    let Running { roles, .. } = running;
    premature(roles.await).to_string()
}

#[tokio::test]
async fn a_role_of_a_node_that_ends_by_itself_ends_the_process() {
    let local = |task: BoxFuture<'static, ()>| Some(Local::of("registrar", task));
    let ended = ends(Work { local: local(ready(()).boxed()), ..Work::default() }).await;
    assert_eq!(ended, "role registrar ended before it was told to");
    let panics = async { panic!("on purpose") };
    let ended = ends(Work { local: local(panics.boxed()), ..Work::default() }).await;
    assert_eq!(ended, "role node ended before it was told to", "of a panic the name is not known");
}

#[tokio::test]
async fn of_several_sockets_one_that_is_served_no_more_ends_the_process() {
    let servers =
        |of_b: BoxFuture<'static, ()>| [("a".to_owned(), pending().boxed()), ("b".to_owned(), of_b)];
    let stop = CancellationToken::new();
    let ended = csi_server::serve(servers(ready(()).boxed()), stop.clone()).await;
    assert_eq!(ended.unwrap_err().to_string(), "backend b: its socket is served no more");
    let panics = async { panic!("on purpose") };
    let ended = csi_server::serve(servers(panics.boxed()), stop.clone()).await;
    assert_eq!(ended.unwrap_err().to_string(), "backend b: its socket is served no more");
}

#[tokio::test]
async fn what_is_stopped_ends_in_order() {
    let stop = CancellationToken::new();
    let until = |stop: CancellationToken| async move { stop.cancelled().await }.boxed();
    let servers = [("a".to_owned(), until(stop.clone()))];
    let local = Local::of("node", until(stop.clone()));
    let work = Work { local: Some(local), ..Work::default() };
    let ends = tokio::spawn(work.run(stop.clone()));
    let serving = tokio::spawn(csi_server::serve(servers, stop.clone()));
    stop.cancel();
    assert!(ends.await.unwrap().is_ok() && serving.await.unwrap().is_ok());
}

#[tokio::test]
async fn without_sockets_and_roles_of_a_node_nothing_ends() {
    let stop = CancellationToken::new();
    let serving = csi_server::serve(Vec::<(String, BoxFuture<'static, ()>)>::new(), stop.clone());
    tokio::pin!(serving);
    assert!(futures::poll!(&mut serving).is_pending());
    stop.cancel();
    assert!(serving.await.is_ok());
}
