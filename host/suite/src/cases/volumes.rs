//! Creation, deletion and validation of volumes.

mod missing;
pub(super) mod names;

use cofferdam_backend::Backend as _;
use cofferdam_domain::{
    VolumeHandle,
    storage::{
        AccessType, CapacityRange, CreateVolume, CreatedVolume, CsiAccessMode, ErrorKind, Parameters,
        StorageError, ValidateVolume, Validation, VolumeCapability,
    },
};

use super::case;
use crate::{
    CaseRequirement::OtherParameters,
    ConformanceCase,
    check::{
        CaseResult, expect_equal, expect_final_error, expect_success, expect_success_or_final_error,
        expect_that, fail,
    },
    context::{SuiteContext, VolumeOrigin},
};

/// Error kinds that a driver may return for a size that it rejects.
pub(super) const BAD_SIZE: [ErrorKind; 3] =
    [ErrorKind::OutOfRange, ErrorKind::InvalidArgument, ErrorKind::ResourceExhausted];

pub(super) const CASES: &[ConformanceCase] = &[
    case!(
        "volumes/create-is-idempotent",
        "A repeated create returns the same volume, also from another process.",
        "wit volumes.create; CSI CreateVolume",
        [],
        create_is_idempotent
    ),
    case!(
        "volumes/create-other-size",
        "Creating an existing name with a range that excludes its size fails with already-exists.",
        "wit volumes.create; CSI CreateVolume",
        [],
        create_other_size
    ),
    case!(
        "volumes/create-other-parameters",
        "Creating an existing name with different parameters fails with already-exists, or with \
         invalid-argument if the parameters are invalid.",
        "wit volumes.create; CSI CreateVolume",
        [],
        create_other_parameters
    ),
    case!(
        "volumes/create-other-value",
        "Creating an existing name with another valid value of a parameter fails with already-exists; a new \
         name is created with it.",
        "wit volumes.create; CSI CreateVolume",
        [OtherParameters],
        create_other_value
    ),
    case!(
        "volumes/create-other-capability",
        "Creating an existing name with a different capability fails with already-exists, or with \
         invalid-argument if the capability is unsupported.",
        "wit volumes.create; CSI CreateVolume",
        [],
        create_other_capability
    ),
    case!(
        "volumes/size-in-range",
        "A volume has at least the required size and at most the limit.",
        "wit types.capacity-range; CSI CreateVolume",
        [],
        size_in_range
    ),
    case!(
        "volumes/one-byte",
        "A required size of one byte is rounded up, or fails with out-of-range.",
        "CSI CreateVolume",
        [],
        one_byte
    ),
    case!(
        "volumes/empty-range",
        "A required size above the limit fails with a final error.",
        "wit types.error-kind; CSI CreateVolume",
        [],
        empty_range
    ),
    case!(
        "volumes/absurd-size",
        "A size beyond any storage fails with a final error.",
        "wit types.error-kind; CSI CreateVolume",
        [],
        absurd_size
    ),
    case!(
        "volumes/no-size",
        "A limit of 0 bytes fails with a final error.",
        "wit types.capacity-range",
        [],
        no_size
    ),
    case!(
        "volumes/no-capability",
        "A create without capabilities fails with invalid-argument.",
        "wit types.create-request; CSI CreateVolume",
        [],
        no_capability
    ),
    case!(
        "volumes/unknown-parameter",
        "An unknown parameter fails with invalid-argument: a typo in a StorageClass must not pass unnoticed.",
        "CSI CreateVolume; docs/backend-test.md",
        [],
        unknown_parameter
    ),
    case!(
        "volumes/short-name",
        "A name of one byte is accepted.",
        "wit types.create-request; CSI size limits",
        [],
        names::short
    ),
    case!(
        "volumes/long-names",
        "Names of 128 bytes are accepted; two that differ in the last byte are two volumes.",
        "wit types.create-request; CSI size limits",
        [],
        names::long
    ),
    case!(
        "volumes/unicode-names",
        "A name may contain any characters except control characters.",
        "CSI CreateVolume",
        [],
        names::unicode
    ),
    case!(
        "volumes/similar-names",
        "Names that differ in case or punctuation are different volumes.",
        "wit types.create-request",
        [],
        names::similar
    ),
    case!(
        "volumes/bad-names",
        "A name that is empty, longer than 128 bytes or contains control characters fails with \
         invalid-argument.",
        "wit types.create-request; CSI CreateVolume",
        [],
        names::bad
    ),
    case!(
        "volumes/delete-is-idempotent",
        "A repeated delete succeeds, also from another process.",
        "wit volumes.delete; CSI DeleteVolume",
        [],
        missing::delete_is_idempotent
    ),
    case!(
        "volumes/delete-unknown",
        "Deleting a handle that never existed succeeds, whatever its format.",
        "wit volumes.delete; CSI DeleteVolume",
        [],
        missing::delete_unknown
    ),
    case!(
        "volumes/delete-deletes",
        "A deleted volume does not exist any more.",
        "wit volumes.delete; CSI DeleteVolume",
        [],
        missing::delete_deletes
    ),
    case!(
        "volumes/create-after-delete",
        "The name of a deleted volume can be reused, with any size.",
        "wit volumes.create",
        [],
        missing::create_after_delete
    ),
    case!(
        "volumes/validate-confirms",
        "`validate` confirms the capabilities that a volume was created with.",
        "wit volumes.validate; CSI ValidateVolumeCapabilities",
        [],
        validate_confirms
    ),
    case!(
        "volumes/validate-refuses",
        "An unknown filesystem type is not confirmed, with a reason, or fails with invalid-argument.",
        "wit volumes.validate; CSI ValidateVolumeCapabilities",
        [],
        validate_refuses
    ),
    case!(
        "volumes/validate-no-capability",
        "A validation without capabilities fails with invalid-argument.",
        "CSI ValidateVolumeCapabilities",
        [],
        validate_no_capability
    ),
    case!(
        "volumes/validate-missing",
        "Validating a missing volume fails with not-found.",
        "wit volumes.validate; CSI ValidateVolumeCapabilities",
        [],
        missing::validate_missing
    ),
];

impl SuiteContext {
    /// Asks the driver to validate capabilities of a volume, with the volume's context and the run's
    /// parameters.
    pub(super) async fn validate(
        &self,
        volume: &CreatedVolume,
        capabilities: &[VolumeCapability],
    ) -> Result<Validation, StorageError> {
        self.retry_until_final("validate", || {
            let request = ValidateVolume {
                handle: volume.handle.clone(),
                context: volume.context.clone(),
                capabilities: capabilities.to_vec(),
                parameters: self.options.parameters.clone(),
                mutable_parameters: Parameters::new(),
            };
            self.backend.validate_volume(self.call(), request)
        })
        .await
    }

    /// A volume with a handle that the driver never returned.
    pub(super) fn nonexistent_volume(&self) -> CreatedVolume {
        CreatedVolume {
            handle: VolumeHandle::new(self.unique_name("ghost")),
            capacity: None,
            context: Parameters::new(),
            topology: Vec::new(),
            connection_info: None,
        }
    }
}

/// The request with another capacity range.
pub(super) fn with_capacity(
    request: &CreateVolume,
    required: Option<u64>,
    limit: Option<u64>,
) -> CreateVolume {
    CreateVolume { capacity: CapacityRange { required, limit }, ..request.clone() }
}

async fn create_is_idempotent(context: &SuiteContext) -> CaseResult {
    let (request, first) = context.new_volume("twice").await?;
    let second = context.second_process();
    for backend in [&context.backend, &second] {
        let again = context.create_from(backend, &request, &VolumeOrigin::Empty).await;
        expect_equal("the same answer again", &first, &expect_success("the same create again", again)?)?;
    }
    Ok(())
}

async fn create_other_size(context: &SuiteContext) -> CaseResult {
    let (request, first) = context.new_volume("resized").await?;
    let size = first.capacity.unwrap_or(context.options.size);
    let other = with_capacity(&request, Some(size.saturating_mul(2)), None);
    expect_final_error(
        "the name with twice the size",
        &context.create(&other).await,
        &[ErrorKind::AlreadyExists],
    )
}

async fn create_other_parameters(context: &SuiteContext) -> CaseResult {
    let (request, _) = context.new_volume("reparameterised").await?;
    let mut parameters = request.parameters.clone();
    parameters.insert("cofferdam-test-unknown".to_owned(), "1".to_owned());
    let other = CreateVolume { parameters, ..request };
    let kinds = [ErrorKind::AlreadyExists, ErrorKind::InvalidArgument];
    expect_final_error("the name with another parameter", &context.create(&other).await, &kinds)
}

async fn create_other_value(context: &SuiteContext) -> CaseResult {
    for (key, value) in &context.options.other_parameters {
        let (request, _) = context.new_volume("revalued").await?;
        let mut parameters = request.parameters.clone();
        parameters.insert(key.clone(), value.clone());
        let other = CreateVolume { parameters: parameters.clone(), ..request };
        let what = format!("the name with {key}={value:?}");
        expect_final_error(&what, &context.create(&other).await, &[ErrorKind::AlreadyExists])?;
        let new = CreateVolume { parameters, ..context.volume_request("revalued") };
        expect_success(&format!("a new volume with {key}={value:?}"), context.create(&new).await)?;
    }
    Ok(())
}

async fn create_other_capability(context: &SuiteContext) -> CaseResult {
    let (request, _) = context.new_volume("reused").await?;
    let mode = if context.options.capability.access_mode == CsiAccessMode::MultiNodeReaderOnly {
        CsiAccessMode::SingleNodeWriter
    } else {
        CsiAccessMode::MultiNodeReaderOnly
    };
    let capability = VolumeCapability { access_mode: mode, ..context.options.capability.clone() };
    let other = CreateVolume { capabilities: vec![capability], ..request };
    let kinds = [ErrorKind::AlreadyExists, ErrorKind::InvalidArgument];
    expect_final_error("the name for another use", &context.create(&other).await, &kinds)
}

async fn size_in_range(context: &SuiteContext) -> CaseResult {
    let size = context.options.size;
    for (required, limit) in
        [(Some(size), None), (Some(size), Some(size.saturating_mul(4))), (None, Some(size.saturating_mul(4)))]
    {
        let request = with_capacity(&context.volume_request("ranged"), required, limit);
        let volume = expect_success("a volume of a range", context.create(&request).await)?;
        let fits = volume.capacity.is_none_or(|size| {
            required.is_none_or(|required| size >= required) && limit.is_none_or(|limit| size <= limit)
        });
        let expected = || format!("at least {}, at most {}", format_size(required), format_size(limit));
        expect_that(fits, expected, || format_size(volume.capacity))?;
    }
    Ok(())
}

/// A size in bytes, or `any size`.
pub(super) fn format_size(size: Option<u64>) -> String {
    size.map_or_else(|| "any size".to_owned(), |size| format!("{size} bytes"))
}

async fn one_byte(context: &SuiteContext) -> CaseResult {
    let request = with_capacity(&context.volume_request("tiny"), Some(1), None);
    expect_success_or_final_error("a volume of one byte", &context.create(&request).await, &BAD_SIZE)
        .map(drop)
}

async fn empty_range(context: &SuiteContext) -> CaseResult {
    let size = context.options.size;
    let request =
        with_capacity(&context.volume_request("impossible"), Some(size.saturating_mul(2)), Some(size));
    expect_final_error("a required size above the limit", &context.create(&request).await, &BAD_SIZE)
}

async fn absurd_size(context: &SuiteContext) -> CaseResult {
    for size in [u64::MAX >> 1, u64::MAX] {
        let request = with_capacity(&context.volume_request("huge"), Some(size), None);
        expect_final_error(&format!("a volume of {size} bytes"), &context.create(&request).await, &BAD_SIZE)?;
    }
    Ok(())
}

async fn no_size(context: &SuiteContext) -> CaseResult {
    let request = with_capacity(&context.volume_request("nothing"), None, Some(0));
    expect_final_error("a volume of at most 0 bytes", &context.create(&request).await, &BAD_SIZE)
}

async fn no_capability(context: &SuiteContext) -> CaseResult {
    let request = CreateVolume { capabilities: Vec::new(), ..context.volume_request("useless") };
    expect_final_error(
        "a create without a way of use",
        &context.create(&request).await,
        &[ErrorKind::InvalidArgument],
    )
}

async fn unknown_parameter(context: &SuiteContext) -> CaseResult {
    let mut request = context.volume_request("mistyped");
    request.parameters.insert("cofferdam-test-unknown".to_owned(), "1".to_owned());
    let answer = context.create(&request).await;
    expect_final_error("a create with an unknown parameter", &answer, &[ErrorKind::InvalidArgument])
}

async fn validate_confirms(context: &SuiteContext) -> CaseResult {
    let (request, volume) = context.new_volume("valid").await?;
    let answer = expect_success("validate", context.validate(&volume, &request.capabilities).await)?;
    expect_equal("the validation", &Validation::Confirmed, &answer)
}

async fn validate_refuses(context: &SuiteContext) -> CaseResult {
    let (_, volume) = context.new_volume("invalid").await?;
    let access = AccessType::Filesystem {
        fs_type: Some("cofferdam-test-fs".to_owned()),
        mount_flags: Vec::new(),
        mount_group: None,
    };
    let capability = VolumeCapability { access_mode: CsiAccessMode::SingleNodeWriter, access_type: access };
    let expected = "a refusal with a reason";
    match context.validate(&volume, &[capability]).await {
        Ok(Validation::Confirmed) => fail(expected, "the filesystem `cofferdam-test-fs` is confirmed"),
        Ok(Validation::Refused(reason)) => expect_that(
            !reason.trim().is_empty(),
            || expected.to_owned(),
            || "a refusal without a reason".to_owned(),
        ),
        answer @ Err(_) => expect_final_error(expected, &answer, &[ErrorKind::InvalidArgument]),
    }
}

async fn validate_no_capability(context: &SuiteContext) -> CaseResult {
    let (_, volume) = context.new_volume("unused").await?;
    let answer = context.validate(&volume, &[]).await;
    expect_final_error("a validation without a way of use", &answer, &[ErrorKind::InvalidArgument])
}
