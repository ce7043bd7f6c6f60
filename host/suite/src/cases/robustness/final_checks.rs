//! Missing secrets, and the errors and leftovers of a run. These cases run last.

use cofferdam_backend::{Backend as _, Call};
use cofferdam_domain::storage::{Ability, CreateVolume, ErrorKind, Finality, Secrets, StorageError};

use crate::{
    cases::volumes::with_capacity,
    check::{CaseResult, error_line, expect_success, expect_success_or_final_error, expect_that, fail, skip},
    context::{SuiteContext, VolumeOrigin},
};

/// Sends requests that the contract requires every driver to reject, so that there are errors to check if few
/// cases run.
async fn provoke_errors(context: &SuiteContext) {
    drop(
        context
            .create(&CreateVolume { capabilities: Vec::new(), ..context.volume_request("provoked") })
            .await,
    );
    drop(context.create(&with_capacity(&context.volume_request("provoked"), Some(u64::MAX), None)).await);
    drop(
        context
            .validate(&context.nonexistent_volume(), std::slice::from_ref(&context.options.capability))
            .await,
    );
}

/// Creates a volume without secrets. The create must fail with a final FailedPrecondition, InvalidArgument,
/// PermissionDenied or Unauthenticated. Skips the case if the create succeeds.
pub(super) async fn without_secrets(context: &SuiteContext) -> CaseResult {
    use ErrorKind::{FailedPrecondition, InvalidArgument, PermissionDenied, Unauthenticated};
    let request = context.volume_request("secretless");
    let process = context.backend.second_process_without_secrets();
    let call = || Call { secrets: Secrets::default(), ..context.call() };
    let start = || context.start_create(&process, call(), &request, &VolumeOrigin::Empty);
    let in_flight = context.volume_in_flight(&request, &VolumeOrigin::Empty);
    let answer = context.retry_until_final("create", start).await;
    in_flight.recorded();
    context.record_create(&request, &VolumeOrigin::Empty, &answer);
    let kinds = [FailedPrecondition, InvalidArgument, PermissionDenied, Unauthenticated];
    match expect_success_or_final_error("a create without secrets", &answer, &kinds)? {
        true => skip("the driver creates volumes without secrets"),
        false => Ok(()),
    }
}

fn ensure_no_error(
    context: &SuiteContext,
    expected: &str,
    is_violation: impl Fn(&StorageError) -> bool,
) -> CaseResult {
    match context.errors().into_iter().find(|(_, error)| is_violation(error)) {
        Some((method, error)) => fail(expected, format!("{method}: {}", error_line(&error))),
        None => Ok(()),
    }
}

pub(super) async fn have_a_message(context: &SuiteContext) -> CaseResult {
    provoke_errors(context).await;
    ensure_no_error(context, "a message in every error", |error| error.message.trim().is_empty())
}

pub(super) async fn final_kinds_are_final(context: &SuiteContext) -> CaseResult {
    use ErrorKind::{
        AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, OutOfRange, Unimplemented,
    };
    provoke_errors(context).await;
    let kinds = [AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, OutOfRange, Unimplemented];
    ensure_no_error(context, "a final error", |error| {
        kinds.contains(&error.kind) && error.finality != Finality::Final
    })
}

pub(super) async fn no_defects(context: &SuiteContext) -> CaseResult {
    provoke_errors(context).await;
    ensure_no_error(context, "no internal error in the whole run", |error| error.kind == ErrorKind::Internal)
}

pub(super) async fn no_secrets(context: &SuiteContext) -> CaseResult {
    provoke_errors(context).await;
    let (count, first) = context.call_recorder.redacted_responses();
    match first {
        None => Ok(()),
        Some(first) => fail(
            "no secret in a response",
            format!("the host redacted a secret in {count}, first in {first}"),
        ),
    }
}

pub(super) async fn nothing_is_left(context: &SuiteContext) -> CaseResult {
    let (_, last) = context.new_volume("last").await?;
    expect_success("delete", context.delete(&last.handle).await)?;
    context.delete_all().await;
    let leftovers = context.leftovers();
    expect_that(leftovers.is_empty(), || "everything can be deleted".to_owned(), || leftovers.join(", "))?;
    if context.backend.abilities().contains(&Ability::Listing) {
        let listed: Vec<_> = context
            .list_all(None)
            .await?
            .into_iter()
            .filter(|status| context.is_own_volume(status))
            .collect();
        let handles = || listed.iter().map(|status| status.volume.handle.to_string()).collect::<Vec<_>>();
        let expected = || "no volume of this run in the listing".to_owned();
        expect_that(listed.is_empty(), expected, || handles().join(", "))?;
    }
    if context.backend.abilities().contains(&Ability::Snapshots) {
        let mut listed = context.list_snapshots(None, None).await?;
        listed.retain(|snapshot| context.is_own_snapshot(&snapshot.handle));
        let handles = || listed.iter().map(|snapshot| snapshot.handle.to_string()).collect::<Vec<_>>();
        let expected = || "no snapshot of this run in the listing".to_owned();
        expect_that(listed.is_empty(), expected, || handles().join(", "))?;
    }
    let new: Vec<_> = context.stored_entries().difference(&context.initial_storage).cloned().collect();
    expect_that(new.is_empty(), || "nothing new in the state and the pool".to_owned(), || new.join(", "))
}
