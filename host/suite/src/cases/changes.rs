//! Volumes that grow, and volumes whose parameters change.

use cofferdam_backend::Backend as _;
use cofferdam_domain::{
    VolumeHandle,
    storage::{
        Ability, CapacityRange, CreateVolume, ErrorKind, ExpandVolume, ExpandedVolume, Feature, Parameters,
        StorageError,
    },
};

use super::{case, volumes::BAD_SIZE};
use crate::{
    Case,
    Need::{Can, Lacks, Looks, MutableParameters},
    bench::{Bench, Origin},
    check::{Checked, done, holds, refused, same, skipped},
};

pub(super) const CASES: &[Case] = &[
    case!(
        "expansion/grows",
        "An expanded volume is as large as required, and not larger than the limit.",
        "wit expansion.expand; CSI ControllerExpandVolume",
        [Can(Ability::Expansion)],
        grows
    ),
    case!(
        "expansion/is-seen",
        "Listing and inspection tell the new size.",
        "wit types.volume-status",
        [Can(Ability::Expansion), Looks],
        is_seen
    ),
    case!(
        "expansion/is-idempotent",
        "The same expansion again is a success with the same size.",
        "wit expansion.expand; CSI ControllerExpandVolume",
        [Can(Ability::Expansion)],
        is_idempotent
    ),
    case!(
        "expansion/never-shrinks",
        "A size below the present one is a success with the present one.",
        "wit expansion.expand; CSI ControllerExpandVolume",
        [Can(Ability::Expansion)],
        never_shrinks
    ),
    case!(
        "expansion/missing",
        "Expanding a volume that does not exist is not-found.",
        "CSI ControllerExpandVolume",
        [Can(Ability::Expansion)],
        missing
    ),
    case!(
        "expansion/absurd-size",
        "A size that no storage has is refused finally.",
        "CSI ControllerExpandVolume",
        [Can(Ability::Expansion)],
        absurd_size
    ),
    case!(
        "expansion/empty-range",
        "A required size above the limit is refused finally.",
        "wit types.capacity-range; CSI ControllerExpandVolume",
        [Can(Ability::Expansion)],
        empty_range
    ),
    case!(
        "expansion/create-still-finds",
        "The create that made a volume finds it also after it has grown.",
        "wit volumes.create; CSI CreateVolume",
        [Can(Ability::Expansion)],
        create_still_finds
    ),
    case!(
        "expansion/offline-only",
        "Without the feature online-expansion, expanding a published volume is failed-precondition.",
        "wit expansion.expand; CSI ControllerExpandVolume",
        [Can(Ability::Expansion), Can(Ability::Publishing), Lacks(Feature::OnlineExpansion)],
        offline_only
    ),
    case!(
        "modification/is-idempotent",
        "Parameters that a volume has already are a success.",
        "wit modification.modify; CSI ControllerModifyVolume",
        [Can(Ability::Modification), MutableParameters],
        modify_is_idempotent
    ),
    case!(
        "modification/unknown-parameter",
        "A parameter that the driver does not know is invalid-argument.",
        "wit modification.modify; CSI ControllerModifyVolume",
        [Can(Ability::Modification)],
        unknown_parameter
    ),
    case!(
        "modification/all-or-nothing",
        "When one parameter is refused, none is changed.",
        "wit modification.modify; CSI ControllerModifyVolume",
        [Can(Ability::Modification), MutableParameters, Looks],
        all_or_nothing
    ),
    case!(
        "modification/missing",
        "Modifying a volume that does not exist is not-found.",
        "CSI ControllerModifyVolume",
        [Can(Ability::Modification)],
        modify_missing
    ),
    case!(
        "modification/create-with",
        "A volume can be created with mutable parameters; the same create again finds it.",
        "wit types.create-request; CSI CreateVolume",
        [Can(Ability::Modification), MutableParameters],
        create_with
    ),
    case!(
        "modification/create-unknown",
        "A create with an unknown mutable parameter is invalid-argument.",
        "wit types.create-request; CSI CreateVolume",
        [Can(Ability::Modification)],
        create_unknown
    ),
];

impl Bench {
    /// Expands a volume.
    pub(super) async fn expand(
        &self,
        handle: &VolumeHandle,
        required: u64,
    ) -> Result<ExpandedVolume, StorageError> {
        let request = ExpandVolume {
            handle: handle.clone(),
            capacity: CapacityRange { required: Some(required), limit: None },
            capability: Some(self.options.capability.clone()),
        };
        self.settled("expand", || self.backend.expand_volume(self.call(), request.clone())).await
    }

    /// Changes parameters of a volume.
    pub(super) async fn modify(
        &self,
        handle: &VolumeHandle,
        parameters: &Parameters,
    ) -> Result<(), StorageError> {
        let begin = || self.backend.modify_volume(self.call(), handle.clone(), parameters.clone());
        self.settled("modify", begin).await
    }
}

/// A volume that has grown, with the request that made it and its size now.
async fn grown(bench: &Bench, label: &str) -> Checked<(CreateVolume, VolumeHandle, u64)> {
    let (request, volume) = bench.volume(label).await?;
    let required = volume.capacity.unwrap_or(bench.options.size).saturating_mul(2);
    let grown = done("expand", bench.expand(&volume.handle, required).await)?;
    let expected = || format!("at least {required} bytes");
    holds(grown.capacity >= required, expected, || format!("{} bytes", grown.capacity))?;
    Ok((request, volume.handle, grown.capacity))
}

async fn grows(bench: &Bench) -> Checked {
    let (_, handle, size) = grown(bench, "growing").await?;
    let (required, limit) = (size.saturating_add(1), size.saturating_mul(4));
    let request = ExpandVolume {
        handle,
        capacity: CapacityRange { required: Some(required), limit: Some(limit) },
        capability: None,
    };
    let begin = || bench.backend.expand_volume(bench.call(), request.clone());
    let found = done("expand within a limit", bench.settled("expand", begin).await)?.capacity;
    let fits = (required..=limit).contains(&found);
    holds(fits, || format!("{required} to {limit} bytes"), || format!("{found} bytes"))
}

async fn is_seen(bench: &Bench) -> Checked {
    let (_, handle, size) = grown(bench, "seen").await?;
    for (place, status) in bench.looks(&handle).await? {
        let seen = status.volume.capacity;
        let expected = || format!("a size of {size} bytes in {place}");
        holds(seen.is_none_or(|seen| seen == size), expected, || format!("{seen:?} bytes"))?;
    }
    Ok(())
}

async fn is_idempotent(bench: &Bench) -> Checked {
    let (_, handle, size) = grown(bench, "regrown").await?;
    let again = done("the same expansion again", bench.expand(&handle, size).await)?;
    same("the size", &size, &again.capacity)
}

async fn never_shrinks(bench: &Bench) -> Checked {
    let (_, handle, size) = grown(bench, "shrunk").await?;
    let found = done("an expansion to 1 byte", bench.expand(&handle, 1).await)?;
    same("the size", &size, &found.capacity)
}

async fn missing(bench: &Bench) -> Checked {
    let answer = bench.expand(&bench.ghost().handle, bench.options.size).await;
    refused("expanding a volume that does not exist", &answer, &[ErrorKind::NotFound])
}

async fn absurd_size(bench: &Bench) -> Checked {
    let (_, volume) = bench.volume("burst").await?;
    let answer = bench.expand(&volume.handle, u64::MAX >> 1).await;
    refused("an expansion to 8 EiB", &answer, &BAD_SIZE)
}

async fn empty_range(bench: &Bench) -> Checked {
    let (_, volume) = bench.volume("contradicted").await?;
    let size = volume.capacity.unwrap_or(bench.options.size);
    let request = ExpandVolume {
        handle: volume.handle,
        capacity: CapacityRange {
            required: Some(size.saturating_mul(4)),
            limit: Some(size.saturating_mul(2)),
        },
        capability: None,
    };
    let begin = || bench.backend.expand_volume(bench.call(), request.clone());
    refused("a required size above the limit", &bench.settled("expand", begin).await, &BAD_SIZE)
}

async fn create_still_finds(bench: &Bench) -> Checked {
    let (request, handle, _) = grown(bench, "found").await?;
    let found = bench.create_from(&bench.backend, &request, &Origin::Empty).await;
    same("the handle", &handle, &done("the create that made the volume", found)?.handle)
}

async fn offline_only(bench: &Bench) -> Checked {
    let (_, volume) = bench.volume("in-use").await?;
    done("publish", bench.publish(&bench.publish_request(&volume, 0)).await)?;
    let required = volume.capacity.unwrap_or(bench.options.size).saturating_mul(2);
    let answer = bench.expand(&volume.handle, required).await;
    refused("expanding a published volume", &answer, &[ErrorKind::FailedPrecondition])?;
    done("unpublish from all nodes", bench.unpublish(&volume.handle, None).await)?;
    done("expand once it is unpublished", bench.expand(&volume.handle, required).await).map(drop)
}

fn unknown() -> Parameters {
    [("cofferdam-test-unknown".to_owned(), "1".to_owned())].into()
}

async fn modify_is_idempotent(bench: &Bench) -> Checked {
    let (_, volume) = bench.volume("modified").await?;
    for what in ["modify", "the same modification again"] {
        done(what, bench.modify(&volume.handle, &bench.options.mutable_parameters).await)?;
    }
    Ok(())
}

async fn unknown_parameter(bench: &Bench) -> Checked {
    let (_, volume) = bench.volume("modified").await?;
    let answer = bench.modify(&volume.handle, &unknown()).await;
    refused("an unknown parameter", &answer, &[ErrorKind::InvalidArgument])
}

async fn all_or_nothing(bench: &Bench) -> Checked {
    let (_, volume) = bench.volume("modified").await?;
    let before = bench.look(&volume.handle).await?;
    let mut parameters = bench.options.mutable_parameters.clone();
    parameters.extend(unknown());
    let answer = bench.modify(&volume.handle, &parameters).await;
    if answer.is_ok() {
        return skipped("the driver knows every parameter (see modification/unknown-parameter)");
    }
    same("the volume as it was", &before, &bench.look(&volume.handle).await?)
}

async fn modify_missing(bench: &Bench) -> Checked {
    let answer = bench.modify(&bench.ghost().handle, &bench.options.mutable_parameters).await;
    refused("modifying a volume that does not exist", &answer, &[ErrorKind::NotFound])
}

async fn create_with(bench: &Bench) -> Checked {
    let mutable_parameters = bench.options.mutable_parameters.clone();
    let request = CreateVolume { mutable_parameters, ..bench.request("with") };
    let first = done("a volume with mutable parameters", bench.create(&request).await)?;
    let again = done("the same create again", bench.create(&request).await)?;
    same("the same answer again", &first, &again)
}

async fn create_unknown(bench: &Bench) -> Checked {
    let request = CreateVolume { mutable_parameters: unknown(), ..bench.request("with") };
    let answer = bench.create(&request).await;
    refused("a create with an unknown mutable parameter", &answer, &[ErrorKind::InvalidArgument])
}
