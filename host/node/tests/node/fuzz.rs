//! Fuzz test: valid requests with random changes. Each response has a code of the allowed list, and
//! everything that the successful calls left can be undone.

use cofferdam_csi::v1::{
    NodeExpandVolumeRequest, NodeGetVolumeStatsRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
    node_server::Node as _,
};
use cofferdam_node::{Mounter as _, NodeService};
use prost::Message;
use tonic::{Code, Request, Status};

use crate::{
    fault_injection::FaultyMounter,
    requests::{inline_message, publish_message, service, stage_message},
    support::{staging_path, target_path},
};

const SEEDS: u64 = 40;
const CALLS: usize = 400;

/// Changes, inserts or removes up to 4 bytes of a message. None if the result cannot be decoded.
fn mutated<M: Message + Default>(message: &M, rng: &mut fastrand::Rng) -> Option<M> {
    let mut bytes = message.encode_to_vec();
    for _ in 0..rng.usize(0..=4) {
        let at = rng.usize(0..bytes.len());
        match rng.u8(0..4) {
            0 => bytes[at] = rng.u8(..),
            1 => bytes[at] ^= 1 << rng.u8(0..8),
            2 => bytes.insert(at, rng.u8(..)),
            _ if bytes.len() > 1 => drop(bytes.remove(at)),
            _ => {}
        }
    }
    M::decode(bytes.as_slice()).ok()
}

/// Sends one mutated call. None if the mutated message cannot be decoded.
async fn call(service: &NodeService<FaultyMounter>, rng: &mut fastrand::Rng) -> Option<Result<(), Status>> {
    macro_rules! send {
        ($message:expr, $method:ident) => {{
            let request = Request::new(mutated(&$message, rng)?);
            Some(service.$method(request).await.map(drop))
        }};
    }
    let (volume_id, volume_path) = ("v".to_owned(), target_path("p"));
    match rng.u8(0..7) {
        0 => send!(stage_message(), node_stage_volume),
        1 => send!(publish_message(), node_publish_volume),
        2 => send!(inline_message(), node_publish_volume),
        3 => send!(NodeUnpublishVolumeRequest { volume_id, target_path: volume_path }, node_unpublish_volume),
        4 => send!(
            NodeUnstageVolumeRequest { volume_id, staging_target_path: staging_path("v") },
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
async fn random_request_bytes_yield_valid_codes_and_can_be_undone() {
    let (mut done, mut rejected) = (0, 0);
    for seed in 0..SEEDS {
        let (mut rng, service) = (fastrand::Rng::with_seed(seed), service(""));
        for number in 0..CALLS {
            match call(&service, &mut rng).await {
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
                    rejected += 1;
                }
            }
        }
        // Everything can be undone.
        let node = service.node();
        for record in node.mounter().records().unwrap().all_or_error().unwrap() {
            for target in record.targets.keys() {
                node.unpublish(&record.volume, target).unwrap();
            }
            if let Some(staging) = &record.staging_path {
                node.unstage(&record.volume, staging).unwrap();
            }
        }
        assert_eq!(node.mounter().leftovers(), "", "seed {seed}");
    }
    assert!(done > 1_000 && rejected > 1_000, "{done} done, {rejected} rejected");
}

/// The unmodified messages are valid.
#[tokio::test]
async fn unmutated_requests_succeed() {
    let service = service("");
    service.node_stage_volume(Request::new(stage_message())).await.unwrap();
    service.node_publish_volume(Request::new(publish_message())).await.unwrap();
    service.node_publish_volume(Request::new(inline_message())).await.unwrap();
}
