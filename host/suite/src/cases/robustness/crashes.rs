//! Calls that are killed at a call of the imports `state`, `pool` or `http` (a host call), or that lose an
//! HTTP response. A case makes its call once for each such point, and then repeats it without a fault.

use std::collections::BTreeSet;

use cofferdam_backend::Backend as _;
use cofferdam_domain::{
    VolumeHandle,
    storage::{
        Ability, CapacityRange, CreateGroupSnapshot, CreateVolume, ErrorKind, ExpandVolume, Finality,
        StorageError,
    },
};
use cofferdam_wasm::fault_injection::FaultPoint;
use futures::future::BoxFuture;

use crate::{
    cases::{group_snapshots, volumes::with_capacity},
    check::{CaseResult, error_line, expect_equal, expect_success, expect_that, fail, skip},
    context::{SuiteContext, VolumeOrigin},
    process::RecordingBackend,
};

/// A case fails if its call makes this many host calls or more. The case `crashes/lost-answers` fails if its
/// call sends this many HTTP requests or more.
const MAX_HOST_CALLS: u32 = 64;

/// Crash points: before the first host call, and after each of the first [`MAX_HOST_CALLS`].
fn crash_points() -> impl Iterator<Item = FaultPoint> {
    std::iter::once(FaultPoint::Before(0)).chain((0..MAX_HOST_CALLS).map(FaultPoint::After))
}

fn describe_fault(fault: FaultPoint) -> String {
    match fault {
        FaultPoint::Before(number) => format!("that died before host call {}", number + 1),
        FaultPoint::After(number) => format!("that died after host call {}", number + 1),
        FaultPoint::LostResponse(number) => format!("whose answer to request {} was lost", number + 1),
    }
}

/// Makes a call from a second process and kills it at a crash point. Its result is ignored. Returns false if
/// the call ended before it reached the crash point.
async fn crash_call<T>(
    context: &SuiteContext,
    fault: FaultPoint,
    call: impl for<'a> FnOnce(&'a RecordingBackend) -> BoxFuture<'a, Result<T, StorageError>>,
) -> bool {
    let second = context.second_process();
    context.faults.arm(fault);
    drop(call(&second).await);
    context.faults.disarm()
}

/// Ends a case at the first fault point that a call does not reach. Skips the case if no call reached one.
fn finish_fault_loop(fault: FaultPoint) -> CaseResult {
    match fault {
        FaultPoint::Before(0) => skip("the call makes no host calls"),
        FaultPoint::LostResponse(0) => skip("the call sends no requests"),
        FaultPoint::Before(_) | FaultPoint::After(_) | FaultPoint::LostResponse(_) => Ok(()),
    }
}

/// Fails if the driver's state or pool has entries that were not there before.
fn check_no_leftovers(context: &SuiteContext, before: &BTreeSet<String>, fault: FaultPoint) -> CaseResult {
    let new: Vec<_> = context.stored_entries().difference(before).cloned().collect();
    let expected = || format!("nothing new in the state and the pool after a call {}", describe_fault(fault));
    expect_that(new.is_empty(), expected, || new.join(", "))
}

pub(super) async fn create(context: &SuiteContext) -> CaseResult {
    create_through_crashes(context, "dying-create", &VolumeOrigin::Empty).await
}

pub(super) async fn clone(context: &SuiteContext) -> CaseResult {
    let (_, source) = context.new_volume("source").await?;
    create_through_crashes(context, "dying-clone", &VolumeOrigin::Volume(source.handle)).await
}

pub(super) async fn restore(context: &SuiteContext) -> CaseResult {
    let (_, source) = context.new_volume("source").await?;
    let snapshot = context.ready_snapshot("source", &source.handle).await?;
    create_through_crashes(context, "dying-restore", &VolumeOrigin::Snapshot(snapshot.handle)).await
}

async fn create_through_crashes(context: &SuiteContext, label: &str, origin: &VolumeOrigin) -> CaseResult {
    let before = context.stored_entries();
    for fault in crash_points() {
        let request = context.volume_request(label);
        // Recorded for the cleanup, in case the repetition below fails.
        context.record_create(
            &request,
            origin,
            &Err(StorageError::with_unknown_effect(ErrorKind::Internal, "the call died")),
        );
        let crashed = crash_call(context, fault, |second| {
            context.start_create(second, context.call(), &request, origin)
        })
        .await;
        let what = format!("the same create after one {}", describe_fault(fault));
        let retried = expect_success(&what, context.create_from(&context.backend, &request, origin).await)?;
        let again = expect_success(
            "the same create once more",
            context.create_from(&context.backend, &request, origin).await,
        )?;
        expect_equal("the same answer again", &retried, &again)?;
        check_listed_volumes(context, &request, fault, &[&retried.handle]).await?;
        expect_success("delete", context.delete(&retried.handle).await)?;
        check_listed_volumes(context, &request, fault, &[]).await?;
        check_no_leftovers(context, &before, fault)?;
        if !crashed {
            return finish_fault_loop(fault);
        }
    }
    fail(format!("a create within {MAX_HOST_CALLS} host calls"), "it needs more")
}

pub(super) async fn delete(context: &SuiteContext) -> CaseResult {
    let before = context.stored_entries();
    for fault in crash_points() {
        let (request, volume) = context.new_volume("dying-delete").await?;
        let handle = volume.handle.clone();
        let crashed = crash_call(context, fault, |second| second.delete_volume(context.call(), handle)).await;
        expect_success(
            &format!("the same delete after one {}", describe_fault(fault)),
            context.delete(&volume.handle).await,
        )?;
        let answer = context.validate(&volume, &request.capabilities).await;
        expect_that(answer.is_err(), || "a volume that is gone".to_owned(), || format!("{answer:?}"))?;
        check_no_leftovers(context, &before, fault)?;
        if !crashed {
            return finish_fault_loop(fault);
        }
    }
    fail(format!("a delete within {MAX_HOST_CALLS} host calls"), "it needs more")
}

pub(super) async fn snapshot(context: &SuiteContext) -> CaseResult {
    let (_, volume) = context.new_volume("snapped").await?;
    let before = context.stored_entries();
    for fault in crash_points() {
        let request = context.snapshot_request("dying-snapshot", &volume.handle);
        let crashed =
            crash_call(context, fault, |second| second.create_snapshot(context.call(), request.clone()))
                .await;
        let what = format!("the same snapshot after one {}", describe_fault(fault));
        let retried = expect_success(&what, context.create_snapshot(&context.backend, &request).await)?;
        let again = expect_success(
            "the same snapshot once more",
            context.create_snapshot(&context.backend, &request).await,
        )?;
        expect_equal("the same handle again", &retried.handle, &again.handle)?;
        check_snapshot_count(context, &volume.handle, fault, 1).await?;
        expect_success("delete", context.delete_snapshot(&retried.handle).await)?;
        check_snapshot_count(context, &volume.handle, fault, 0).await?;
        check_no_leftovers(context, &before, fault)?;
        if !crashed {
            return finish_fault_loop(fault);
        }
    }
    fail(format!("a snapshot within {MAX_HOST_CALLS} host calls"), "it needs more")
}

pub(super) async fn delete_snapshot(context: &SuiteContext) -> CaseResult {
    let (_, volume) = context.new_volume("snapped").await?;
    let before = context.stored_entries();
    for fault in crash_points() {
        let handle = context.ready_snapshot("dying-uncut", &volume.handle).await?.handle;
        let crashed =
            crash_call(context, fault, |second| second.delete_snapshot(context.call(), handle.clone())).await;
        expect_success(
            &format!("the same delete after one {}", describe_fault(fault)),
            context.delete_snapshot(&handle).await,
        )?;
        let answer = context.get_snapshot(&handle).await;
        expect_that(answer.is_err(), || "a snapshot that is gone".to_owned(), || format!("{answer:?}"))?;
        check_no_leftovers(context, &before, fault)?;
        if !crashed {
            return finish_fault_loop(fault);
        }
    }
    fail(format!("a delete within {MAX_HOST_CALLS} host calls"), "it needs more")
}

pub(super) async fn group(context: &SuiteContext) -> CaseResult {
    let sources = group_snapshots::two_volumes(context).await?;
    let before = context.stored_entries();
    for fault in crash_points() {
        let parameters = context.options.snapshot_parameters.clone();
        let request = CreateGroupSnapshot {
            name: context.unique_name("dying-group"),
            sources: sources.clone(),
            parameters,
            owner: None,
        };
        let crashed = crash_call(context, fault, |second| {
            second.create_group_snapshot(context.call(), request.clone())
        })
        .await;
        let what = format!("the same group after one {}", describe_fault(fault));
        let retried = expect_success(&what, context.create_group_snapshot(&request).await)?;
        let again =
            expect_success("the same group once more", context.create_group_snapshot(&request).await)?;
        expect_equal("the same handle again", &retried.handle, &again.handle)?;
        let members = retried.snapshots.into_iter().map(|member| member.handle).collect();
        expect_success("delete", context.delete_group_snapshot(&retried.handle, &members).await)?;
        check_no_leftovers(context, &before, fault)?;
        if !crashed {
            return finish_fault_loop(fault);
        }
    }
    fail(format!("a group within {MAX_HOST_CALLS} host calls"), "it needs more")
}

pub(super) async fn publish(context: &SuiteContext) -> CaseResult {
    let before = context.stored_entries();
    for fault in crash_points() {
        let (_, volume) = context.new_volume("dying-publish").await?;
        let request = context.publish_request(&volume, 0);
        context.record_published(&volume.handle);
        let crashed =
            crash_call(context, fault, |second| second.publish_volume(context.call(), request.clone())).await;
        let what = format!("the same publish after one {}", describe_fault(fault));
        let retried = expect_success(&what, context.publish(&request).await)?;
        let again = expect_success("the same publish once more", context.publish(&request).await)?;
        expect_equal("the same answer again", &retried, &again)?;
        expect_success("unpublish", context.unpublish(&volume.handle, Some(&request.node_id)).await)?;
        expect_success("delete", context.delete(&volume.handle).await)?;
        check_no_leftovers(context, &before, fault)?;
        if !crashed {
            return finish_fault_loop(fault);
        }
    }
    fail(format!("a publish within {MAX_HOST_CALLS} host calls"), "it needs more")
}

pub(super) async fn unpublish(context: &SuiteContext) -> CaseResult {
    let before = context.stored_entries();
    for fault in crash_points() {
        let (_, volume) = context.new_volume("dying-unpublish").await?;
        let request = context.publish_request(&volume, 0);
        expect_success("publish", context.publish(&request).await)?;
        let node = Some(request.node_id.clone());
        let handle = volume.handle.clone();
        let crashed =
            crash_call(context, fault, |second| second.unpublish_volume(context.call(), handle, node)).await;
        let what = format!("the same unpublish after one {}", describe_fault(fault));
        expect_success(&what, context.unpublish(&volume.handle, Some(&request.node_id)).await)?;
        let other = context.publish_request(&volume, 1);
        expect_success("publish to another node after that", context.publish(&other).await)?;
        expect_success("unpublish", context.unpublish(&volume.handle, None).await)?;
        expect_success("delete", context.delete(&volume.handle).await)?;
        check_no_leftovers(context, &before, fault)?;
        if !crashed {
            return finish_fault_loop(fault);
        }
    }
    fail(format!("an unpublish within {MAX_HOST_CALLS} host calls"), "it needs more")
}

pub(super) async fn modify(context: &SuiteContext) -> CaseResult {
    let before = context.stored_entries();
    let parameters = &context.options.mutable_parameters;
    for fault in crash_points() {
        let (_, volume) = context.new_volume("dying-modification").await?;
        let handle = volume.handle.clone();
        let crashed = crash_call(context, fault, |second| {
            second.modify_volume(context.call(), handle, parameters.clone())
        })
        .await;
        let what = format!("the same modification after one {}", describe_fault(fault));
        expect_success(&what, context.modify(&volume.handle, parameters).await)?;
        expect_success("delete", context.delete(&volume.handle).await)?;
        check_no_leftovers(context, &before, fault)?;
        if !crashed {
            return finish_fault_loop(fault);
        }
    }
    fail(format!("a modification within {MAX_HOST_CALLS} host calls"), "it needs more")
}

/// Returns the handles of the listed volumes with the request's owner, and records them for the cleanup.
/// Empty for drivers that do not list volumes or do not store owners.
async fn listed_volumes(context: &SuiteContext, request: &CreateVolume) -> CaseResult<Vec<VolumeHandle>> {
    if !context.backend.abilities().contains(&Ability::Listing) {
        return Ok(Vec::new());
    }
    let mut listed = context.list_all(None).await?;
    listed.retain(|status| status.owner.is_some() && status.owner == request.owner);
    let handles: Vec<_> = listed.into_iter().map(|status| status.volume.handle).collect();
    handles.iter().for_each(|handle| context.record_volume(handle));
    Ok(handles)
}

/// Fails if a volume with the request's owner is listed whose handle is not in `expected_handles`.
async fn check_listed_volumes(
    context: &SuiteContext,
    request: &CreateVolume,
    fault: FaultPoint,
    expected_handles: &[&VolumeHandle],
) -> CaseResult {
    let found = listed_volumes(context, request).await?;
    let unexpected = found.iter().find(|handle| !expected_handles.contains(handle));
    let expected =
        || format!("no volumes of the name but {expected_handles:?} after a call {}", describe_fault(fault));
    expect_that(unexpected.is_none(), expected, || format!("{found:?}"))
}

/// Compares the number of a volume's listed snapshots with the expected one.
async fn check_snapshot_count(
    context: &SuiteContext,
    volume: &VolumeHandle,
    fault: FaultPoint,
    expected_count: usize,
) -> CaseResult {
    let found = context.list_snapshots(Some(volume), None).await?;
    let expected =
        || format!("{expected_count} snapshots of the volume after a call {}", describe_fault(fault));
    expect_that(found.len() == expected_count, expected, || format!("{found:?}"))
}

pub(super) async fn lost_answers(context: &SuiteContext) -> CaseResult {
    for number in 0..MAX_HOST_CALLS {
        let fault = FaultPoint::LostResponse(number);
        let request = context.volume_request("deaf");
        let second = context.second_process();
        context.faults.arm(fault);
        let first = second.create_volume(context.call(), request.clone()).await;
        let was_lost = context.faults.disarm();
        context.record_create(&request, &VolumeOrigin::Empty, &first);
        if let Err(error) = &first
            && error.finality == Finality::Final
        {
            let listed_handles = listed_volumes(context, &request).await?;
            let expected =
                || format!("no volume after a create that failed finally and {}", describe_fault(fault));
            expect_that(listed_handles.is_empty(), expected, || {
                format!("{listed_handles:?} after {}", error_line(error))
            })?;
        }
        let what = format!("the same create after one {}", describe_fault(fault));
        let retried = expect_success(&what, context.create(&request).await)?;
        check_listed_volumes(context, &request, fault, &[&retried.handle]).await?;
        expect_success("delete", context.delete(&retried.handle).await)?;
        check_listed_volumes(context, &request, fault, &[]).await?;
        if !was_lost {
            return finish_fault_loop(fault);
        }
    }
    fail(format!("a create within {MAX_HOST_CALLS} requests"), "it needs more")
}

pub(super) async fn expand(context: &SuiteContext) -> CaseResult {
    for fault in crash_points() {
        let request = context.volume_request("dying-expansion");
        let request = with_capacity(&request, request.capacity.required, None);
        let volume = expect_success("a new volume", context.create(&request).await)?;
        let required = volume.capacity.unwrap_or(context.options.size).saturating_mul(2);
        let expansion = ExpandVolume {
            handle: volume.handle.clone(),
            capacity: CapacityRange { required: Some(required), limit: None },
            capability: Some(context.options.capability.clone()),
        };
        let crashed =
            crash_call(context, fault, |second| second.expand_volume(context.call(), expansion)).await;
        let what = format!("the same expansion after one {}", describe_fault(fault));
        let expanded = expect_success(&what, context.expand(&volume.handle, required).await)?;
        let expected = || format!("at least {required} bytes");
        expect_that(expanded.capacity >= required, expected, || format!("{} bytes", expanded.capacity))?;
        expect_success("delete", context.delete(&volume.handle).await)?;
        if !crashed {
            return finish_fault_loop(fault);
        }
    }
    fail(format!("an expansion within {MAX_HOST_CALLS} host calls"), "it needs more")
}
