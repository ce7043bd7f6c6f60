//! Concurrent calls: stage and unstage of two volumes with one image, and statistics and probes on storage
//! that does not respond.

use std::{sync::Arc, thread};

use cofferdam_csi::v1::{
    NodeGetVolumeStatsRequest, ProbeRequest, identity_server::Identity as _, node_server::Node as _,
};
use cofferdam_domain::storage::ErrorKind;
use cofferdam_node::{DriverManifest, NodeIdentity, NodeService};
use tonic::{Code, Request};

use crate::support::{
    connection_info, make_directory_and_stage, single_writer, stage_request, staging_path, test_node,
};

#[test]
fn concurrent_stage_of_one_image_succeeds_for_one_volume() {
    for (effect, staged_first) in [("attach", false), ("mount", false), ("umount", true), ("detach", true)] {
        let node = Arc::new(test_node());
        let request_for = |volume: &str| {
            stage_request(volume, connection_info("image", &[("path", "blank")]), single_writer())
        };
        if staged_first {
            make_directory_and_stage(&node, &request_for("first")).unwrap();
        }
        node.mounter().host().create_directories(&staging_path("first")).unwrap();
        let (reached, resume) = node.mounter().pause_before(effect);
        let first = {
            let (node, request) = (Arc::clone(&node), request_for("first"));
            thread::spawn(move || {
                if staged_first {
                    node.unstage("first", &staging_path("first"))
                } else {
                    node.stage(&request)
                }
            })
        };
        reached.recv().unwrap();
        let error = make_directory_and_stage(&node, &request_for("second")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FailedPrecondition, "{effect}: {error}");
        assert!(error.to_string().contains("the same storage"), "{effect}: {error}");
        resume.send(()).unwrap();
        first.join().unwrap().unwrap();
        if !staged_first {
            node.unstage("first", &staging_path("first")).unwrap();
        }
        make_directory_and_stage(&node, &request_for("second")).unwrap();
        node.unstage("second", &staging_path("second")).unwrap();
        assert_eq!(node.mounter().leftovers(), "", "{effect}");
    }
}

/// If storage does not respond, NodeGetVolumeStats blocks at most one thread per volume, and Probe one in
/// total. A further NodeGetVolumeStats call is aborted, and a further Probe call waits.
#[tokio::test]
async fn hung_stats_and_probe_calls_block_one_thread_each() {
    let text = r#"{
        "manifestVersion":1,"driver":"d.example.com","version":"1","topologyKeys":[],
        "volumesPerNode":9,"features":[],"abilities":[]
    }"#;
    let identity = NodeIdentity { node_id: "n1".to_owned(), topology_segments: Default::default() };
    let node = test_node();
    make_directory_and_stage(
        &node,
        &stage_request("v", connection_info("directory", &[("path", "one")]), single_writer()),
    )
    .unwrap();
    let service = NodeService::new(node, DriverManifest::parse(text).unwrap(), identity);
    let measure = || {
        let request = NodeGetVolumeStatsRequest {
            volume_id: "v".to_owned(),
            volume_path: staging_path("v"),
            ..NodeGetVolumeStatsRequest::default()
        };
        let service = service.clone();
        async move { service.node_get_volume_stats(Request::new(request)).await }
    };
    let (reached, resume) = service.node().mounter().pause_before("usage");
    let first = tokio::spawn(measure());
    tokio::task::spawn_blocking(move || reached.recv()).await.unwrap().unwrap();
    assert_eq!(measure().await.unwrap_err().code(), Code::Aborted);
    resume.send(()).unwrap();
    first.await.unwrap().unwrap();
    measure().await.unwrap();

    let (reached, resume) = service.node().mounter().pause_before("records");
    let probe = || {
        let service = service.clone();
        async move { service.probe(Request::new(ProbeRequest {})).await }
    };
    let first = tokio::spawn(probe());
    tokio::task::spawn_blocking(move || reached.recv()).await.unwrap().unwrap();
    let mut second = Box::pin(probe());
    let is_pending = std::future::poll_fn(|context| {
        use std::future::Future as _;
        std::task::Poll::Ready(second.as_mut().poll(context).is_pending())
    });
    assert!(is_pending.await, "it succeeds while another one hangs");
    resume.send(()).unwrap();
    assert_eq!(first.await.unwrap().unwrap().into_inner().ready, Some(true));
    assert_eq!(second.await.unwrap().into_inner().ready, Some(true));
}
