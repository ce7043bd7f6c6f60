//! Calls at the same time.

use std::{sync::Arc, thread};

use cofferdam_csi::v1::{
    NodeGetVolumeStatsRequest, ProbeRequest, identity_server::Identity as _, node_server::Node as _,
};
use cofferdam_domain::storage::ErrorKind;
use cofferdam_node::{Manifest, NodeService, Whereabouts};
use tonic::{Code, Request};

use crate::support::{attachment, do_stage, node, stage, staging, writer};

#[test]
fn two_volumes_that_name_one_image_do_not_both_get_it() {
    for (point, staged_first) in [("attach", false), ("mount", false), ("umount", true), ("detach", true)] {
        let node = Arc::new(node());
        let of = |volume: &str| stage(volume, attachment("image", &[("path", "blank")]), writer());
        if staged_first {
            do_stage(&node, &of("first")).unwrap();
        }
        node.machine().directory_at(&staging("first"));
        let (reached, go) = node.machine().halt_before(point);
        let first = {
            let (node, request) = (Arc::clone(&node), of("first"));
            thread::spawn(move || {
                if staged_first { node.unstage("first", &staging("first")) } else { node.stage(&request) }
            })
        };
        reached.recv().unwrap();
        let error = do_stage(&node, &of("second")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FailedPrecondition, "{point}: {error}");
        assert!(error.to_string().contains("the same storage"), "{point}: {error}");
        go.send(()).unwrap();
        first.join().unwrap().unwrap();
        if !staged_first {
            node.unstage("first", &staging("first")).unwrap();
        }
        do_stage(&node, &of("second")).unwrap();
        node.unstage("second", &staging("second")).unwrap();
        assert_eq!(node.machine().left_behind(), "", "{point}");
    }
}

/// Storage that hangs holds one thread for a volume, and one for probes.
#[tokio::test]
async fn what_hangs_holds_one_thread() {
    let text = r#"{"manifestVersion":1,"driver":"d.example.com","version":"1","topologyKeys":[],"volumesPerNode":9,
        "features":[],"abilities":[]}"#;
    let whereabouts = Whereabouts { node: "n1".to_owned(), segments: Default::default() };
    let node = node();
    do_stage(&node, &stage("v", attachment("directory", &[("path", "one")]), writer())).unwrap();
    let service = NodeService::new(node, Manifest::parse(text).unwrap(), whereabouts);
    let measure = || {
        let request = NodeGetVolumeStatsRequest {
            volume_id: "v".to_owned(),
            volume_path: staging("v"),
            ..NodeGetVolumeStatsRequest::default()
        };
        let service = service.clone();
        async move { service.node_get_volume_stats(Request::new(request)).await }
    };
    let (reached, go) = service.node().machine().halt_before("usage");
    let first = tokio::spawn(measure());
    tokio::task::spawn_blocking(move || reached.recv()).await.unwrap().unwrap();
    assert_eq!(measure().await.unwrap_err().code(), Code::Aborted);
    go.send(()).unwrap();
    first.await.unwrap().unwrap();
    measure().await.unwrap();

    let (reached, go) = service.node().machine().halt_before("records");
    let probe = || {
        let service = service.clone();
        async move { service.probe(Request::new(ProbeRequest {})).await }
    };
    let first = tokio::spawn(probe());
    tokio::task::spawn_blocking(move || reached.recv()).await.unwrap().unwrap();
    let mut second = Box::pin(probe());
    let waits = std::future::poll_fn(|context| {
        use std::future::Future as _;
        std::task::Poll::Ready(second.as_mut().poll(context).is_pending())
    });
    assert!(waits.await, "it is answered beside one that hangs");
    go.send(()).unwrap();
    assert_eq!(first.await.unwrap().unwrap().into_inner().ready, Some(true));
    assert_eq!(second.await.unwrap().into_inner().ready, Some(true));
}
