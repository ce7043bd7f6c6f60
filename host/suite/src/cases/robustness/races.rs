//! Calls at once, calls without time, calls whose caller went away.

use std::collections::BTreeSet;

use cofferdam_backend::{Backend as _, Call};
use cofferdam_domain::{
    VolumeHandle,
    storage::{Ability, CapacityRange, CreateVolume, CreatedVolume, CsiAccessMode, ErrorKind, ExpandVolume},
};
use futures::{FutureExt as _, future::join_all};

use super::HURRIES;
use crate::{
    bench::{Bench, Origin},
    check::{Checked, done, holds, refused, same},
};

pub(super) async fn different_names(bench: &Bench) -> Checked {
    let requests: Vec<_> = (0..bench.options.concurrency.max(2)).map(|_| bench.request("parallel")).collect();
    let mut handles = BTreeSet::new();
    for answer in join_all(requests.iter().map(|request| bench.create(request))).await {
        handles.insert(done("one of the creates at once", answer)?.handle);
    }
    same("one volume for each name", &requests.len(), &handles.len())?;
    for answer in join_all(handles.iter().map(|handle| bench.delete(handle))).await {
        done("one of the deletes at once", answer)?;
    }
    Ok(())
}

/// The one volume of a name, after everything that could make a second one: no listing shows another.
async fn one_volume(bench: &Bench, request: &CreateVolume) -> Checked<CreatedVolume> {
    let volume = done("the same create again", bench.create(request).await)?;
    if bench.backend.abilities().contains(&Ability::Listing) {
        let mut listed = bench.list_all(None).await?;
        listed.retain(|status| status.owner == request.owner && bench.is_ours(status));
        for stranger in &listed {
            bench.found(&stranger.volume.handle);
        }
        let others: Vec<_> = listed
            .iter()
            .map(|status| &status.volume.handle)
            .filter(|handle| **handle != volume.handle)
            .collect();
        holds(others.is_empty(), || format!("one volume {}", volume.handle), || format!("also {others:?}"))?;
    }
    Ok(volume)
}

pub(super) async fn same_name(bench: &Bench) -> Checked {
    let request = bench.request("race");
    let twins: Vec<_> = (0..bench.options.concurrency.clamp(2, 4)).map(|_| bench.twin()).collect();
    let calls = twins.iter().map(|twin| bench.create_from(twin, &request, &Origin::Empty));
    let mut handles = BTreeSet::<VolumeHandle>::new();
    for answer in join_all(calls).await {
        handles.insert(done("the same create at several processes", answer)?.handle);
    }
    holds(
        handles.len() == 1,
        || "one volume of one name".to_owned(),
        || format!("{} volumes: {handles:?}", handles.len()),
    )?;
    one_volume(bench, &request).await.map(drop)
}

pub(super) async fn create_and_delete(bench: &Bench) -> Checked {
    let (request, volume) = bench.volume("churned").await?;
    let twins = [bench.twin(), bench.twin(), bench.twin(), bench.twin()];
    let [first, second, third, fourth] = &twins;
    let (one, two, three, four) = tokio::join!(
        bench.create_from(first, &request, &Origin::Empty),
        bench.delete_at(second, &volume.handle),
        bench.create_from(third, &request, &Origin::Empty),
        bench.delete_at(fourth, &volume.handle),
    );
    for answer in [one, three] {
        done("the create beside deletes", answer)?;
    }
    for answer in [two, four] {
        done("the delete beside creates", answer)?;
    }
    let last = one_volume(bench, &request).await?;
    done("the delete after all", bench.delete(&last.handle).await)
}

pub(super) async fn hurried_create(bench: &Bench) -> Checked {
    for deadline in HURRIES {
        let request = bench.request("hurried");
        let call = Call { deadline, ..bench.call() };
        let answer = bench.begin_create(&bench.backend, call, &request, &Origin::Empty).await;
        bench.keep(&request, &Origin::Empty, &answer);
        let volume = one_volume(bench, &request).await?;
        if let Ok(first) = answer {
            same("the same answer again", &first, &volume)?;
        }
        done("delete", bench.delete(&volume.handle).await)?;
    }
    Ok(())
}

pub(super) async fn abandoned_create(bench: &Bench) -> Checked {
    let request = bench.request("abandoned");
    let mut call = bench.begin_create(&bench.backend, bench.call(), &request, &Origin::Empty);
    // Once asked, the call is on its way; then its caller goes away.
    let early = (&mut call).now_or_never();
    drop(call);
    let elsewhere = bench.create_from(&bench.twin(), &request, &Origin::Empty).await;
    let elsewhere = done("the same create at another process", elsewhere)?;
    if let Some(answer) = early {
        same("the same answer", &done("the first create", answer)?, &elsewhere)?;
    }
    let volume = one_volume(bench, &request).await?;
    same("one volume of one name", &elsewhere.handle, &volume.handle)
}

pub(super) async fn same_snapshot(bench: &Bench) -> Checked {
    let (_, volume) = bench.volume("raced").await?;
    let request = bench.snapshot_request("snap-race", &volume.handle);
    let twins: Vec<_> = (0..bench.options.concurrency.clamp(2, 4)).map(|_| bench.twin()).collect();
    let mut handles = BTreeSet::new();
    for answer in join_all(twins.iter().map(|twin| bench.cut(twin, &request))).await {
        handles.insert(done("the same snapshot at several processes", answer)?.handle);
    }
    let expected = || "one snapshot of one name".to_owned();
    holds(handles.len() == 1, expected, || format!("{} snapshots: {handles:?}", handles.len()))
}

pub(super) async fn two_nodes(bench: &Bench) -> Checked {
    let (_, volume) = bench.volume_for("contested", &[CsiAccessMode::SingleNodeWriter]).await?;
    let requests = [0, 1].map(|node| {
        let mut request = bench.publish_request(&volume, node);
        request.capability.access_mode = CsiAccessMode::SingleNodeWriter;
        request
    });
    bench.published(&volume.handle);
    let twins = [bench.twin(), bench.twin()];
    let calls = twins.iter().zip(&requests).map(|(twin, request)| {
        bench.settled("publish", || twin.publish_volume(bench.call(), request.clone()))
    });
    let answers = join_all(calls).await;
    let refusals: Vec<_> = answers.iter().filter(|answer| answer.is_err()).collect();
    let expected = || "one of two nodes gets a volume for one node".to_owned();
    holds(refusals.len() == 1, expected, || format!("{answers:?}"))?;
    for refusal in refusals {
        refused("the other node", refusal, &[ErrorKind::FailedPrecondition])?;
    }
    Ok(())
}

pub(super) async fn expand(bench: &Bench) -> Checked {
    let (_, volume) = bench.volume("stretched").await?;
    let size = volume.capacity.unwrap_or(bench.options.size);
    let twins = [bench.twin(), bench.twin()];
    let largest = size.saturating_mul(4);
    let sizes = [largest, size.saturating_mul(2)];
    let calls = twins.iter().zip(sizes).map(|(twin, required)| {
        let request = ExpandVolume {
            handle: volume.handle.clone(),
            capacity: CapacityRange { required: Some(required), limit: None },
            capability: Some(bench.options.capability.clone()),
        };
        bench.settled("expand", move || twin.expand_volume(bench.call(), request.clone()))
    });
    for answer in join_all(calls).await {
        done("an expansion beside another", answer)?;
    }
    let found = done("an expansion to 1 byte", bench.expand(&volume.handle, 1).await)?.capacity;
    holds(found >= largest, || format!("at least {largest} bytes"), || format!("{found} bytes"))
}

pub(super) async fn hurried_delete(bench: &Bench) -> Checked {
    for deadline in HURRIES {
        let (request, volume) = bench.volume("hurried-delete").await?;
        let call = Call { deadline, ..bench.call() };
        drop(bench.backend.delete_volume(call, volume.handle.clone()).await);
        done("the same delete, with more time", bench.delete(&volume.handle).await)?;
        let answer = bench.validate(&volume, &request.capabilities).await;
        refused("validating the volume", &answer, &[ErrorKind::NotFound])?;
    }
    Ok(())
}
