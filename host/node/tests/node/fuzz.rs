//! Requests that no kubelet sends: good ones, with bytes changed at random.

use cofferdam_csi::v1::{
    NodeExpandVolumeRequest, NodeGetVolumeStatsRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
    node_server::Node as _,
};
use cofferdam_node::{Machine as _, NodeService};
use prost::Message;
use tonic::{Code, Request, Status};

use crate::{
    model::Model,
    requests::{inline, publish, service, stage},
    support::{staging, target},
};

const SEEDS: u64 = 40;
const CALLS: usize = 400;

/// A message with up to four bytes changed, put in or taken out; absent where that is no message any more.
fn mutated<M: Message + Default>(message: &M, random: &mut fastrand::Rng) -> Option<M> {
    let mut bytes = message.encode_to_vec();
    for _ in 0..random.usize(0..=4) {
        let at = random.usize(0..bytes.len());
        match random.u8(0..4) {
            0 => bytes[at] = random.u8(..),
            1 => bytes[at] ^= 1 << random.u8(0..8),
            2 => bytes.insert(at, random.u8(..)),
            _ if bytes.len() > 1 => drop(bytes.remove(at)),
            _ => {}
        }
    }
    M::decode(bytes.as_slice()).ok()
}

/// One call, or nothing where the bytes are no message.
async fn call(service: &NodeService<Model>, random: &mut fastrand::Rng) -> Option<Result<(), Status>> {
    macro_rules! send {
        ($message:expr, $method:ident) => {{
            let request = Request::new(mutated(&$message, random)?);
            Some(service.$method(request).await.map(drop))
        }};
    }
    let (volume_id, volume_path) = ("v".to_owned(), target("p"));
    match random.u8(0..7) {
        0 => send!(stage(), node_stage_volume),
        1 => send!(publish(), node_publish_volume),
        2 => send!(inline(), node_publish_volume),
        3 => send!(NodeUnpublishVolumeRequest { volume_id, target_path: volume_path }, node_unpublish_volume),
        4 => send!(
            NodeUnstageVolumeRequest { volume_id, staging_target_path: staging("v") },
            node_unstage_volume
        ),
        5 => send!(
            NodeGetVolumeStatsRequest { volume_id, volume_path, ..Default::default() },
            node_get_volume_stats
        ),
        _ => send!(
            NodeExpandVolumeRequest { volume_id, volume_path, ..Default::default() },
            node_expand_volume
        ),
    }
}

#[tokio::test]
async fn bytes_at_random() {
    let (mut done, mut refused) = (0, 0);
    for seed in 0..SEEDS {
        let (mut random, service) = (fastrand::Rng::with_seed(seed), service(""));
        for number in 0..CALLS {
            match call(&service, &mut random).await {
                None => {}
                Some(Ok(())) => done += 1,
                Some(Err(status)) => {
                    use Code::{
                        AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, OutOfRange,
                        PermissionDenied,
                    };
                    let allowed = [
                        InvalidArgument,
                        NotFound,
                        AlreadyExists,
                        FailedPrecondition,
                        PermissionDenied,
                        OutOfRange,
                    ];
                    assert!(allowed.contains(&status.code()), "seed {seed}, call {number}: {status:?}");
                    assert!(!status.message().is_empty(), "seed {seed}, call {number}");
                    refused += 1;
                }
            }
        }
        // Whatever it was, it can be undone.
        let node = service.node();
        for record in node.machine().records().unwrap().complete().unwrap() {
            for target in record.targets.keys() {
                node.unpublish(&record.volume, target).unwrap();
            }
            if let Some(staging) = &record.staging {
                node.unstage(&record.volume, staging).unwrap();
            }
        }
        assert_eq!(node.machine().left_behind(), "", "seed {seed}");
    }
    assert!(done > 1_000 && refused > 1_000, "{done} done, {refused} refused");
}

/// The messages that are changed are those that the table begins with.
#[tokio::test]
async fn unchanged_they_are_answered() {
    let service = service("");
    service.node_stage_volume(Request::new(stage())).await.unwrap();
    service.node_publish_volume(Request::new(publish())).await.unwrap();
    service.node_publish_volume(Request::new(inline())).await.unwrap();
}
