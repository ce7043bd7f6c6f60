//! Calls that die after each of their host calls.

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
    bench::{Bench, Origin},
    cases::{groups, volumes::sized},
    check::{Checked, done, failed, holds, line, same, skipped},
    process::Process,
};

/// Most host calls of one call that are tried.
const MOST: u32 = 64;

/// The places where a call can die: before anything, and after each host call.
fn places() -> impl Iterator<Item = FaultPoint> {
    std::iter::once(FaultPoint::Before(0)).chain((0..MOST).map(FaultPoint::After))
}

fn told(fault: FaultPoint) -> String {
    match fault {
        FaultPoint::Before(number) => format!("that died before host call {}", number + 1),
        FaultPoint::After(number) => format!("that died after host call {}", number + 1),
        FaultPoint::LostResponse(number) => format!("whose answer to request {} was lost", number + 1),
    }
}

/// Lets a call die at a place. Tells whether it has: when it has not, it has fewer host calls.
async fn dies<T>(
    bench: &Bench,
    fault: FaultPoint,
    call: impl for<'a> FnOnce(&'a Process) -> BoxFuture<'a, Result<T, StorageError>>,
) -> bool {
    let twin = bench.twin();
    bench.faults.arm(fault);
    drop(call(&twin).await);
    bench.faults.disarm()
}

/// Ends a case at the first place that a call has not. When that is the first of all, nothing was tried.
fn tried(fault: FaultPoint) -> Checked {
    match fault {
        FaultPoint::Before(0) => skipped("the call makes no host calls"),
        FaultPoint::LostResponse(0) => skipped("the call sends no requests"),
        FaultPoint::Before(_) | FaultPoint::After(_) | FaultPoint::LostResponse(_) => Ok(()),
    }
}

/// What the storage holds beyond what it held before.
fn remains(bench: &Bench, before: &BTreeSet<String>, fault: FaultPoint) -> Checked {
    let new: Vec<_> = bench.storage().difference(before).cloned().collect();
    let expected = || format!("nothing new in the state and the pool after a call {}", told(fault));
    holds(new.is_empty(), expected, || new.join(", "))
}

pub(super) async fn create(bench: &Bench) -> Checked {
    created(bench, "dying-create", &Origin::Empty).await
}

pub(super) async fn clone(bench: &Bench) -> Checked {
    let (_, source) = bench.volume("source").await?;
    created(bench, "dying-clone", &Origin::Volume(source.handle)).await
}

pub(super) async fn restore(bench: &Bench) -> Checked {
    let (_, source) = bench.volume("source").await?;
    let snapshot = bench.snapshot("source", &source.handle).await?;
    created(bench, "dying-restore", &Origin::Snapshot(snapshot.handle)).await
}

async fn created(bench: &Bench, label: &str, origin: &Origin) -> Checked {
    let before = bench.storage();
    for fault in places() {
        let request = bench.request(label);
        // What it made is noted also when the healing below fails.
        bench.keep(
            &request,
            origin,
            &Err(StorageError::unknown_outcome(ErrorKind::Internal, "the call died")),
        );
        let died = dies(bench, fault, |twin| bench.begin_create(twin, bench.call(), &request, origin)).await;
        let what = format!("the same create after one {}", told(fault));
        let healed = done(&what, bench.create_from(&bench.backend, &request, origin).await)?;
        let again =
            done("the same create once more", bench.create_from(&bench.backend, &request, origin).await)?;
        same("the same answer again", &healed, &again)?;
        shown(bench, &request, fault, &[&healed.handle]).await?;
        done("delete", bench.delete(&healed.handle).await)?;
        shown(bench, &request, fault, &[]).await?;
        remains(bench, &before, fault)?;
        if !died {
            return tried(fault);
        }
    }
    failed(format!("a create within {MOST} host calls"), "it needs more")
}

pub(super) async fn delete(bench: &Bench) -> Checked {
    let before = bench.storage();
    for fault in places() {
        let (request, volume) = bench.volume("dying-delete").await?;
        let handle = volume.handle.clone();
        let died = dies(bench, fault, |twin| twin.delete_volume(bench.call(), handle)).await;
        done(&format!("the same delete after one {}", told(fault)), bench.delete(&volume.handle).await)?;
        let answer = bench.validate(&volume, &request.capabilities).await;
        holds(answer.is_err(), || "a volume that is gone".to_owned(), || format!("{answer:?}"))?;
        remains(bench, &before, fault)?;
        if !died {
            return tried(fault);
        }
    }
    failed(format!("a delete within {MOST} host calls"), "it needs more")
}

pub(super) async fn snapshot(bench: &Bench) -> Checked {
    let (_, volume) = bench.volume("snapped").await?;
    let before = bench.storage();
    for fault in places() {
        let request = bench.snapshot_request("dying-snapshot", &volume.handle);
        let died = dies(bench, fault, |twin| twin.create_snapshot(bench.call(), request.clone())).await;
        let what = format!("the same snapshot after one {}", told(fault));
        let healed = done(&what, bench.cut(&bench.backend, &request).await)?;
        let again = done("the same snapshot once more", bench.cut(&bench.backend, &request).await)?;
        same("the same handle again", &healed.handle, &again.handle)?;
        cut(bench, &volume.handle, fault, 1).await?;
        done("delete", bench.delete_snapshot(&healed.handle).await)?;
        cut(bench, &volume.handle, fault, 0).await?;
        remains(bench, &before, fault)?;
        if !died {
            return tried(fault);
        }
    }
    failed(format!("a snapshot within {MOST} host calls"), "it needs more")
}

pub(super) async fn delete_snapshot(bench: &Bench) -> Checked {
    let (_, volume) = bench.volume("snapped").await?;
    let before = bench.storage();
    for fault in places() {
        let handle = bench.snapshot("dying-uncut", &volume.handle).await?.handle;
        let died = dies(bench, fault, |twin| twin.delete_snapshot(bench.call(), handle.clone())).await;
        done(&format!("the same delete after one {}", told(fault)), bench.delete_snapshot(&handle).await)?;
        let answer = bench.get_snapshot(&handle).await;
        holds(answer.is_err(), || "a snapshot that is gone".to_owned(), || format!("{answer:?}"))?;
        remains(bench, &before, fault)?;
        if !died {
            return tried(fault);
        }
    }
    failed(format!("a delete within {MOST} host calls"), "it needs more")
}

pub(super) async fn group(bench: &Bench) -> Checked {
    let sources = groups::sources(bench).await?;
    let before = bench.storage();
    for fault in places() {
        let parameters = bench.options.snapshot_parameters.clone();
        let request = CreateGroupSnapshot {
            name: bench.name("dying-group"),
            sources: sources.clone(),
            parameters,
            owner: None,
        };
        let died = dies(bench, fault, |twin| twin.create_group_snapshot(bench.call(), request.clone())).await;
        let what = format!("the same group after one {}", told(fault));
        let healed = done(&what, bench.cut_group(&request).await)?;
        let again = done("the same group once more", bench.cut_group(&request).await)?;
        same("the same handle again", &healed.handle, &again.handle)?;
        let members = healed.snapshots.into_iter().map(|member| member.handle).collect();
        done("delete", bench.delete_group(&healed.handle, &members).await)?;
        remains(bench, &before, fault)?;
        if !died {
            return tried(fault);
        }
    }
    failed(format!("a group within {MOST} host calls"), "it needs more")
}

pub(super) async fn publish(bench: &Bench) -> Checked {
    let before = bench.storage();
    for fault in places() {
        let (_, volume) = bench.volume("dying-publish").await?;
        let request = bench.publish_request(&volume, 0);
        bench.published(&volume.handle);
        let died = dies(bench, fault, |twin| twin.publish_volume(bench.call(), request.clone())).await;
        let what = format!("the same publish after one {}", told(fault));
        let healed = done(&what, bench.publish(&request).await)?;
        let again = done("the same publish once more", bench.publish(&request).await)?;
        same("the same answer again", &healed, &again)?;
        done("unpublish", bench.unpublish(&volume.handle, Some(&request.node_id)).await)?;
        done("delete", bench.delete(&volume.handle).await)?;
        remains(bench, &before, fault)?;
        if !died {
            return tried(fault);
        }
    }
    failed(format!("a publish within {MOST} host calls"), "it needs more")
}

pub(super) async fn unpublish(bench: &Bench) -> Checked {
    let before = bench.storage();
    for fault in places() {
        let (_, volume) = bench.volume("dying-unpublish").await?;
        let request = bench.publish_request(&volume, 0);
        done("publish", bench.publish(&request).await)?;
        let node = Some(request.node_id.clone());
        let handle = volume.handle.clone();
        let died = dies(bench, fault, |twin| twin.unpublish_volume(bench.call(), handle, node)).await;
        let what = format!("the same unpublish after one {}", told(fault));
        done(&what, bench.unpublish(&volume.handle, Some(&request.node_id)).await)?;
        let other = bench.publish_request(&volume, 1);
        done("publish to another node after that", bench.publish(&other).await)?;
        done("unpublish", bench.unpublish(&volume.handle, None).await)?;
        done("delete", bench.delete(&volume.handle).await)?;
        remains(bench, &before, fault)?;
        if !died {
            return tried(fault);
        }
    }
    failed(format!("an unpublish within {MOST} host calls"), "it needs more")
}

pub(super) async fn modify(bench: &Bench) -> Checked {
    let before = bench.storage();
    let wanted = &bench.options.mutable_parameters;
    for fault in places() {
        let (_, volume) = bench.volume("dying-modification").await?;
        let handle = volume.handle.clone();
        let died = dies(bench, fault, |twin| twin.modify_volume(bench.call(), handle, wanted.clone())).await;
        let what = format!("the same modification after one {}", told(fault));
        done(&what, bench.modify(&volume.handle, wanted).await)?;
        done("delete", bench.delete(&volume.handle).await)?;
        remains(bench, &before, fault)?;
        if !died {
            return tried(fault);
        }
    }
    failed(format!("a modification within {MOST} host calls"), "it needs more")
}

/// The volumes of a request that a listing shows: none from a driver that keeps no owners.
async fn listed(bench: &Bench, request: &CreateVolume) -> Checked<Vec<VolumeHandle>> {
    if !bench.backend.abilities().contains(&Ability::Listing) {
        return Ok(Vec::new());
    }
    let mut listed = bench.list_all(None).await?;
    listed.retain(|status| status.owner.is_some() && status.owner == request.owner);
    let handles: Vec<_> = listed.into_iter().map(|status| status.volume.handle).collect();
    handles.iter().for_each(|handle| bench.found(handle));
    Ok(handles)
}

/// Compares the volumes of a request that a listing shows with those that there may be.
async fn shown(
    bench: &Bench,
    request: &CreateVolume,
    fault: FaultPoint,
    wanted: &[&VolumeHandle],
) -> Checked {
    let found = listed(bench, request).await?;
    let stranger = found.iter().find(|handle| !wanted.contains(handle));
    let expected = || format!("no volumes of the name but {wanted:?} after a call {}", told(fault));
    holds(stranger.is_none(), expected, || format!("{found:?}"))
}

/// Compares the snapshots of a volume with those that there may be.
async fn cut(bench: &Bench, volume: &VolumeHandle, fault: FaultPoint, wanted: usize) -> Checked {
    let found = bench.list_snapshots(Some(volume), None).await?;
    let expected = || format!("{wanted} snapshots of the volume after a call {}", told(fault));
    holds(found.len() == wanted, expected, || format!("{found:?}"))
}

pub(super) async fn lost_answers(bench: &Bench) -> Checked {
    for number in 0..MOST {
        let fault = FaultPoint::LostResponse(number);
        let request = bench.request("deaf");
        let twin = bench.twin();
        bench.faults.arm(fault);
        let first = twin.create_volume(bench.call(), request.clone()).await;
        let lost = bench.faults.disarm();
        bench.keep(&request, &Origin::Empty, &first);
        if let Err(error) = &first
            && error.finality == Finality::Final
        {
            let made = listed(bench, &request).await?;
            let expected = || format!("no volume after a create that failed finally and {}", told(fault));
            holds(made.is_empty(), expected, || format!("{made:?} after {}", line(error)))?;
        }
        let what = format!("the same create after one {}", told(fault));
        let healed = done(&what, bench.create(&request).await)?;
        shown(bench, &request, fault, &[&healed.handle]).await?;
        done("delete", bench.delete(&healed.handle).await)?;
        shown(bench, &request, fault, &[]).await?;
        if !lost {
            return tried(fault);
        }
    }
    failed(format!("a create within {MOST} requests"), "it needs more")
}

pub(super) async fn expand(bench: &Bench) -> Checked {
    for fault in places() {
        let request = bench.request("dying-expansion");
        let request = sized(&request, request.capacity.required, None);
        let volume = done("a new volume", bench.create(&request).await)?;
        let required = volume.capacity.unwrap_or(bench.options.size).saturating_mul(2);
        let wanted = ExpandVolume {
            handle: volume.handle.clone(),
            capacity: CapacityRange { required: Some(required), limit: None },
            capability: Some(bench.options.capability.clone()),
        };
        let died = dies(bench, fault, |twin| twin.expand_volume(bench.call(), wanted)).await;
        let what = format!("the same expansion after one {}", told(fault));
        let grown = done(&what, bench.expand(&volume.handle, required).await)?;
        let expected = || format!("at least {required} bytes");
        holds(grown.capacity >= required, expected, || format!("{} bytes", grown.capacity))?;
        done("delete", bench.delete(&volume.handle).await)?;
        if !died {
            return tried(fault);
        }
    }
    failed(format!("an expansion within {MOST} host calls"), "it needs more")
}
