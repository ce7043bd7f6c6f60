//! Features: a driver supports each feature that it declares. Without `published-nodes` it reports no nodes
//! of a volume, and without `volume-condition` no condition.

use cofferdam_domain::{
    NodeId,
    storage::{
        Ability, AccessType, CreateVolume, CsiAccessMode, ErrorKind, Feature, PublishVolume, Validation,
        VolumeCapability,
    },
};

use super::case;
use crate::{
    CaseRequirement::{Exports, HasFeature, LacksFeature, ListingOrInspection},
    ConformanceCase,
    check::{CaseResult, expect_equal, expect_final_error, expect_success, expect_that},
    context::SuiteContext,
};

pub(super) const CASES: &[ConformanceCase] = &[
    case!(
        "features/publish-readonly",
        "A read-only publish differs from a read-write one.",
        "wit identity.description; CSI PUBLISH_READONLY",
        [Exports(Ability::Publishing), HasFeature(Feature::PublishReadonly)],
        publish_readonly
    ),
    case!(
        "features/published-nodes",
        "Listing and inspection report exactly the nodes that a volume is published to.",
        "wit types.volume-status; CSI LIST_VOLUMES_PUBLISHED_NODES",
        [Exports(Ability::Publishing), HasFeature(Feature::PublishedNodes), ListingOrInspection],
        published_nodes
    ),
    case!(
        "features/volume-condition",
        "Listing and inspection report the volume's condition; a new volume is healthy.",
        "wit types.condition; CSI VOLUME_CONDITION",
        [HasFeature(Feature::VolumeCondition), ListingOrInspection],
        volume_condition
    ),
    case!(
        "features/online-expansion",
        "A published volume can be expanded.",
        "wit expansion.expand; CSI VolumeExpansion ONLINE",
        [Exports(Ability::Expansion), Exports(Ability::Publishing), HasFeature(Feature::OnlineExpansion)],
        online_expansion
    ),
    case!(
        "features/single-node-multi-writer",
        "The access modes single-node-single-writer and single-node-multi-writer are supported.",
        "wit types.access-mode; CSI SINGLE_NODE_MULTI_WRITER",
        [HasFeature(Feature::SingleNodeMultiWriter)],
        single_node_multi_writer
    ),
    case!(
        "features/volume-mount-group",
        "A volume can be created with a volume mount group.",
        "wit types.filesystem-access; CSI VOLUME_MOUNT_GROUP",
        [HasFeature(Feature::VolumeMountGroup)],
        volume_mount_group
    ),
    case!(
        "features/published-nodes-unannounced",
        "A driver without the feature published-nodes reports no nodes: an incomplete list would be taken as \
         complete.",
        "wit identity.description, types.volume-status; CSI LIST_VOLUMES_PUBLISHED_NODES",
        [Exports(Ability::Publishing), LacksFeature(Feature::PublishedNodes), ListingOrInspection],
        published_nodes_unannounced
    ),
    case!(
        "features/volume-condition-unannounced",
        "A driver without the feature volume-condition reports no condition.",
        "wit identity.description, types.volume-status; CSI VOLUME_CONDITION",
        [LacksFeature(Feature::VolumeCondition), ListingOrInspection],
        volume_condition_unannounced
    ),
];

async fn published_nodes_unannounced(context: &SuiteContext) -> CaseResult {
    let (_, volume) = context.new_volume("tracked").await?;
    let request = context.publish_request(&volume, 0);
    expect_success("publish", context.publish(&request).await)?;
    for (source, status) in context.volume_statuses(&volume.handle).await? {
        let nodes = status.published_node_ids;
        let expected = || format!("no nodes in {source}, without the feature `published-nodes`");
        expect_that(nodes.is_empty(), expected, || format!("{nodes:?}"))?;
    }
    Ok(())
}

async fn volume_condition_unannounced(context: &SuiteContext) -> CaseResult {
    let (_, volume) = context.new_volume("unknown-health").await?;
    for (source, status) in context.volume_statuses(&volume.handle).await? {
        let condition = status.condition;
        let expected = || format!("no condition in {source}, without the feature `volume-condition`");
        expect_that(condition.is_none(), expected, || format!("{condition:?}"))?;
    }
    Ok(())
}

async fn publish_readonly(context: &SuiteContext) -> CaseResult {
    let (_, volume) = context.new_volume("read-only").await?;
    let request = PublishVolume { read_only: true, ..context.publish_request(&volume, 0) };
    let first = expect_success("publish for reading only", context.publish(&request).await)?;
    let again = expect_success("the same publish again", context.publish(&request).await)?;
    expect_equal("the same answer again", &first, &again)?;
    let writable = PublishVolume { read_only: false, ..request };
    let answer = context.publish(&writable).await;
    expect_final_error("the node again, for writing", &answer, &[ErrorKind::AlreadyExists])
}

async fn published_nodes(context: &SuiteContext) -> CaseResult {
    let (_, volume) = context.new_volume("tracked").await?;
    let request = context.publish_request(&volume, 0);
    expect_success("publish", context.publish(&request).await)?;
    check_published_nodes(context, &request, std::slice::from_ref(&request.node_id)).await?;
    expect_success("unpublish", context.unpublish(&volume.handle, Some(&request.node_id)).await)?;
    check_published_nodes(context, &request, &[]).await
}

/// Compares the nodes to which the volume is published, as the driver reports them, with the expected ones.
async fn check_published_nodes(
    context: &SuiteContext,
    request: &PublishVolume,
    nodes: &[NodeId],
) -> CaseResult {
    for (source, status) in context.volume_statuses(&request.handle).await? {
        let what = format!("the nodes that it is published to, in {source}");
        expect_equal(&what, &nodes.to_vec(), &status.published_node_ids)?;
    }
    Ok(())
}

async fn volume_condition(context: &SuiteContext) -> CaseResult {
    let (_, volume) = context.new_volume("healthy").await?;
    for (source, status) in context.volume_statuses(&volume.handle).await? {
        let condition = status.condition;
        let healthy = condition.as_ref().is_some_and(|condition| !condition.abnormal);
        expect_that(healthy, || format!("a healthy condition in {source}"), || format!("{condition:?}"))?;
    }
    Ok(())
}

async fn online_expansion(context: &SuiteContext) -> CaseResult {
    let (_, volume) = context.new_volume("in-use").await?;
    expect_success("publish", context.publish(&context.publish_request(&volume, 0)).await)?;
    let required = volume.capacity.unwrap_or(context.options.size).saturating_mul(2);
    let expanded =
        expect_success("expanding a published volume", context.expand(&volume.handle, required).await)?;
    let expected = || format!("at least {required} bytes");
    expect_that(expanded.capacity >= required, expected, || format!("{} bytes", expanded.capacity))
}

/// Creates a volume with a capability, and expects that the driver confirms the capability for it.
async fn check_usable(context: &SuiteContext, capability: VolumeCapability) -> CaseResult {
    let request = CreateVolume { capabilities: vec![capability], ..context.volume_request("for-a-use") };
    let what = format!("a volume for {:?}", request.capabilities);
    let volume = expect_success(&what, context.create(&request).await)?;
    let answer = expect_success("validate", context.validate(&volume, &request.capabilities).await)?;
    expect_equal("the validation", &Validation::Confirmed, &answer)
}

async fn single_node_multi_writer(context: &SuiteContext) -> CaseResult {
    for mode in [CsiAccessMode::SingleNodeSingleWriter, CsiAccessMode::SingleNodeMultiWriter] {
        check_usable(context, VolumeCapability { access_mode: mode, ..context.options.capability.clone() })
            .await?;
    }
    Ok(())
}

async fn volume_mount_group(context: &SuiteContext) -> CaseResult {
    let access = AccessType::Filesystem {
        fs_type: None,
        mount_flags: Vec::new(),
        mount_group: Some("1000".to_owned()),
    };
    check_usable(context, VolumeCapability { access_type: access, ..context.options.capability.clone() })
        .await
}
