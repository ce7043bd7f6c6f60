//! Publishing to nodes.

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
    CaseRequirement::{Exports, HasFeature, ListingOrInspection},
    ConformanceCase, TestNode,
    check::{
        CaseResult, expect_equal, expect_final_error, expect_success, expect_success_or_final_error,
        expect_that, skip,
    },
    context::SuiteContext,
};

pub(super) const CASES: &[ConformanceCase] = &[
    case!(
        "publishing/is-idempotent",
        "A repeated publish succeeds with the same response.",
        "wit publishing.publish; CSI ControllerPublishVolume",
        [Exports(Ability::Publishing)],
        is_idempotent
    ),
    case!(
        "publishing/other-node",
        "Publishing a single-node volume to a second node fails with failed-precondition.",
        "wit publishing.publish; CSI ControllerPublishVolume",
        [Exports(Ability::Publishing)],
        other_node
    ),
    case!(
        "publishing/different-publish",
        "Publishing a volume to the same node with a different capability fails with already-exists.",
        "wit publishing.publish; CSI ControllerPublishVolume",
        [Exports(Ability::Publishing)],
        different_publish
    ),
    case!(
        "publishing/missing-volume",
        "Publishing a missing volume fails with not-found.",
        "CSI ControllerPublishVolume",
        [Exports(Ability::Publishing)],
        missing_volume
    ),
    case!(
        "publishing/unpublish-is-idempotent",
        "Unpublishing a volume that is not published succeeds.",
        "wit publishing.unpublish; CSI ControllerUnpublishVolume",
        [Exports(Ability::Publishing)],
        unpublish_is_idempotent
    ),
    case!(
        "publishing/unpublish-all",
        "Unpublishing without a node unpublishes the volume from every node.",
        "wit publishing.unpublish; CSI ControllerUnpublishVolume",
        [Exports(Ability::Publishing)],
        unpublish_all
    ),
    case!(
        "publishing/unpublish-unknown",
        "Unpublishing a missing volume succeeds.",
        "wit publishing.unpublish; CSI ControllerUnpublishVolume",
        [Exports(Ability::Publishing)],
        unpublish_unknown
    ),
    case!(
        "publishing/delete-while-published",
        "Deleting a published volume succeeds or fails with failed-precondition; it succeeds once \
         unpublished.",
        "CSI DeleteVolume",
        [Exports(Ability::Publishing)],
        delete_while_published
    ),
    case!(
        "publishing/connection-info",
        "A driver that exports `publishing` returns the connection info from publish, and not from create.",
        "wit types.volume, publishing.publish",
        [Exports(Ability::Publishing)],
        no_connection_info_before_publish
    ),
    case!(
        "publishing/node-full",
        "A node accepts the described number of volumes; one more fails with resource-exhausted.",
        "wit identity.description; CSI ControllerPublishVolume",
        [Exports(Ability::Publishing)],
        node_full
    ),
    case!(
        "publishing/many-nodes",
        "A multi-node volume can be published to two nodes.",
        "wit publishing.publish, types.access-mode; CSI ControllerPublishVolume",
        [Exports(Ability::Publishing)],
        many_nodes
    ),
    case!(
        "publishing/unpublish-one",
        "Unpublishing from one node does not affect other nodes.",
        "wit publishing.unpublish; CSI ControllerUnpublishVolume",
        [Exports(Ability::Publishing), HasFeature(Feature::PublishedNodes), ListingOrInspection],
        unpublish_one
    ),
];

impl SuiteContext {
    /// A request to publish a volume to the run's first node (0) or second node, with the run's capability.
    pub(super) fn publish_request(&self, volume: &CreatedVolume, node: usize) -> PublishVolume {
        let [first, second] = &self.options.nodes;
        let TestNode { id, identities } = if node == 0 { first } else { second };
        PublishVolume {
            handle: volume.handle.clone(),
            node_identities: identities.clone(),
            node_id: id.clone(),
            capability: self.options.capability.clone(),
            read_only: false,
            context: volume.context.clone(),
        }
    }

    /// Publishes a volume. Records it for the cleanup, which unpublishes it from all nodes.
    pub(super) async fn publish(&self, request: &PublishVolume) -> Result<ConnectionInfo, StorageError> {
        self.record_published(&request.handle);
        self.retry_until_final("publish", || self.backend.publish_volume(self.call(), request.clone())).await
    }

    /// Unpublishes a volume from a node, or from all nodes if `node` is `None`.
    pub(super) async fn unpublish(
        &self,
        handle: &VolumeHandle,
        node: Option<&NodeId>,
    ) -> Result<(), StorageError> {
        let call = || self.backend.unpublish_volume(self.call(), handle.clone(), node.cloned());
        self.retry_until_final("unpublish", call).await
    }

    /// Creates a volume with a capability for each of these access modes. Skips the case if the create fails.
    pub(super) async fn volume_for(
        &self,
        label: &str,
        modes: &[CsiAccessMode],
    ) -> CaseResult<(CreateVolume, CreatedVolume)> {
        let capability =
            |mode: &CsiAccessMode| VolumeCapability { access_mode: *mode, ..self.options.capability.clone() };
        let request = CreateVolume {
            capabilities: modes.iter().map(capability).collect(),
            ..self.volume_request(label)
        };
        match self.create(&request).await {
            Ok(volume) => Ok((request, volume)),
            Err(error) => skip(format!("the driver makes no volume for {modes:?}: {error}")),
        }
    }
}

/// Creates a SINGLE_NODE_WRITER volume and publishes it to the first node.
async fn published_volume(context: &SuiteContext, label: &str) -> CaseResult<(CreatedVolume, PublishVolume)> {
    let (_, volume) = context.volume_for(label, &[CsiAccessMode::SingleNodeWriter]).await?;
    let mut request = context.publish_request(&volume, 0);
    request.capability.access_mode = CsiAccessMode::SingleNodeWriter;
    expect_success("publish", context.publish(&request).await)?;
    Ok((volume, request))
}

async fn is_idempotent(context: &SuiteContext) -> CaseResult {
    let (_, request) = published_volume(context, "republished").await?;
    let first = expect_success("the same publish again", context.publish(&request).await)?;
    let second_process = context.second_process();
    let again = || second_process.publish_volume(context.call(), request.clone());
    let second_answer = expect_success(
        "the same publish at another process",
        context.retry_until_final("publish", again).await,
    )?;
    expect_equal("the same answer again", &first, &second_answer)
}

async fn other_node(context: &SuiteContext) -> CaseResult {
    let (volume, request) = published_volume(context, "moved").await?;
    let other = PublishVolume { capability: request.capability, ..context.publish_request(&volume, 1) };
    let answer = context.publish(&other).await;
    expect_final_error("a single-node volume to a second node", &answer, &[ErrorKind::FailedPrecondition])?;
    expect_success("unpublish", context.unpublish(&volume.handle, Some(&request.node_id)).await)?;
    expect_success("publish to the second node once the first is free", context.publish(&other).await)
        .map(drop)
}

async fn different_publish(context: &SuiteContext) -> CaseResult {
    use CsiAccessMode::{SingleNodeReaderOnly, SingleNodeWriter};
    let (_, volume) = context.volume_for("both-ways", &[SingleNodeWriter, SingleNodeReaderOnly]).await?;
    let mut request = context.publish_request(&volume, 0);
    request.capability.access_mode = SingleNodeWriter;
    expect_success("publish", context.publish(&request).await)?;
    request.capability.access_mode = SingleNodeReaderOnly;
    expect_final_error(
        "the node again for another use",
        &context.publish(&request).await,
        &[ErrorKind::AlreadyExists],
    )
}

async fn missing_volume(context: &SuiteContext) -> CaseResult {
    let request = context.publish_request(&context.nonexistent_volume(), 0);
    let answer = context.publish(&request).await;
    expect_final_error("publishing a volume that does not exist", &answer, &[ErrorKind::NotFound])
}

async fn unpublish_is_idempotent(context: &SuiteContext) -> CaseResult {
    let (volume, request) = published_volume(context, "unpublished").await?;
    for what in ["unpublish", "the same unpublish again"] {
        expect_success(what, context.unpublish(&volume.handle, Some(&request.node_id)).await)?;
    }
    let [_, unpublished_node] = &context.options.nodes;
    expect_success(
        "unpublish from a node that never had it",
        context.unpublish(&volume.handle, Some(&unpublished_node.id)).await,
    )
}

/// Unpublishes a single-node volume from all nodes. It can then be published to the second node.
async fn unpublish_all(context: &SuiteContext) -> CaseResult {
    let (volume, request) = published_volume(context, "everywhere").await?;
    expect_success("unpublish from all nodes", context.unpublish(&volume.handle, None).await)?;
    let other = PublishVolume { capability: request.capability, ..context.publish_request(&volume, 1) };
    expect_success("publish to another node after that", context.publish(&other).await)?;
    expect_success("unpublish from all nodes", context.unpublish(&volume.handle, None).await)?;
    expect_success("unpublish from all nodes again", context.unpublish(&volume.handle, None).await)
}

async fn unpublish_unknown(context: &SuiteContext) -> CaseResult {
    let ghost = context.nonexistent_volume().handle;
    for node in [context.options.nodes.first().map(|node| &node.id), None] {
        expect_success("unpublishing a volume that does not exist", context.unpublish(&ghost, node).await)?;
    }
    Ok(())
}

async fn delete_while_published(context: &SuiteContext) -> CaseResult {
    let (volume, _) = published_volume(context, "in-use").await?;
    let answer = context.delete(&volume.handle).await;
    expect_success_or_final_error("deleting a published volume", &answer, &[ErrorKind::FailedPrecondition])?;
    expect_success("unpublish from all nodes", context.unpublish(&volume.handle, None).await)?;
    expect_success("delete once it is unpublished", context.delete(&volume.handle).await)
}

/// Creates a MULTI_NODE_MULTI_WRITER volume, or a MULTI_NODE_READER_ONLY one if that create fails, and
/// publishes it to both nodes of the run. Returns the two requests.
async fn published_to_both(context: &SuiteContext, label: &str) -> CaseResult<[PublishVolume; 2]> {
    use CsiAccessMode::{MultiNodeMultiWriter, MultiNodeReaderOnly};
    let (mode, volume) = match context.volume_for(label, &[MultiNodeMultiWriter]).await {
        Ok((_, volume)) => (MultiNodeMultiWriter, volume),
        Err(_) => (MultiNodeReaderOnly, context.volume_for(label, &[MultiNodeReaderOnly]).await?.1),
    };
    let requests = [0, 1].map(|node| {
        let mut request = context.publish_request(&volume, node);
        request.capability.access_mode = mode;
        request
    });
    for request in &requests {
        expect_success(&format!("publish to {}", request.node_id), context.publish(request).await)?;
    }
    Ok(requests)
}

async fn many_nodes(context: &SuiteContext) -> CaseResult {
    published_to_both(context, "shared").await.map(drop)
}

async fn unpublish_one(context: &SuiteContext) -> CaseResult {
    let [first, second] = published_to_both(context, "half-shared").await?;
    expect_success("unpublish from one node", context.unpublish(&first.handle, Some(&first.node_id)).await)?;
    let nodes = context.volume_status(&first.handle).await?.published_node_ids;
    expect_equal("the nodes that it is published to", &vec![second.node_id], &nodes)
}

async fn no_connection_info_before_publish(context: &SuiteContext) -> CaseResult {
    let (_, volume) = context.new_volume("unattached").await?;
    let found = volume.connection_info;
    expect_that(
        found.is_none(),
        || "no connection info before it is published".to_owned(),
        || format!("{found:?}"),
    )
}

/// Largest limit of volumes per node with which the case `publishing/node-full` fills a node. With a larger
/// limit the case is skipped.
const MAX_VOLUMES_TO_FILL: u32 = 16;

async fn node_full(context: &SuiteContext) -> CaseResult {
    let limit = match context.backend.description().volumes_per_node {
        None => return skip("the driver does not limit the volumes of a node"),
        Some(limit) if limit > MAX_VOLUMES_TO_FILL => {
            return skip(format!("{limit} volumes fit a node: too many to try"));
        }
        Some(limit) => limit,
    };
    for number in 1..=limit {
        let (_, volume) = context.new_volume("filling").await?;
        let request = context.publish_request(&volume, 0);
        expect_success(
            &format!("publish volume {number} of {limit} to a node"),
            context.publish(&request).await,
        )?;
    }
    let (_, volume) = context.new_volume("filling").await?;
    let answer = context.publish(&context.publish_request(&volume, 0)).await;
    expect_final_error("one volume more than fit a node", &answer, &[ErrorKind::ResourceExhausted])
}
