//! Calls that die after each of their host calls.

use cofferdam_backend::{Backend as _, testing::Fault};
use cofferdam_domain::storage::{CapacityRange, ErrorKind, ExpandVolume, StorageError};
use futures::future::BoxFuture;

use crate::{
    bench::{Bench, Origin},
    cases::volumes::sized,
    check::{Checked, done, failed, holds, same},
    process::Process,
};

/// Most host calls of one call that are tried.
const MOST: u32 = 64;

/// The places where a call can die: before anything, and after each host call.
fn places() -> impl Iterator<Item = Fault> {
    std::iter::once(Fault::Before(0)).chain((0..MOST).map(Fault::After))
}

fn told(fault: Fault) -> String {
    match fault {
        Fault::Before(number) => format!("that died before host call {}", number + 1),
        Fault::After(number) => format!("that died after host call {}", number + 1),
    }
}

/// Lets a call die at a place. Tells whether it has: when it has not, it has fewer host calls.
async fn dies<T>(
    bench: &Bench,
    fault: Fault,
    call: impl for<'a> FnOnce(&'a Process) -> BoxFuture<'a, Result<T, StorageError>>,
) -> bool {
    let twin = bench.twin();
    bench.faults.arm(fault);
    drop(call(&twin).await);
    bench.faults.disarm()
}

/// What the state holds beyond what it held before.
fn remains(bench: &Bench, before: &[String], fault: Fault) -> Checked {
    let keys = bench.backend.state_keys();
    let new: Vec<_> = keys.iter().filter(|key| !before.contains(key)).cloned().collect();
    let expected = || format!("no new keys in the state after a call {}", told(fault));
    holds(new.is_empty(), expected, || new.join(", "))
}

pub(super) async fn create(bench: &Bench) -> Checked {
    created(bench, "dying-create", &Origin::Empty).await
}

pub(super) async fn clone(bench: &Bench) -> Checked {
    let (_, source) = bench.volume("source").await?;
    created(bench, "dying-clone", &Origin::Volume(source.handle)).await
}

async fn created(bench: &Bench, label: &str, origin: &Origin) -> Checked {
    let before = bench.backend.state_keys();
    for fault in places() {
        let request = bench.request(label);
        // What it made is noted also when the healing below fails.
        bench.keep(&request, origin, &Err(StorageError::unknown(ErrorKind::Internal, "the call died")));
        let died = dies(bench, fault, |twin| bench.begin_create(twin, bench.call(), &request, origin)).await;
        let what = format!("the same create after one {}", told(fault));
        let healed = done(&what, bench.create_from(&bench.backend, &request, origin).await)?;
        let again = done("the same create once more", bench.create_from(&bench.backend, &request, origin).await)?;
        same("the same answer again", &healed, &again)?;
        done("delete", bench.delete(&healed.handle).await)?;
        remains(bench, &before, fault)?;
        if !died {
            return Ok(());
        }
    }
    failed(format!("a create within {MOST} host calls"), "it needs more")
}

pub(super) async fn delete(bench: &Bench) -> Checked {
    let before = bench.backend.state_keys();
    for fault in places() {
        let (request, volume) = bench.volume("dying-delete").await?;
        let handle = volume.handle.clone();
        let died = dies(bench, fault, |twin| twin.delete_volume(bench.call(), handle)).await;
        done(&format!("the same delete after one {}", told(fault)), bench.delete(&volume.handle).await)?;
        let answer = bench.validate(&volume, &request.capabilities).await;
        holds(answer.is_err(), || "a volume that is gone".to_owned(), || format!("{answer:?}"))?;
        remains(bench, &before, fault)?;
        if !died {
            return Ok(());
        }
    }
    failed(format!("a delete within {MOST} host calls"), "it needs more")
}

pub(super) async fn snapshot(bench: &Bench) -> Checked {
    let (_, volume) = bench.volume("snapped").await?;
    let before = bench.backend.state_keys();
    for fault in places() {
        let request = bench.snapshot_request("dying-snapshot", &volume.handle);
        let died = dies(bench, fault, |twin| twin.create_snapshot(bench.call(), request.clone())).await;
        let what = format!("the same snapshot after one {}", told(fault));
        let healed = done(&what, bench.cut(&bench.backend, &request).await)?;
        let again = done("the same snapshot once more", bench.cut(&bench.backend, &request).await)?;
        same("the same handle again", &healed.handle, &again.handle)?;
        done("delete", bench.delete_snapshot(&healed.handle).await)?;
        remains(bench, &before, fault)?;
        if !died {
            return Ok(());
        }
    }
    failed(format!("a snapshot within {MOST} host calls"), "it needs more")
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
            return Ok(());
        }
    }
    failed(format!("an expansion within {MOST} host calls"), "it needs more")
}
