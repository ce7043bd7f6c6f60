//! Volumes that are made reachable node by node.

use cofferdam_backend::Backend as _;
use cofferdam_domain::{
    NodeId, VolumeHandle,
    storage::{
        Ability, ConnectionInfo, CreateVolume, CreatedVolume, CsiAccessMode, ErrorKind, Feature,
        PublishVolume, StorageError, VolumeCapability,
    },
};

use super::case;
use crate::{
    Case,
    Need::{Can, Has, Looks},
    bench::Bench,
    check::{Checked, done, done_or_refused, holds, refused, same, skipped},
};

pub(super) const CASES: &[Case] = &[
    case!(
        "publishing/is-idempotent",
        "What is published alike already is a success with the same answer.",
        "wit publishing.publish; CSI ControllerPublishVolume",
        [Can(Ability::Publishing)],
        is_idempotent
    ),
    case!(
        "publishing/other-node",
        "A volume for one node that is published to another is failed-precondition.",
        "wit publishing.publish; CSI ControllerPublishVolume",
        [Can(Ability::Publishing)],
        other_node
    ),
    case!(
        "publishing/other-way",
        "A volume that is published to the node in another way is already-exists.",
        "wit publishing.publish; CSI ControllerPublishVolume",
        [Can(Ability::Publishing)],
        other_way
    ),
    case!(
        "publishing/missing-volume",
        "Publishing a volume that does not exist is not-found.",
        "CSI ControllerPublishVolume",
        [Can(Ability::Publishing)],
        missing_volume
    ),
    case!(
        "publishing/unpublish-is-idempotent",
        "Unpublishing what is not published is a success.",
        "wit publishing.unpublish; CSI ControllerUnpublishVolume",
        [Can(Ability::Publishing)],
        unpublish_is_idempotent
    ),
    case!(
        "publishing/unpublish-all",
        "Unpublishing without a node frees a volume from every node.",
        "wit publishing.unpublish; CSI ControllerUnpublishVolume",
        [Can(Ability::Publishing)],
        unpublish_all
    ),
    case!(
        "publishing/unpublish-unknown",
        "Unpublishing a volume that does not exist is a success.",
        "wit publishing.unpublish; CSI ControllerUnpublishVolume",
        [Can(Ability::Publishing)],
        unpublish_unknown
    ),
    case!(
        "publishing/delete-while-published",
        "Deleting a published volume is failed-precondition or a success, and a success once it is unpublished.",
        "CSI DeleteVolume",
        [Can(Ability::Publishing)],
        delete_while_published
    ),
    case!(
        "publishing/attachment",
        "A driver with a publish step says how a node reaches a volume when it is published, and not before.",
        "wit types.volume, publishing.publish",
        [Can(Ability::Publishing)],
        attachment
    ),
    case!(
        "publishing/node-full",
        "A node takes as many volumes as the driver names, and one more is resource-exhausted.",
        "wit identity.description; CSI ControllerPublishVolume",
        [Can(Ability::Publishing)],
        node_full
    ),
    case!(
        "publishing/many-nodes",
        "A volume for many nodes can be published to two of them.",
        "wit publishing.publish, types.access-mode; CSI ControllerPublishVolume",
        [Can(Ability::Publishing)],
        many_nodes
    ),
    case!(
        "publishing/unpublish-one",
        "Unpublishing from one node leaves the other nodes alone.",
        "wit publishing.unpublish; CSI ControllerUnpublishVolume",
        [Can(Ability::Publishing), Has(Feature::PublishedNodes), Looks],
        unpublish_one
    ),
];

impl Bench {
    /// The request that publishes a volume to one of the nodes, for the use it was created for.
    pub(super) fn publish_request(&self, volume: &CreatedVolume, node: usize) -> PublishVolume {
        let [first, second] = &self.options.nodes;
        PublishVolume {
            handle: volume.handle.clone(),
            node_identities: std::collections::BTreeMap::new(),
            node_id: if node == 0 { first.clone() } else { second.clone() },
            capability: self.options.capability.clone(),
            read_only: false,
            context: volume.context.clone(),
        }
    }

    /// Publishes a volume.
    pub(super) async fn publish(&self, request: &PublishVolume) -> Result<ConnectionInfo, StorageError> {
        self.published(&request.handle);
        self.settled("publish", || self.backend.publish_volume(self.call(), request.clone())).await
    }

    /// Unpublishes a volume from a node, or from all.
    pub(super) async fn unpublish(
        &self,
        handle: &VolumeHandle,
        node: Option<&NodeId>,
    ) -> Result<(), StorageError> {
        let begin = || self.backend.unpublish_volume(self.call(), handle.clone(), node.cloned());
        self.settled("unpublish", begin).await
    }

    /// A volume that can be used in these modes; skips the case for a driver that has no such volumes.
    pub(super) async fn volume_for(
        &self,
        label: &str,
        modes: &[CsiAccessMode],
    ) -> Checked<(CreateVolume, CreatedVolume)> {
        let capability =
            |mode: &CsiAccessMode| VolumeCapability { access_mode: *mode, ..self.options.capability.clone() };
        let request =
            CreateVolume { capabilities: modes.iter().map(capability).collect(), ..self.request(label) };
        match self.create(&request).await {
            Ok(volume) => Ok((request, volume)),
            Err(error) => skipped(format!("the driver makes no volume for {modes:?}: {error}")),
        }
    }
}

/// A volume that is published to the first node.
async fn published(bench: &Bench, label: &str) -> Checked<(CreatedVolume, PublishVolume)> {
    let (_, volume) = bench.volume_for(label, &[CsiAccessMode::SingleNodeWriter]).await?;
    let mut request = bench.publish_request(&volume, 0);
    request.capability.access_mode = CsiAccessMode::SingleNodeWriter;
    done("publish", bench.publish(&request).await)?;
    Ok((volume, request))
}

async fn is_idempotent(bench: &Bench) -> Checked {
    let (_, request) = published(bench, "republished").await?;
    let first = done("the same publish again", bench.publish(&request).await)?;
    let twin = bench.twin();
    let again = || twin.publish_volume(bench.call(), request.clone());
    let second = done("the same publish at another process", bench.settled("publish", again).await)?;
    same("the same answer again", &first, &second)
}

async fn other_node(bench: &Bench) -> Checked {
    let (volume, request) = published(bench, "moved").await?;
    let other = PublishVolume { capability: request.capability, ..bench.publish_request(&volume, 1) };
    let answer = bench.publish(&other).await;
    refused("a single-node volume to a second node", &answer, &[ErrorKind::FailedPrecondition])?;
    done("unpublish", bench.unpublish(&volume.handle, Some(&request.node_id)).await)?;
    done("publish to the second node once the first is free", bench.publish(&other).await).map(drop)
}

async fn other_way(bench: &Bench) -> Checked {
    use CsiAccessMode::{SingleNodeReaderOnly, SingleNodeWriter};
    let (_, volume) = bench.volume_for("both-ways", &[SingleNodeWriter, SingleNodeReaderOnly]).await?;
    let mut request = bench.publish_request(&volume, 0);
    request.capability.access_mode = SingleNodeWriter;
    done("publish", bench.publish(&request).await)?;
    request.capability.access_mode = SingleNodeReaderOnly;
    refused("the node again for another use", &bench.publish(&request).await, &[ErrorKind::AlreadyExists])
}

async fn missing_volume(bench: &Bench) -> Checked {
    let request = bench.publish_request(&bench.ghost(), 0);
    let answer = bench.publish(&request).await;
    refused("publishing a volume that does not exist", &answer, &[ErrorKind::NotFound])
}

async fn unpublish_is_idempotent(bench: &Bench) -> Checked {
    let (volume, request) = published(bench, "unpublished").await?;
    for what in ["unpublish", "the same unpublish again"] {
        done(what, bench.unpublish(&volume.handle, Some(&request.node_id)).await)?;
    }
    let [_, never] = &bench.options.nodes;
    done("unpublish from a node that never had it", bench.unpublish(&volume.handle, Some(never)).await)
}

/// A single-node volume is freed by it as one of many nodes is, and it shows: the second node can have it.
async fn unpublish_all(bench: &Bench) -> Checked {
    let (volume, request) = published(bench, "everywhere").await?;
    done("unpublish from all nodes", bench.unpublish(&volume.handle, None).await)?;
    let other = PublishVolume { capability: request.capability, ..bench.publish_request(&volume, 1) };
    done("publish to another node after that", bench.publish(&other).await)?;
    done("unpublish from all nodes", bench.unpublish(&volume.handle, None).await)?;
    done("unpublish from all nodes again", bench.unpublish(&volume.handle, None).await)
}

async fn unpublish_unknown(bench: &Bench) -> Checked {
    let ghost = bench.ghost().handle;
    for node in [bench.options.nodes.first(), None] {
        done("unpublishing a volume that does not exist", bench.unpublish(&ghost, node).await)?;
    }
    Ok(())
}

async fn delete_while_published(bench: &Bench) -> Checked {
    let (volume, _) = published(bench, "in-use").await?;
    let answer = bench.delete(&volume.handle).await;
    done_or_refused("deleting a published volume", &answer, &[ErrorKind::FailedPrecondition])?;
    done("unpublish from all nodes", bench.unpublish(&volume.handle, None).await)?;
    done("delete once it is unpublished", bench.delete(&volume.handle).await)
}

/// A volume for many nodes that is published to both, with the requests that did it.
async fn on_both(bench: &Bench, label: &str) -> Checked<[PublishVolume; 2]> {
    use CsiAccessMode::{MultiNodeMultiWriter, MultiNodeReaderOnly};
    let (mode, volume) = match bench.volume_for(label, &[MultiNodeMultiWriter]).await {
        Ok((_, volume)) => (MultiNodeMultiWriter, volume),
        Err(_) => (MultiNodeReaderOnly, bench.volume_for(label, &[MultiNodeReaderOnly]).await?.1),
    };
    let requests = [0, 1].map(|node| {
        let mut request = bench.publish_request(&volume, node);
        request.capability.access_mode = mode;
        request
    });
    for request in &requests {
        done(&format!("publish to {}", request.node_id), bench.publish(request).await)?;
    }
    Ok(requests)
}

async fn many_nodes(bench: &Bench) -> Checked {
    on_both(bench, "shared").await.map(drop)
}

async fn unpublish_one(bench: &Bench) -> Checked {
    let [first, second] = on_both(bench, "half-shared").await?;
    done("unpublish from one node", bench.unpublish(&first.handle, Some(&first.node_id)).await)?;
    let nodes = bench.look(&first.handle).await?.published_node_ids;
    same("the nodes that it is published to", &vec![second.node_id], &nodes)
}

async fn attachment(bench: &Bench) -> Checked {
    let (_, volume) = bench.volume("unattached").await?;
    let found = volume.connection_info;
    holds(found.is_none(), || "no attachment before it is published".to_owned(), || format!("{found:?}"))
}

/// Most volumes that are made to fill a node.
const FILL: u32 = 16;

async fn node_full(bench: &Bench) -> Checked {
    let most = match bench.backend.description().volumes_per_node {
        None => return skipped("the driver names no number of volumes that fit a node"),
        Some(most) if most > FILL => return skipped(format!("{most} volumes fit a node: too many to try")),
        Some(most) => most,
    };
    for number in 1..=most {
        let (_, volume) = bench.volume("filling").await?;
        let request = bench.publish_request(&volume, 0);
        done(&format!("publish volume {number} of {most} to a node"), bench.publish(&request).await)?;
    }
    let (_, volume) = bench.volume("filling").await?;
    let answer = bench.publish(&bench.publish_request(&volume, 0)).await;
    refused("one volume more than fit a node", &answer, &[ErrorKind::ResourceExhausted])
}
