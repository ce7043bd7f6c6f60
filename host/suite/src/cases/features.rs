//! One case for each feature: a driver that names what it does not do fails here.

use cofferdam_domain::{
    NodeId,
    storage::{
        Ability, AccessType, CreateVolume, CsiAccessMode, ErrorKind, Feature, PublishVolume, Validation,
        VolumeCapability,
    },
};

use super::case;
use crate::{
    Case,
    Need::{Can, Has, Lacks, Looks},
    bench::Bench,
    check::{Checked, done, holds, refused, same},
};

pub(super) const CASES: &[Case] = &[
    case!(
        "features/publish-readonly",
        "Published for reading only is another way than for writing.",
        "wit identity.description; CSI PUBLISH_READONLY",
        [Can(Ability::Publishing), Has(Feature::PublishReadonly)],
        publish_readonly
    ),
    case!(
        "features/published-nodes",
        "Listing and inspection tell the nodes that a volume is published to, and only those.",
        "wit types.volume-status; CSI LIST_VOLUMES_PUBLISHED_NODES",
        [Can(Ability::Publishing), Has(Feature::PublishedNodes), Looks],
        published_nodes
    ),
    case!(
        "features/volume-condition",
        "Listing and inspection tell a volume's condition; a new volume is healthy.",
        "wit types.condition; CSI VOLUME_CONDITION",
        [Has(Feature::VolumeCondition), Looks],
        volume_condition
    ),
    case!(
        "features/online-expansion",
        "A published volume grows.",
        "wit expansion.expand; CSI VolumeExpansion ONLINE",
        [Can(Ability::Expansion), Can(Ability::Publishing), Has(Feature::OnlineExpansion)],
        online_expansion
    ),
    case!(
        "features/single-node-multi-writer",
        "The modes that tell one writer on a node from many are understood.",
        "wit types.access-mode; CSI SINGLE_NODE_MULTI_WRITER",
        [Has(Feature::SingleNodeMultiWriter)],
        single_node_multi_writer
    ),
    case!(
        "features/volume-mount-group",
        "A volume can be asked for with a group for its mounts.",
        "wit types.filesystem-access; CSI VOLUME_MOUNT_GROUP",
        [Has(Feature::VolumeMountGroup)],
        volume_mount_group
    ),
    case!(
        "features/published-nodes-unannounced",
        "A driver that does not name published-nodes tells none: half of an answer would be taken for all.",
        "wit identity.description, types.volume-status; CSI LIST_VOLUMES_PUBLISHED_NODES",
        [Can(Ability::Publishing), Lacks(Feature::PublishedNodes), Looks],
        published_nodes_unannounced
    ),
    case!(
        "features/volume-condition-unannounced",
        "A driver that does not name volume-condition tells none.",
        "wit identity.description, types.volume-status; CSI VOLUME_CONDITION",
        [Lacks(Feature::VolumeCondition), Looks],
        volume_condition_unannounced
    ),
];

async fn published_nodes_unannounced(bench: &Bench) -> Checked {
    let (_, volume) = bench.volume("tracked").await?;
    let request = bench.publish_request(&volume, 0);
    done("publish", bench.publish(&request).await)?;
    for (place, status) in bench.looks(&volume.handle).await? {
        let nodes = status.published_node_ids;
        let expected = || format!("no nodes in {place}, without the feature `published-nodes`");
        holds(nodes.is_empty(), expected, || format!("{nodes:?}"))?;
    }
    Ok(())
}

async fn volume_condition_unannounced(bench: &Bench) -> Checked {
    let (_, volume) = bench.volume("unknown-health").await?;
    for (place, status) in bench.looks(&volume.handle).await? {
        let condition = status.condition;
        let expected = || format!("no condition in {place}, without the feature `volume-condition`");
        holds(condition.is_none(), expected, || format!("{condition:?}"))?;
    }
    Ok(())
}

async fn publish_readonly(bench: &Bench) -> Checked {
    let (_, volume) = bench.volume("read-only").await?;
    let request = PublishVolume { read_only: true, ..bench.publish_request(&volume, 0) };
    let first = done("publish for reading only", bench.publish(&request).await)?;
    let again = done("the same publish again", bench.publish(&request).await)?;
    same("the same answer again", &first, &again)?;
    let writable = PublishVolume { read_only: false, ..request };
    let answer = bench.publish(&writable).await;
    refused("the node again, for writing", &answer, &[ErrorKind::AlreadyExists])
}

async fn published_nodes(bench: &Bench) -> Checked {
    let (_, volume) = bench.volume("tracked").await?;
    let request = bench.publish_request(&volume, 0);
    done("publish", bench.publish(&request).await)?;
    shown(bench, &request, std::slice::from_ref(&request.node_id)).await?;
    done("unpublish", bench.unpublish(&volume.handle, Some(&request.node_id)).await)?;
    shown(bench, &request, &[]).await
}

/// Compares the nodes that the driver tells with those that it must.
async fn shown(bench: &Bench, request: &PublishVolume, nodes: &[NodeId]) -> Checked {
    for (place, status) in bench.looks(&request.handle).await? {
        let what = format!("the nodes that it is published to, in {place}");
        same(&what, &nodes.to_vec(), &status.published_node_ids)?;
    }
    Ok(())
}

async fn volume_condition(bench: &Bench) -> Checked {
    let (_, volume) = bench.volume("healthy").await?;
    for (place, status) in bench.looks(&volume.handle).await? {
        let condition = status.condition;
        let healthy = condition.as_ref().is_some_and(|condition| !condition.abnormal);
        holds(healthy, || format!("a healthy condition in {place}"), || format!("{condition:?}"))?;
    }
    Ok(())
}

async fn online_expansion(bench: &Bench) -> Checked {
    let (_, volume) = bench.volume("in-use").await?;
    done("publish", bench.publish(&bench.publish_request(&volume, 0)).await)?;
    let required = volume.capacity.unwrap_or(bench.options.size).saturating_mul(2);
    let grown = done("expanding a published volume", bench.expand(&volume.handle, required).await)?;
    let expected = || format!("at least {required} bytes");
    holds(grown.capacity >= required, expected, || format!("{} bytes", grown.capacity))
}

/// Creates a volume for a use and asks whether it can be used so.
async fn usable(bench: &Bench, capability: VolumeCapability) -> Checked {
    let request = CreateVolume { capabilities: vec![capability], ..bench.request("for-a-use") };
    let what = format!("a volume for {:?}", request.capabilities);
    let volume = done(&what, bench.create(&request).await)?;
    let answer = done("validate", bench.validate(&volume, &request.capabilities).await)?;
    same("the validation", &Validation::Confirmed, &answer)
}

async fn single_node_multi_writer(bench: &Bench) -> Checked {
    for mode in [CsiAccessMode::SingleNodeSingleWriter, CsiAccessMode::SingleNodeMultiWriter] {
        usable(bench, VolumeCapability { access_mode: mode, ..bench.options.capability.clone() }).await?;
    }
    Ok(())
}

async fn volume_mount_group(bench: &Bench) -> Checked {
    let access = AccessType::Filesystem {
        fs_type: None,
        mount_flags: Vec::new(),
        mount_group: Some("1000".to_owned()),
    };
    usable(bench, VolumeCapability { access_type: access, ..bench.options.capability.clone() }).await
}
