//! Concurrent calls, calls with short deadlines, abandoned calls.

use std::collections::BTreeSet;

use cofferdam_backend::{Backend as _, Call};
use cofferdam_domain::{
    VolumeHandle,
    storage::{Ability, CapacityRange, CreateVolume, CreatedVolume, CsiAccessMode, ErrorKind, ExpandVolume},
};
use futures::{FutureExt as _, future::join_all};

use super::SHORT_DEADLINES;
use crate::{
    check::{CaseResult, expect_equal, expect_final_error, expect_success, expect_that},
    context::{SuiteContext, VolumeOrigin},
};

pub(super) async fn different_names(context: &SuiteContext) -> CaseResult {
    let requests: Vec<_> =
        (0..context.options.concurrency.max(2)).map(|_| context.volume_request("parallel")).collect();
    let mut handles = BTreeSet::new();
    for answer in join_all(requests.iter().map(|request| context.create(request))).await {
        handles.insert(expect_success("a concurrent create", answer)?.handle);
    }
    expect_equal("one volume for each name", &requests.len(), &handles.len())?;
    for answer in join_all(handles.iter().map(|handle| context.delete(handle))).await {
        expect_success("a concurrent delete", answer)?;
    }
    Ok(())
}

/// Repeats a create, and checks that no second volume with the request's owner is listed. Returns the volume.
/// Records the listed volumes for the cleanup. Without `listing`, and for drivers that do not store owners,
/// it only repeats the create.
async fn ensure_single_volume(context: &SuiteContext, request: &CreateVolume) -> CaseResult<CreatedVolume> {
    let volume = expect_success("the same create again", context.create(request).await)?;
    if context.backend.abilities().contains(&Ability::Listing) {
        let mut listed = context.list_all(None).await?;
        listed.retain(|status| status.owner == request.owner && context.is_own_volume(status));
        for listed_status in &listed {
            context.record_volume(&listed_status.volume.handle);
        }
        let others: Vec<_> = listed
            .iter()
            .map(|status| &status.volume.handle)
            .filter(|handle| **handle != volume.handle)
            .collect();
        expect_that(
            others.is_empty(),
            || format!("one volume {}", volume.handle),
            || format!("also {others:?}"),
        )?;
    }
    Ok(volume)
}

pub(super) async fn same_name(context: &SuiteContext) -> CaseResult {
    let request = context.volume_request("race");
    let processes: Vec<_> =
        (0..context.options.concurrency.clamp(2, 4)).map(|_| context.second_process()).collect();
    let calls = processes.iter().map(|second| context.create_from(second, &request, &VolumeOrigin::Empty));
    let mut handles = BTreeSet::<VolumeHandle>::new();
    for answer in join_all(calls).await {
        handles.insert(expect_success("the same create at several processes", answer)?.handle);
    }
    expect_that(
        handles.len() == 1,
        || "one volume of one name".to_owned(),
        || format!("{} volumes: {handles:?}", handles.len()),
    )?;
    ensure_single_volume(context, &request).await.map(drop)
}

pub(super) async fn create_and_delete(context: &SuiteContext) -> CaseResult {
    let (request, volume) = context.new_volume("churned").await?;
    let processes = [
        context.second_process(),
        context.second_process(),
        context.second_process(),
        context.second_process(),
    ];
    let [first, second, third, fourth] = &processes;
    let (one, two, three, four) = tokio::join!(
        context.create_from(first, &request, &VolumeOrigin::Empty),
        context.delete_with(second, &volume.handle),
        context.create_from(third, &request, &VolumeOrigin::Empty),
        context.delete_with(fourth, &volume.handle),
    );
    for answer in [one, three] {
        expect_success("the create beside deletes", answer)?;
    }
    for answer in [two, four] {
        expect_success("the delete beside creates", answer)?;
    }
    let last = ensure_single_volume(context, &request).await?;
    expect_success("the delete after all", context.delete(&last.handle).await)
}

pub(super) async fn create_past_deadline(context: &SuiteContext) -> CaseResult {
    for deadline in SHORT_DEADLINES {
        let request = context.volume_request("hurried");
        let call = Call { deadline, ..context.call() };
        let answer = context.start_create(&context.backend, call, &request, &VolumeOrigin::Empty).await;
        context.record_create(&request, &VolumeOrigin::Empty, &answer);
        let volume = ensure_single_volume(context, &request).await?;
        if let Ok(first) = answer {
            expect_equal("the same answer again", &first, &volume)?;
        }
        expect_success("delete", context.delete(&volume.handle).await)?;
    }
    Ok(())
}

pub(super) async fn abandoned_create(context: &SuiteContext) -> CaseResult {
    let request = context.volume_request("abandoned");
    let mut call = context.start_create(&context.backend, context.call(), &request, &VolumeOrigin::Empty);
    // The first poll starts the call; then the caller abandons it.
    let early_result = (&mut call).now_or_never();
    drop(call);
    let retried = context.create_from(&context.second_process(), &request, &VolumeOrigin::Empty).await;
    let retried = expect_success("the same create at another process", retried)?;
    if let Some(answer) = early_result {
        expect_equal("the same answer", &expect_success("the first create", answer)?, &retried)?;
    }
    let volume = ensure_single_volume(context, &request).await?;
    expect_equal("one volume of one name", &retried.handle, &volume.handle)
}

pub(super) async fn same_snapshot(context: &SuiteContext) -> CaseResult {
    let (_, volume) = context.new_volume("raced").await?;
    let request = context.snapshot_request("snap-race", &volume.handle);
    let processes: Vec<_> =
        (0..context.options.concurrency.clamp(2, 4)).map(|_| context.second_process()).collect();
    let mut handles = BTreeSet::new();
    for answer in join_all(processes.iter().map(|second| context.create_snapshot(second, &request))).await {
        handles.insert(expect_success("the same snapshot at several processes", answer)?.handle);
    }
    let expected = || "one snapshot of one name".to_owned();
    expect_that(handles.len() == 1, expected, || format!("{} snapshots: {handles:?}", handles.len()))
}

pub(super) async fn two_nodes(context: &SuiteContext) -> CaseResult {
    let (_, volume) = context.volume_for("contested", &[CsiAccessMode::SingleNodeWriter]).await?;
    let requests = [0, 1].map(|node| {
        let mut request = context.publish_request(&volume, node);
        request.capability.access_mode = CsiAccessMode::SingleNodeWriter;
        request
    });
    context.record_published(&volume.handle);
    let processes = [context.second_process(), context.second_process()];
    let calls = processes.iter().zip(&requests).map(|(second, request)| {
        context.retry_until_final("publish", || second.publish_volume(context.call(), request.clone()))
    });
    let answers = join_all(calls).await;
    let refusals: Vec<_> = answers.iter().filter(|answer| answer.is_err()).collect();
    let expected = || "one of two nodes gets a volume for one node".to_owned();
    expect_that(refusals.len() == 1, expected, || format!("{answers:?}"))?;
    for refusal in refusals {
        expect_final_error("the other node", refusal, &[ErrorKind::FailedPrecondition])?;
    }
    Ok(())
}

pub(super) async fn expand(context: &SuiteContext) -> CaseResult {
    let (_, volume) = context.new_volume("stretched").await?;
    let size = volume.capacity.unwrap_or(context.options.size);
    let processes = [context.second_process(), context.second_process()];
    let largest = size.saturating_mul(4);
    let sizes = [largest, size.saturating_mul(2)];
    let calls = processes.iter().zip(sizes).map(|(second, required)| {
        let request = ExpandVolume {
            handle: volume.handle.clone(),
            capacity: CapacityRange { required: Some(required), limit: None },
            capability: Some(context.options.capability.clone()),
        };
        context.retry_until_final("expand", move || second.expand_volume(context.call(), request.clone()))
    });
    for answer in join_all(calls).await {
        expect_success("an expansion beside another", answer)?;
    }
    let found = expect_success("an expansion to 1 byte", context.expand(&volume.handle, 1).await)?.capacity;
    expect_that(found >= largest, || format!("at least {largest} bytes"), || format!("{found} bytes"))
}

pub(super) async fn delete_past_deadline(context: &SuiteContext) -> CaseResult {
    for deadline in SHORT_DEADLINES {
        let (request, volume) = context.new_volume("hurried-delete").await?;
        let call = Call { deadline, ..context.call() };
        drop(context.backend.delete_volume(call, volume.handle.clone()).await);
        expect_success("the same delete, with more time", context.delete(&volume.handle).await)?;
        let answer = context.validate(&volume, &request.capabilities).await;
        expect_final_error("validating the volume", &answer, &[ErrorKind::NotFound])?;
    }
    Ok(())
}
