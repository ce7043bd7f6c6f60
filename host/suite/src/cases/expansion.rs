//! Expansion and modification.

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
    CaseRequirement::{Exports, LacksFeature, ListingOrInspection, MutableParameters},
    ConformanceCase,
    check::{CaseResult, expect_equal, expect_final_error, expect_success, expect_that, skip},
    context::{SuiteContext, VolumeOrigin},
};

pub(super) const CASES: &[ConformanceCase] = &[
    case!(
        "expansion/expands",
        "An expanded volume has at least the required size and at most the limit.",
        "wit expansion.expand; CSI ControllerExpandVolume",
        [Exports(Ability::Expansion)],
        expands
    ),
    case!(
        "expansion/is-reported",
        "Listing and inspection report the new size.",
        "wit types.volume-status",
        [Exports(Ability::Expansion), ListingOrInspection],
        is_reported
    ),
    case!(
        "expansion/is-idempotent",
        "A repeated expansion succeeds with the same size.",
        "wit expansion.expand; CSI ControllerExpandVolume",
        [Exports(Ability::Expansion)],
        is_idempotent
    ),
    case!(
        "expansion/never-shrinks",
        "An expansion to a smaller size succeeds and keeps the current size.",
        "wit expansion.expand; CSI ControllerExpandVolume",
        [Exports(Ability::Expansion)],
        never_shrinks
    ),
    case!(
        "expansion/missing",
        "Expanding a missing volume fails with not-found.",
        "CSI ControllerExpandVolume",
        [Exports(Ability::Expansion)],
        missing
    ),
    case!(
        "expansion/absurd-size",
        "A size beyond any storage fails with a final error.",
        "CSI ControllerExpandVolume",
        [Exports(Ability::Expansion)],
        absurd_size
    ),
    case!(
        "expansion/empty-range",
        "A required size above the limit fails with a final error.",
        "wit types.capacity-range; CSI ControllerExpandVolume",
        [Exports(Ability::Expansion)],
        empty_range
    ),
    case!(
        "expansion/create-finds-expanded",
        "The create of a volume still finds it after an expansion.",
        "wit volumes.create; CSI CreateVolume",
        [Exports(Ability::Expansion)],
        create_finds_expanded
    ),
    case!(
        "expansion/offline-only",
        "Without the feature online-expansion, expanding a published volume fails with failed-precondition.",
        "wit expansion.expand; CSI ControllerExpandVolume",
        [Exports(Ability::Expansion), Exports(Ability::Publishing), LacksFeature(Feature::OnlineExpansion)],
        offline_only
    ),
    case!(
        "modification/is-idempotent",
        "Setting parameters to their current values succeeds.",
        "wit modification.modify; CSI ControllerModifyVolume",
        [Exports(Ability::Modification), MutableParameters],
        modify_is_idempotent
    ),
    case!(
        "modification/unknown-parameter",
        "An unknown parameter fails with invalid-argument.",
        "wit modification.modify; CSI ControllerModifyVolume",
        [Exports(Ability::Modification)],
        unknown_parameter
    ),
    case!(
        "modification/all-or-nothing",
        "If one parameter is rejected, none is changed.",
        "wit modification.modify; CSI ControllerModifyVolume",
        [Exports(Ability::Modification), MutableParameters, ListingOrInspection],
        all_or_nothing
    ),
    case!(
        "modification/missing",
        "Modifying a missing volume fails with not-found.",
        "CSI ControllerModifyVolume",
        [Exports(Ability::Modification)],
        modify_missing
    ),
    case!(
        "modification/create-with",
        "A volume can be created with mutable parameters; a repeated create finds it.",
        "wit types.create-request; CSI CreateVolume",
        [Exports(Ability::Modification), MutableParameters],
        create_with
    ),
    case!(
        "modification/create-unknown",
        "A create with an unknown mutable parameter fails with invalid-argument.",
        "wit types.create-request; CSI CreateVolume",
        [Exports(Ability::Modification)],
        create_unknown
    ),
];

impl SuiteContext {
    /// Expands a volume to at least `required` bytes.
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
        self.retry_until_final("expand", || self.backend.expand_volume(self.call(), request.clone())).await
    }

    /// Sets mutable parameters of a volume.
    pub(super) async fn modify(
        &self,
        handle: &VolumeHandle,
        parameters: &Parameters,
    ) -> Result<(), StorageError> {
        let call = || self.backend.modify_volume(self.call(), handle.clone(), parameters.clone());
        self.retry_until_final("modify", call).await
    }
}

/// Creates a volume and expands it to at least twice its size. Returns the create request, the handle and the
/// new size in bytes.
async fn expanded_volume(
    context: &SuiteContext,
    label: &str,
) -> CaseResult<(CreateVolume, VolumeHandle, u64)> {
    let (request, volume) = context.new_volume(label).await?;
    let required = volume.capacity.unwrap_or(context.options.size).saturating_mul(2);
    let expanded = expect_success("expand", context.expand(&volume.handle, required).await)?;
    let expected = || format!("at least {required} bytes");
    expect_that(expanded.capacity >= required, expected, || format!("{} bytes", expanded.capacity))?;
    Ok((request, volume.handle, expanded.capacity))
}

async fn expands(context: &SuiteContext) -> CaseResult {
    let (_, handle, size) = expanded_volume(context, "growing").await?;
    let (required, limit) = (size.saturating_add(1), size.saturating_mul(4));
    let request = ExpandVolume {
        handle,
        capacity: CapacityRange { required: Some(required), limit: Some(limit) },
        capability: None,
    };
    let call = || context.backend.expand_volume(context.call(), request.clone());
    let found =
        expect_success("expand within a limit", context.retry_until_final("expand", call).await)?.capacity;
    let fits = (required..=limit).contains(&found);
    expect_that(fits, || format!("{required} to {limit} bytes"), || format!("{found} bytes"))
}

async fn is_reported(context: &SuiteContext) -> CaseResult {
    let (_, handle, size) = expanded_volume(context, "seen").await?;
    for (source, status) in context.volume_statuses(&handle).await? {
        let reported = status.volume.capacity;
        let expected = || format!("a size of {size} bytes in {source}");
        expect_that(reported.is_none_or(|reported| reported == size), expected, || {
            format!("{reported:?} bytes")
        })?;
    }
    Ok(())
}

async fn is_idempotent(context: &SuiteContext) -> CaseResult {
    let (_, handle, size) = expanded_volume(context, "regrown").await?;
    let again = expect_success("the same expansion again", context.expand(&handle, size).await)?;
    expect_equal("the size", &size, &again.capacity)
}

async fn never_shrinks(context: &SuiteContext) -> CaseResult {
    let (_, handle, size) = expanded_volume(context, "shrunk").await?;
    let found = expect_success("an expansion to 1 byte", context.expand(&handle, 1).await)?;
    expect_equal("the size", &size, &found.capacity)
}

async fn missing(context: &SuiteContext) -> CaseResult {
    let answer = context.expand(&context.nonexistent_volume().handle, context.options.size).await;
    expect_final_error("expanding a volume that does not exist", &answer, &[ErrorKind::NotFound])
}

async fn absurd_size(context: &SuiteContext) -> CaseResult {
    let (_, volume) = context.new_volume("burst").await?;
    let answer = context.expand(&volume.handle, u64::MAX >> 1).await;
    expect_final_error("an expansion to 8 EiB", &answer, &BAD_SIZE)
}

async fn empty_range(context: &SuiteContext) -> CaseResult {
    let (_, volume) = context.new_volume("contradicted").await?;
    let size = volume.capacity.unwrap_or(context.options.size);
    let request = ExpandVolume {
        handle: volume.handle,
        capacity: CapacityRange {
            required: Some(size.saturating_mul(4)),
            limit: Some(size.saturating_mul(2)),
        },
        capability: None,
    };
    let call = || context.backend.expand_volume(context.call(), request.clone());
    expect_final_error(
        "a required size above the limit",
        &context.retry_until_final("expand", call).await,
        &BAD_SIZE,
    )
}

async fn create_finds_expanded(context: &SuiteContext) -> CaseResult {
    let (request, handle, _) = expanded_volume(context, "found").await?;
    let found = context.create_from(&context.backend, &request, &VolumeOrigin::Empty).await;
    expect_equal("the handle", &handle, &expect_success("the create that made the volume", found)?.handle)
}

async fn offline_only(context: &SuiteContext) -> CaseResult {
    let (_, volume) = context.new_volume("in-use").await?;
    expect_success("publish", context.publish(&context.publish_request(&volume, 0)).await)?;
    let required = volume.capacity.unwrap_or(context.options.size).saturating_mul(2);
    let answer = context.expand(&volume.handle, required).await;
    expect_final_error("expanding a published volume", &answer, &[ErrorKind::FailedPrecondition])?;
    expect_success("unpublish from all nodes", context.unpublish(&volume.handle, None).await)?;
    expect_success("expand once it is unpublished", context.expand(&volume.handle, required).await).map(drop)
}

fn unknown_parameters() -> Parameters {
    [("cofferdam-test-unknown".to_owned(), "1".to_owned())].into()
}

async fn modify_is_idempotent(context: &SuiteContext) -> CaseResult {
    let (_, volume) = context.new_volume("modified").await?;
    for what in ["modify", "the same modification again"] {
        expect_success(what, context.modify(&volume.handle, &context.options.mutable_parameters).await)?;
    }
    Ok(())
}

async fn unknown_parameter(context: &SuiteContext) -> CaseResult {
    let (_, volume) = context.new_volume("modified").await?;
    let answer = context.modify(&volume.handle, &unknown_parameters()).await;
    expect_final_error("an unknown parameter", &answer, &[ErrorKind::InvalidArgument])
}

async fn all_or_nothing(context: &SuiteContext) -> CaseResult {
    let (_, volume) = context.new_volume("modified").await?;
    let before = context.volume_status(&volume.handle).await?;
    let mut parameters = context.options.mutable_parameters.clone();
    parameters.extend(unknown_parameters());
    let answer = context.modify(&volume.handle, &parameters).await;
    if answer.is_ok() {
        return skip("the driver knows every parameter (see modification/unknown-parameter)");
    }
    expect_equal("the volume as it was", &before, &context.volume_status(&volume.handle).await?)
}

async fn modify_missing(context: &SuiteContext) -> CaseResult {
    let answer =
        context.modify(&context.nonexistent_volume().handle, &context.options.mutable_parameters).await;
    expect_final_error("modifying a volume that does not exist", &answer, &[ErrorKind::NotFound])
}

async fn create_with(context: &SuiteContext) -> CaseResult {
    let mutable_parameters = context.options.mutable_parameters.clone();
    let request = CreateVolume { mutable_parameters, ..context.volume_request("with") };
    let first = expect_success("a volume with mutable parameters", context.create(&request).await)?;
    let again = expect_success("the same create again", context.create(&request).await)?;
    expect_equal("the same answer again", &first, &again)
}

async fn create_unknown(context: &SuiteContext) -> CaseResult {
    let request = CreateVolume { mutable_parameters: unknown_parameters(), ..context.volume_request("with") };
    let answer = context.create(&request).await;
    expect_final_error("a create with an unknown mutable parameter", &answer, &[ErrorKind::InvalidArgument])
}
